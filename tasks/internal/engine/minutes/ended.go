package minutes

import (
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// The bounds of an Ended. A row takes up about 130 bytes with its place in a map, so all of them at
// most 14 MB, and 6 MB more during a look.
const (
	// Remembered is for how many minutes after its own a minute is remembered, and from how many
	// minutes before it on tasks are counted in it.
	Remembered = 24 * 60
	// MaxRows bounds the rows with a topic of their own. What ends beyond counts in the row of its
	// minute that stands for others.
	MaxRows = 100_000
	// mostWaits bounds the looks that wait for another one.
	mostWaits = 8
)

// An Ended counts what has ended, by topic and minute of the deadline.
type Ended struct {
	minutes [2*Remembered + 1]minuteRows
	named   int   // rows with a topic of their own
	Since   int64 // when counting began, Unix ms
	Now     int64 // when it was turned last, Unix ms

	counted func(slot uint32) bool // see Look
	late    []*Row                 // those with late ends
	// Looks has room for who looks, and Waits for those that wait for it.
	Looks, Waits chan struct{}
}

// NewEnded returns one that has counted nothing.
func NewEnded() *Ended {
	return &Ended{Looks: make(chan struct{}, 1), Waits: make(chan struct{}, mostWaits)}
}

// Look begins a look at a wave by a caller that goes over the slots of tasks, and counts those that
// have not ended. A task that ends once it was counted, as counted reports of its slot, counts as
// ended only after the look.
func (e *Ended) Look(counted func(slot uint32) bool) { e.counted = counted }

// Looked ends a look. It counts late ends in at most n rows, and reports whether these were all.
func (e *Ended) Looked(n int) (all bool) {
	e.counted = nil
	for n = min(n, len(e.late)); n > 0; n-- {
		last := len(e.late) - 1
		r := e.late[last]
		e.late[last], e.late = nil, e.late[:last] // it may be forgotten while others wait
		r.Counts, r.late = r.All(), nil
	}
	if len(e.late) > 0 {
		return false
	}
	e.late = nil
	return true
}

// In returns what counts an end in a row, of a task in a slot.
func (e *Ended) In(r *Row, slot uint32) *Counts {
	if e.counted == nil {
		return &r.Counts
	}
	return e.inLook(r, slot)
}

func (e *Ended) inLook(r *Row, slot uint32) *Counts {
	if !e.counted(slot) {
		return &r.Counts
	}
	if r.late == nil {
		r.late, e.late = new(Counts), append(e.late, r)
	}
	return r.late
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
	late *Counts // see Ended.Look
}

// All returns the counts with late ends.
func (r *Row) All() Counts {
	c := r.Counts
	if r.late != nil {
		c.add(r.late)
	}
	return c
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

func (c *Counts) add(o *Counts) {
	c.Delivered += o.Delivered
	c.Dead += o.Dead
	c.Cancelled += o.Cancelled
	c.Skipped += o.Skipped
	c.Last = max(c.Last, o.Last)
}
