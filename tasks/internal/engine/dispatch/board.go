package dispatch

import (
	"container/heap"
	"math"
	"time"
)

// A Board has the places that all lines share. Guarded by Engine.mu.
type Board struct {
	MaxDeliveries  int // places of workers
	MaxInFlight    int // deliveries that only a receipt can settle
	MaxConcurrency int // what a backlog raises a line's concurrency to

	Paused bool // nothing may begin, see Config.OnOutage
	Ended  bool // nothing may begin any more
	Raised bool // a backlog raises the concurrency of lines that have none of their own

	Workers          int // places that workers have, of all lines
	LeasedOut        int // open deliveries that only a receipt can settle
	ReservedInFlight int // deliveries under way that may join them: of lines with AsyncSettle

	held       []*Line    // that MaxInFlight keeps waiting
	contenders contenders // lines that want more places of workers than there may be
	passes     float64    // of the line that was let in last, see Line.passes
	actions    []Action
}

// An Action is what the caller has to do for a line.
type Action struct {
	Line   *Line
	Places int           // start a worker with so many places
	Rest   time.Duration // instead of that: call Rested after this
	Serve  func()        // call it instead: it is the turn of a receiver of another node
}

// Wake sees to it that a worker or a receiver takes what a line has ready. The actions are valid
// until the next call.
func (b *Board) Wake(l *Line) []Action {
	b.actions = b.actions[:0]
	b.wake(l)
	return b.actions
}

func (b *Board) wake(l *Line) {
	if b.still(l) {
		return
	}
	if l.Allowed(1) == 0 {
		b.rest(l)
		return
	}
	if l.Policy.Pulled {
		if l.Reservers.remoteInFront() && b.Room() <= 0 {
			b.Hold(l) // a receiver of this node gets an error; one of another node waits on
			return
		}
		b.wakeReceiver(l, l.Allowed(l.Takeable()))
		return
	}
	if l.AsyncSettle && b.Room() <= 0 {
		b.Hold(l)
		return
	}
	for b.wants(l) {
		if len(b.contenders) > 0 || b.Workers >= b.MaxDeliveries {
			b.contend(l)
			b.place()
			return
		}
		b.start(l)
	}
}

// wakeReceiver wakes the receiver of a line that has waited longest, if it has work for it.
func (b *Board) wakeReceiver(l *Line, tasks int) {
	if t := l.Reservers.Wake(tasks); t != nil && t.Serve != nil {
		b.actions = append(b.actions, Action{Line: l, Serve: t.Serve})
	}
}

// WakeReceivers wakes all sleeping receivers of a line: there is nothing for them any more.
func (b *Board) WakeReceivers(l *Line) []Action {
	b.actions = b.actions[:0]
	for l.Reservers.Queue.Len() > 0 {
		b.wakeReceiver(l, math.MaxInt)
	}
	return b.actions
}

// still reports whether nothing may begin for a line, or there is nothing to begin.
func (b *Board) still(l *Line) bool {
	return l.Policy.Stopped || b.Ended || b.Paused || l.still() || l.Waiting() == 0
}

// Neglected reports whether a line has ready tasks that a worker or a receiver could take, and none
// is on the way to them: a wake-up was lost. A goroutine that gives the lock up has called Wake
// first, so outside a fault it is never so.
func (b *Board) Neglected(l *Line) bool {
	switch {
	case b.still(l) || l.Allowed(1) == 0 || l.resting || l.contending != 0:
		return false
	case l.Policy.Pulled:
		return l.Reservers.Woken == 0 && l.Reservers.Queue.Len() > 0 && b.Room() > 0
	case l.AsyncSettle && b.Room() <= 0:
		return false
	}
	return l.Workers < min(l.Policy.Concurrency, l.Busy+l.Allowed(l.Waiting()))
}

// rest has a line that has no token wait until it has one.
func (b *Board) rest(l *Line) {
	if l.resting {
		return
	}
	l.resting = true
	missing := 1 - l.limiter.tokens()
	pause := time.Duration(math.Ceil(missing/float64(l.limiter.Limit())*float64(time.Second))) + time.Microsecond
	b.actions = append(b.actions, Action{Line: l, Rest: max(pause, time.Microsecond)})
}

// Rested ends a line's rest.
func (b *Board) Rested(l *Line) []Action {
	l.resting = false
	return b.Wake(l)
}

// Room returns how many more deliveries MaxInFlight allows that only a receipt can settle. It may
// be negative: receipts of before a restart are honoured beyond it.
func (b *Board) Room() int { return b.MaxInFlight - b.LeasedOut - b.ReservedInFlight }

// Hold remembers a line that finds no room, for Free.
func (b *Board) Hold(l *Line) {
	if !l.held {
		l.held = true
		b.held = append(b.held, l)
	}
}

// Free gives up places that counted against MaxInFlight. A line that was kept waiting by that bound
// may go on.
func (b *Board) Free(leasedOut, reserved int) []Action {
	b.actions = b.actions[:0]
	full := b.Room() <= 0
	b.LeasedOut -= leasedOut
	b.ReservedInFlight -= reserved
	if !full || b.Room() <= 0 {
		return nil
	}
	held := b.held
	b.held = nil // some may be held again
	for _, l := range held {
		l.held = false
		b.wake(l)
	}
	return b.actions
}

// RaisedFor returns what a backlog raises a line's concurrency to, be it one that this node
// offloads from another one; 0 if there is none or if the line has one of its own.
func (b *Board) RaisedFor(l *Line) int {
	if !b.Raised && l.Offloads == 0 || l.Policy.Fixed || !l.Policy.Delivered {
		return 0
	}
	return b.MaxConcurrency
}

// Surplus reports whether a line has more workers than it should have: its settings have changed,
// or a backlog has gone.
func (b *Board) Surplus(l *Line) bool {
	return l.Workers > l.Policy.Concurrency &&
		(l.Workers > b.RaisedFor(l) || b.Workers+b.LeasedOut > b.MaxInFlight)
}

// maxBatch is how many tasks a worker delivers at once at most.
const maxBatch = 256

// PlacesOfOne returns how many deliveries at once one worker makes for a line: one, or, if it
// delivers batches, half of what the line may have. A second batch is then made up while the first
// one is under way.
//
// Example: with a concurrency of 64 there are two workers with 32 places each; raised to 1024 by a
// backlog, there are more, with 256 places.
func (b *Board) PlacesOfOne(l *Line) int {
	if !l.Policy.Batches {
		return 1
	}
	return min(max(max(l.Policy.Concurrency, b.RaisedFor(l))/2, 1), maxBatch)
}

// start has a worker started for a line that wants one, in one place or several: a line's workers
// are counted by the deliveries that they may be making.
func (b *Board) start(l *Line) {
	most := max(l.Policy.Concurrency-l.Workers, min(b.RaisedFor(l)-l.Workers, b.MaxInFlight-b.Workers-b.LeasedOut))
	places := min(b.PlacesOfOne(l), most, b.MaxDeliveries-b.Workers)
	if l.lacks {
		places, l.probe = min(places, 1), probeSent
	}
	l.Workers += places
	b.Workers += places
	b.actions = append(b.actions, Action{Line: l, Places: places})
}

// EndWorker takes back the places of a worker that ends.
func (b *Board) EndWorker(l *Line, places int) []Action {
	b.actions = b.actions[:0]
	l.Workers -= places
	b.Workers -= places
	l.endProbe()
	b.place()
	b.wake(l)
	return b.actions
}

// contenders are the lines that want more places than they have.
//
// A worker takes one of MaxDeliveries places, or several if it delivers batches. While there are
// enough, a line has as many as its concurrency allows. When they are all taken, lines share them
// by weight: those that want more are contenders, and a worker that has finished a delivery gives
// its place up if a contender has a better claim to it.
//
// The better claim is that of the line with fewer places for its weight: so a topic with receivers
// that hang holds no more than its share, however long they take. Between equals it is that of the
// line which has had fewer passes for its weight, as in stride scheduling (Waldspurger and Weihl,
// "Stride Scheduling", 1995): so a single place, too, goes round by weight, and no topic starves.
type contenders []*Line

// A share is what a line's claim to a place is judged by: the smaller one comes first.
type share struct{ places, passes float64 }

func (c share) before(o share) bool {
	return c.places < o.places || c.places == o.places && c.passes < o.passes
}

// share returns that of a line as it would be with some places less.
func (l *Line) share(less int) share {
	return share{float64(l.Workers-less) / float64(l.Policy.Weight), l.passes}
}

func (c contenders) Len() int           { return len(c) }
func (c contenders) Less(i, j int) bool { return c[i].share(0).before(c[j].share(0)) }
func (c contenders) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].contending, c[j].contending = i+1, j+1
}
func (c *contenders) Push(x any) {
	l := x.(*Line)
	*c = append(*c, l)
	l.contending = len(*c)
}
func (c *contenders) Pop() any {
	old := *c
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*c = old[:len(old)-1]
	l.contending = 0
	return l
}

// Contenders returns how many lines want more places than there may be.
func (b *Board) Contenders() int { return len(b.contenders) }

// wants reports whether a line could use one more worker.
func (b *Board) wants(l *Line) bool {
	if l.Policy.Stopped || b.Ended || b.Paused || l.still() || !l.Policy.Delivered || l.AsyncSettle && b.Room() <= 0 {
		return false
	}
	wanted := l.Busy + l.Allowed(l.Waiting())
	return l.Workers < min(l.Policy.Concurrency, wanted) ||
		l.Workers < min(b.RaisedFor(l), wanted) && b.Workers+b.LeasedOut < b.MaxInFlight
}

// contend makes a line a contender, or finds its place among them anew. A line that has not been
// one for long does not make up for it: it begins where the others are.
func (b *Board) contend(l *Line) {
	if l.contending != 0 {
		heap.Fix(&b.contenders, l.contending-1)
		return
	}
	l.passes = max(l.passes, b.passes)
	heap.Push(&b.contenders, l)
}

// place gives free places to the contenders.
func (b *Board) place() {
	for b.Workers < b.MaxDeliveries {
		l := b.foremost()
		if l == nil {
			return
		}
		b.passes = max(b.passes, l.passes)
		b.start(l)
		heap.Fix(&b.contenders, 0)
	}
}

// foremost returns the contender with the best claim, or nil if there is none. Those before it that
// want nothing any more leave.
func (b *Board) foremost() *Line {
	for len(b.contenders) > 0 {
		l := b.contenders[0]
		if b.wants(l) {
			return l
		}
		heap.Pop(&b.contenders)
		b.wake(l) // it may have to wait for MaxInFlight, or its rate, instead
	}
	return nil
}

// CountPasses counts deliveries that a worker has made, and returns how many of its places the
// worker keeps: the others are better given to other lines, and have been.
func (b *Board) CountPasses(l *Line, deliveries, places int) (kept int, actions []Action) {
	b.actions = b.actions[:0]
	if len(b.contenders) == 0 {
		return places, nil
	}
	l.passes += float64(deliveries) / float64(l.Policy.Weight)
	for places > 0 && b.outshared(l) {
		places--
		l.Workers--
		b.Workers--
		b.place()
	}
	if places > 0 {
		b.wake(l) // it may want back what it has given
	}
	return places, b.actions
}

// outshared reports whether a contender has a better claim to a place of a line.
func (b *Board) outshared(l *Line) bool {
	if l.contending != 0 {
		heap.Fix(&b.contenders, l.contending-1)
	}
	other := b.foremost()
	return other != nil && other != l && other.share(0).before(l.share(1))
}
