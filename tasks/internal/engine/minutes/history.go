package minutes

import (
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A History has what was counted of all topics together, by the minute of the wall clock. What is
// counted goes into the minute that was under way when the history was turned last, which is at
// each sweep: so counting reads no clock.
type History struct {
	minutes [task.HistoryMinutes + 1]PastMinute
	at      int       // position of the minute under way
	since   time.Time // when counting began
	// Turned is when it was turned last, on the monotonic clock of Recent.
	Turned time.Duration
	// Ended has what has ended, by topic and minute of the deadline. It is turned as well.
	Ended *Ended
}

// A PastMinute has what was counted of all topics in a minute.
type PastMinute struct {
	Minute
	Scheduled, Delivered, Died, Cancelled int64
}

// Now returns the minute under way.
func (h *History) Now() *PastMinute { return &h.minutes[h.at] }

// Turn begins the minute of a time unless it is under way. The oldest minute is forgotten. now is
// the same time on the monotonic clock.
func (h *History) Turn(wall time.Time, now time.Duration) {
	h.Turned = now
	if h.Ended == nil {
		h.Ended = NewEnded()
	}
	h.Ended.Turn(wall.UnixMilli())
	if h.since.IsZero() {
		h.since = wall
	}
	minute := wall.Unix() / 60
	if h.Now().minute == minute {
		return
	}
	h.at = int(minute % int64(len(h.minutes)))
	if h.Now().minute != minute {
		h.minutes[h.at] = PastMinute{Minute: Minute{minute: minute}}
	}
}

// Describe returns what was counted up to a time, minute by minute.
func (h *History) Describe(wall time.Time) task.History {
	all, last := task.History{Since: h.since.UTC()}, wall.Unix()/60
	for minute := max(last-task.HistoryMinutes, min(last, all.Since.Unix()/60)); minute <= last; minute++ {
		m := task.PastMinute{At: time.Unix(60*minute, 0).UTC()}
		if p := &h.minutes[minute%int64(len(h.minutes))]; p.minute == minute {
			m.Scheduled, m.Delivered, m.Failed, m.Died, m.Cancelled = p.Scheduled, p.Delivered, int64(p.Failed), p.Died, p.Cancelled
			for i, n := range p.counts {
				m.Lateness.Counts[i] = int64(n)
			}
			m.Lateness.Max = p.max
		}
		all.Minutes = append(all.Minutes, m)
	}
	return all
}
