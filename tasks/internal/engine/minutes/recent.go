package minutes

import (
	"iter"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// recentSlots is how many slots of recentSlot a Recent has: those of task.RecentTime, and the one
// that is being filled.
const (
	recentSlots = int(task.RecentTime/recentSlot) + 1
	recentSlot  = time.Minute
)

// A Recent has the lateness of the first attempts that have begun within task.RecentTime, and how
// many attempts have failed within it, by the minute.
type Recent [recentSlots]Minute

// A Minute has what was counted in a minute.
type Minute struct {
	minute int64 // on the monotonic clock, from 1; in a history of the Unix time
	counts [len(task.LatenessBounds) + 1]uint32
	Failed uint32 // attempts
	// Delivered tasks, of whatever attempt.
	Delivered uint32
	max       time.Duration
}

// At returns the minute under way, or a later one that has begun in its place.
func (r *Recent) At(now time.Duration) *Minute {
	minute := minuteOf(now)
	m := &r[minute%int64(recentSlots)]
	if m.minute < minute {
		*m = Minute{minute: minute}
	}
	return m
}

// AddTo adds what is not too old. It reports false if all is.
func (r *Recent) AddTo(c *task.Counts, now time.Duration) (any bool) {
	for m := range r.since(now) {
		any = true
		for k, n := range m.counts {
			c.Recent.Counts[k] += int64(n)
		}
		c.Recent.Max = max(c.Recent.Max, m.max)
		c.FailedRecent += int64(m.Failed)
		c.DeliveredRecent += int64(m.Delivered)
	}
	return any
}

// Failures returns how many attempts have failed, of what is not too old.
func (r *Recent) Failures(now time.Duration) (n int64) {
	for m := range r.since(now) {
		n += int64(m.Failed)
	}
	return n
}

// Rate returns how many tasks a second were delivered, of what is not too old, since the first
// minute in which one was.
func (r *Recent) Rate(now time.Duration) float64 {
	n, first := int64(0), int64(0)
	for m := range r.since(now) {
		if n += int64(m.Delivered); m.Delivered > 0 && (first == 0 || m.minute < first) {
			first = m.minute
		}
	}
	if n == 0 {
		return 0
	}
	took := now - time.Duration(first-1)*recentSlot
	return float64(n) / max(took, time.Second).Seconds()
}

// since yields what is not too old.
func (r *Recent) since(now time.Duration) iter.Seq[*Minute] {
	return func(yield func(*Minute) bool) {
		for i := range r {
			if m := &r[i]; m.minute != 0 && minuteOf(now)-m.minute < int64(len(r)) && !yield(m) {
				return
			}
		}
	}
}

func minuteOf(now time.Duration) int64 { return int64(now/recentSlot) + 1 }

// Observe counts a duration in its bucket of task.LatenessBucket.
func (m *Minute) Observe(late time.Duration, bucket int) {
	m.counts[bucket]++
	m.max = max(m.max, late)
}
