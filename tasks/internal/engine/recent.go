package engine

import (
	"time"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// recentSlots is how many slots of recentSlot a topic keeps: those of task.RecentTime, and the one
// that is being filled.
const (
	recentSlots = int(task.RecentTime/recentSlot) + 1
	recentSlot  = time.Minute
)

// staleLooks bounds how many stale items are dropped when the oldest ready task is looked for.
const staleLooks = 16

// A recent has the lateness of the first attempts that have begun within task.RecentTime, by the
// minute. A topic without any has none.
type recent [recentSlots]recentMinute

type recentMinute struct {
	minute int64 // on the monotonic clock, from 1
	counts [len(task.LatenessBounds) + 1]uint32
	max    time.Duration
}

// observe counts a first attempt that begins now, in its bucket of task.LatenessBucket.
func (r *recent) observe(now, late time.Duration, bucket int) {
	minute := minuteOf(now)
	s := &r[minute%int64(len(r))]
	if s.minute != minute {
		*s = recentMinute{minute: minute}
	}
	s.counts[bucket]++
	s.max = max(s.max, late)
}

// addTo adds what is not too old. It reports false if all is.
func (r *recent) addTo(l *task.RecentLateness, now time.Duration) (any bool) {
	minute := minuteOf(now)
	for i := range r {
		s := &r[i]
		if s.minute == 0 || minute-s.minute >= int64(len(r)) {
			continue
		}
		any = true
		for k, n := range s.counts {
			l.Counts[k] += int64(n)
		}
		l.Max = max(l.Max, s.max)
	}
	return any
}

func minuteOf(now time.Duration) int64 { return int64(now/recentSlot) + 1 }

// observeLocked counts how late a first attempt begins.
func (t *Topic) observeLocked(now, late time.Duration) {
	bucket := t.Counts.Lateness.Observe(late)
	if t.recent == nil {
		t.recent = new(recent)
	}
	t.recent.observe(now, late, bucket)
}

// recentLocked adds how late the tasks of a topic are now to its figures.
func (s *Engine) recentLocked(t *Topic, c *task.Counts) {
	if t.recent != nil && !t.recent.addTo(&c.Recent, s.Elapsed()) {
		t.recent = nil
	}
	oldest, ok := t.Queue.Oldest(staleLooks, func(v uint64) bool {
		_, _, live := s.Store.Unpack(v, store.Ready)
		return !live
	})
	if !ok {
		return
	}
	now := s.Now()
	c.ReadyOldest = FromMillis(oldest)
	c.Recent.Max = max(c.Recent.Max, time.Duration(now-oldest)*time.Millisecond)
	var times, older [len(task.LatenessBounds)]int64
	for i, bound := range task.LatenessBounds {
		times[i] = now - bound.Milliseconds()
	}
	t.Queue.LiveBefore(times[:], older[:])
	younger := int64(t.Queue.Live)
	for i, n := range older {
		c.Recent.Counts[i] += younger - n
		younger = n
	}
	c.Recent.Counts[len(older)] += younger
}
