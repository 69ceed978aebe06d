package engine

import (
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// recentSlots is how many slots of recentSlot a topic keeps: those of task.RecentTime, and the one
// that is being filled.
const (
	recentSlots = int(task.RecentTime/recentSlot) + 1
	recentSlot  = time.Minute
)

// staleLooks bounds how many stale items are dropped when the oldest ready task is looked for. Most
// have been trimmed before: many are in front only if the newest tasks were cancelled first.
const staleLooks = 1024

// A recent has the lateness of the first attempts that have begun within task.RecentTime, and how
// many attempts have failed within it, by the minute. A topic without any has none.
type recent [recentSlots]recentMinute

type recentMinute struct {
	minute int64 // on the monotonic clock, from 1; in a history of the Unix time
	counts [len(task.LatenessBounds) + 1]uint32
	failed uint32
	max    time.Duration
}

// recentAt returns the minute under way.
func (t *Topic) recentAt(now time.Duration) *recentMinute {
	if t.recent == nil {
		t.recent = new(recent)
	}
	minute := minuteOf(now)
	s := &t.recent[minute%int64(recentSlots)]
	if s.minute != minute {
		*s = recentMinute{minute: minute}
	}
	return s
}

// addTo adds what is not too old. It reports false if all is.
func (r *recent) addTo(c *task.Counts, now time.Duration) (any bool) {
	minute := minuteOf(now)
	for i := range r {
		s := &r[i]
		if s.minute == 0 || minute-s.minute >= int64(len(r)) {
			continue
		}
		any = true
		for k, n := range s.counts {
			c.Recent.Counts[k] += int64(n)
		}
		c.Recent.Max = max(c.Recent.Max, s.max)
		c.FailedRecent += int64(s.failed)
	}
	return any
}

// failures returns how many attempts have failed, of what is not too old.
func (r *recent) failures(now time.Duration) (n int64) {
	minute := minuteOf(now)
	for i := range r {
		if s := &r[i]; s.minute != 0 && minute-s.minute < int64(len(r)) {
			n += int64(s.failed)
		}
	}
	return n
}

func minuteOf(now time.Duration) int64 { return int64(now/recentSlot) + 1 }

// observeLocked counts how late a first attempt begins.
func (s *Engine) observeLocked(t *Topic, now, late time.Duration) {
	bucket := t.Counts.Lateness.Observe(late)
	t.recentAt(now).observe(late, bucket)
	s.TopicTable.History.now().observe(late, bucket)
}

// observe counts a duration in its bucket of task.LatenessBucket.
func (m *recentMinute) observe(late time.Duration, bucket int) {
	m.counts[bucket]++
	m.max = max(m.max, late)
}

// recentLocked adds how late the tasks of a topic are now to its figures.
func (s *Engine) recentLocked(t *Topic, c *task.Counts) {
	if t.recent != nil && !t.recent.addTo(c, s.Elapsed()) {
		t.recent = nil
	}
	oldest, ok := t.Queue.Oldest(staleLooks, s.staleLocked)
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

// A history has what was counted of all topics together, by the minute of the wall clock. What is
// counted goes into the minute that was under way when the history was turned last, which is at
// each sweep: so counting reads no clock. Guarded by Engine.Mu.
type history struct {
	minutes [task.HistoryMinutes + 1]pastMinute
	at      int       // position of the minute under way
	since   time.Time // when counting began
}

type pastMinute struct {
	recentMinute
	scheduled, delivered, died, cancelled int64
}

// now returns the minute under way.
func (h *history) now() *pastMinute { return &h.minutes[h.at] }

// turn begins the minute of a time unless it is under way. The oldest minute is forgotten.
func (h *history) turn(wall time.Time) {
	if h.since.IsZero() {
		h.since = wall
	}
	minute := wall.Unix() / 60
	if h.now().minute == minute {
		return
	}
	h.at = int(minute % int64(len(h.minutes)))
	if h.now().minute != minute {
		h.minutes[h.at] = pastMinute{recentMinute: recentMinute{minute: minute}}
	}
}

// History is tasks.Scheduler.History.
func (s *Engine) History() task.History {
	wall := s.Config.Clock()
	s.Mu.Lock()
	h := &s.TopicTable.History
	h.turn(wall)
	past := h.minutes
	all := task.History{Since: h.since.UTC()}
	s.Mu.Unlock()
	last := wall.Unix() / 60
	for minute := max(last-task.HistoryMinutes, min(last, all.Since.Unix()/60)); minute <= last; minute++ {
		m := task.PastMinute{At: time.Unix(60*minute, 0).UTC()}
		if p := &past[minute%int64(len(past))]; p.minute == minute {
			m.Scheduled, m.Delivered, m.Failed, m.Died, m.Cancelled = p.scheduled, p.delivered, int64(p.failed), p.died, p.cancelled
			for i, n := range p.counts {
				m.Lateness.Counts[i] = int64(n)
			}
			m.Lateness.Max = p.max
		}
		all.Minutes = append(all.Minutes, m)
	}
	return all
}
