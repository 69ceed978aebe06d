package engine

import (
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

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
