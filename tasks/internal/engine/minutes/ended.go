package minutes

import (
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// The bounds of an Ended. A row takes up about 130 bytes with its place in a map, so all of them at
// most 14 MB.
const (
	// Remembered is for how many minutes after its own a minute is remembered, and from how many
	// minutes before it on tasks are counted in it.
	Remembered = 24 * 60
	// MaxRows bounds the rows with a topic of their own. What ends beyond counts in the row of its
	// minute that stands for others.
	MaxRows = 100_000
)

// An Ended counts what has ended, by topic and minute of the deadline.
type Ended struct {
	minutes [2*Remembered + 1]minuteRows
	named   int   // rows with a topic of their own
	Since   int64 // when counting began, Unix ms
	Now     int64 // when it was turned last, Unix ms
}

// A minuteRows has the rows of one minute. Rows are only added, so that they can be visited in
// pieces.
type minuteRows struct {
	minute int64
	rows   []*Row
	at     map[string]int // by topic
}

// A Row counts what has ended of the tasks of one topic that were due in one minute.
type Row struct {
	Topic  string // empty: others, beyond MaxRows
	Minute int64  // Unix
	Counts
}

// Counts say how tasks have ended. Those of a node may be less than 0: a task that has died at
// another one may be requeued here.
type Counts struct {
	Delivered, Dead, Cancelled, Skipped int64
	Last                                int64 // the last end, by Ended.Now, Unix ms; 0: none
}

// Turn tells what time it is, in Unix milliseconds, and forgets what is too old.
func (e *Ended) Turn(now int64) {
	if e.Since == 0 {
		e.Since, e.Now = now, now
	}
	oldest := MinuteOf(now) - Remembered
	for m := max(MinuteOf(e.Now)-Remembered, oldest-int64(len(e.minutes))); m < oldest; m++ {
		if old := e.of(m); old.minute < oldest {
			e.forget(old)
		}
	}
	e.Now = now
}

func (e *Ended) of(minute int64) *minuteRows {
	n := int64(len(e.minutes))
	return &e.minutes[(minute%n+n)%n]
}

func (e *Ended) forget(m *minuteRows) {
	for _, r := range m.rows {
		if r.Topic != "" {
			e.named--
		}
	}
	*m = minuteRows{}
}

// Row returns the row of a topic and a minute, making it if needed; nil if that minute is not
// remembered.
func (e *Ended) Row(topic string, minute int64) *Row {
	if now := MinuteOf(e.Now); minute < now-Remembered || minute > now+Remembered {
		return nil
	}
	m := e.of(minute)
	if m.minute != minute {
		e.forget(m)
		m.minute, m.at = minute, make(map[string]int)
	}
	i, known := m.at[topic]
	if !known && topic != "" && e.named == MaxRows {
		topic = ""
		i, known = m.at[topic]
	}
	if known {
		return m.rows[i]
	}
	if topic != "" {
		e.named++
	}
	m.at[topic] = len(m.rows)
	m.rows = append(m.rows, &Row{Topic: topic, Minute: minute})
	return m.rows[len(m.rows)-1]
}

// Visit visits at most n rows of a minute from a position on, and returns the position behind them;
// 0: there are no more.
func (e *Ended) Visit(minute int64, from, n int, visit func(*Row)) (next int) {
	m := e.of(minute)
	if m.minute != minute {
		return 0
	}
	end := min(from+n, len(m.rows))
	for _, r := range m.rows[min(from, end):end] {
		visit(r)
	}
	if end == len(m.rows) {
		return 0
	}
	return end
}

// Wave returns the counts as those of a wave.
func (c *Counts) Wave() task.WaveCounts {
	w := task.WaveCounts{Delivered: c.Delivered, Dead: c.Dead, Cancelled: c.Cancelled, Skipped: c.Skipped}
	if c.Last != 0 {
		w.LastEnd = time.UnixMilli(c.Last).UTC()
	}
	return w
}

// Add adds what another row counts.
func (c *Counts) Add(o *Counts) {
	c.Delivered += o.Delivered
	c.Dead += o.Dead
	c.Cancelled += o.Cancelled
	c.Skipped += o.Skipped
	c.Last = max(c.Last, o.Last)
}
