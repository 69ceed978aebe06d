package dispatch

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/tasks/task"
)

// A Line is one topic's ready tasks, with the receivers that wait for them and the workers that
// deliver them. Guarded by Engine.mu.
type Line struct {
	Number    uint32 // of the topic
	Policy    Policy
	Queue     Queue
	Groups    *Groups // bounds the deliveries of a group; nil: no bound
	Reservers Reservers
	Workers   int // places that its workers have: deliveries that they may make at once
	Busy      int // of those, how many are taken by a delivery
	Offloaded int // deliveries of other nodes' tasks that wait for its workers
	Offloads  int // nodes whose tasks of this topic are taken when there is room
	// AsyncSettle: its deliverer leaves deliveries to their receipts.
	AsyncSettle bool

	contending int      // 1 + its position in Board.contenders; 0: it is not there
	passes     float64  // deliveries for its weight, while places were scarce
	limiter    *limiter // of its rate; nil: no bound
	resting    bool     // until the limiter lets another delivery begin
	held       bool     // MaxInFlight keeps it waiting; it is in Board.held
	lacks      bool     // its deliverer has no receiver, see Board.Lack
	probe      probe    // of a line that lacks one
}

// A limiter counts the tokens of a line's rate on a clock that it was given.
type limiter struct {
	rate.Limiter
	clock func() time.Time
}

func (l *limiter) tokens() float64 { return l.TokensAt(l.clock()) }

// A Policy is how a line is served. It follows from a topic's settings and from what this process
// can deliver.
type Policy struct {
	Stopped     bool // no consumer may have its tasks
	Pulled      bool // receivers ask for its tasks
	Delivered   bool // workers of this process deliver its tasks
	Batches     bool // a worker delivers several tasks at once
	Concurrency int  // how many workers it has at most, unless a backlog raises that
	Fixed       bool // a backlog does not raise its concurrency
	Weight      int  // its share of scarce places
}

// Serve gives a line other terms and another rate, which is counted on the clock. The tokens that
// it has stay: settings that are set again and again are not a burst each. The caller stops a rest
// that is under way.
func (l *Line) Serve(t Policy, r task.Rate, clock func() time.Time) {
	l.Policy = t
	l.resting = false
	l.lacks, l.probe = false, noProbe // of the deliverer before
	switch {
	case r == task.Rate{}:
		l.limiter = nil
	case l.limiter == nil:
		l.limiter = &limiter{*rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst), clock}
	default:
		now := clock()
		l.limiter.SetLimitAt(now, rate.Limit(r.PerSecond))
		l.limiter.SetBurstAt(now, r.Burst)
	}
}

// Waiting returns how many tasks wait for a worker of this process, and may begin.
func (l *Line) Waiting() int { return l.Takeable() + l.Offloaded }

// Takeable returns how many ready tasks may begin, as far as their groups are concerned.
func (l *Line) Takeable() int {
	if l.Groups == nil {
		return l.Queue.Live
	}
	return l.Queue.Live + l.Groups.Free
}

// Blocked returns how many ready tasks wait for deliveries of their groups to end.
func (l *Line) Blocked() int {
	if l.Groups == nil {
		return 0
	}
	return l.Groups.Live - l.Groups.Free
}

// Pop returns the ready task that is next, stale or not, and whether it comes out of a group. The
// caller calls Queue.Gone if it does not, and if it is not stale.
func (l *Line) Pop(stale func(value uint64) bool) (it Item, grouped, ok bool) {
	if l.Groups != nil {
		if next, free := l.Groups.front(); free {
			if l.Queue.Count == 0 {
				return l.Groups.pop(stale), true, true
			}
			if first, _ := l.Queue.front(); next <= first.Next {
				return l.Groups.pop(stale), true, true
			}
		}
	}
	it, ok = l.Queue.Pop()
	return it, false, ok
}

// OldestReady is Queue.Oldest of all ready tasks.
func (l *Line) OldestReady(limit int, stale func(value uint64) bool) (next int64, ok bool) {
	next, ok = l.Queue.Oldest(limit, stale)
	if l.Groups != nil {
		if at, grouped := l.Groups.oldest(limit, stale); grouped && (!ok || at < next) {
			next, ok = at, true
		}
	}
	return next, ok
}

// LiveBefore is Queue.LiveBefore of all ready tasks, and returns how many there are.
func (l *Line) LiveBefore(times, counts []int64) (live int64) {
	l.Queue.LiveBefore(times, counts)
	if l.Groups == nil {
		return int64(l.Queue.Live)
	}
	l.Groups.liveBefore(times, counts)
	return int64(l.Queue.Live + l.Groups.Live)
}

// Limited reports whether the line has a rate.
func (l *Line) Limited() bool { return l.limiter != nil }

// Allowed returns how many of n deliveries may begin now. A delivery that begins takes a token of
// the line's rate, also if it is pulled.
func (l *Line) Allowed(n int) int {
	if l.limiter == nil {
		return n
	}
	return max(0, min(n, int(l.limiter.tokens())))
}

// Spend takes the tokens of deliveries that begin.
func (l *Line) Spend(n int) {
	if l.limiter != nil {
		l.limiter.AllowN(l.limiter.clock(), n)
	}
}
