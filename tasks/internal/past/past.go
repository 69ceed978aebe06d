package past

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// Bounds of what a node keeps.
const (
	// Shown is of how many topics a node keeps figures of their own, of each minute and each hour:
	// of those in which most has happened.
	Shown = 32
	// MaxWaiting bounds what waits for the ledger, in bytes.
	MaxWaiting = 1 << 20
	// KeepWithin bounds one write of the ledger.
	KeepWithin = 5 * time.Second
	// keepAgain is when one that has failed is repeated.
	keepAgain = 10 * time.Second
	// keptMinutes is how many minutes a node has in memory, and keptHours how many hours.
	keptMinutes, keptHours = task.HistoryMinutes, 2
)

// Options of a Past.
type Options struct {
	Archive recovery.Archive // nil: the past ends with the process
	Node    string
	Clock   func() time.Time
	// Total returns what was counted of all topics in the last hour.
	Total func() task.History
	// Topics visits the figures of all topics; Topic returns those of one.
	Topics func(visit func(name string, c *task.Counts))
	Topic  func(name string) (task.Counts, bool)
	// Down reports whether the ledger does not answer.
	Down func() bool
	// Ended visits how tasks have ended, by topic and minute of their deadline, from one minute on
	// until before another one: those of a minute in an order that stays. nil: they are not kept.
	// The visit is short, and keeps nothing of what it is given.
	Ended func(from, to int64, visit func(topic string, minute int64, c *task.WaveCounts))
}

// A Past has what this process has counted. Its methods may be called from any goroutine, Tick from
// one at a time.
type Past struct {
	Options
	name    string       // of its rows
	Dropped atomic.Int64 // rows that the ledger has not taken, see MaxWaiting

	mu      sync.Mutex // guards everything below; nothing is called under it
	start   time.Time  // of the process; never changes
	began   time.Time  // when the figures were looked at last
	before  map[string]figures
	minutes []span // the oldest first
	hours   []span // the last one is under way
	waiting []waiting
	bytes   int // of what waits
	down    time.Time
	failed  time.Time // when the ledger has last refused rows
	actions actions

	waves waves // used by Tick alone
}

// A waiting row was not taken by the ledger yet.
type waiting struct {
	series recovery.Series
	row    recovery.Row
}

// A span is what was counted in a minute or an hour.
type span struct {
	at     time.Time
	total  task.PastMinute
	topics map[string]*task.PastMinute
	cut    bool // topics were left out in which something has happened
}

// figures are those of a topic since the start of the process.
type figures struct {
	scheduled, delivered, failed, died, cancelled int64
	lateness                                      task.Buckets
}

func figuresOf(c *task.Counts) figures {
	return figures{c.Scheduled, c.Delivered, c.Failed, c.Died, c.Cancelled, c.Lateness.Counts}
}

// since returns what was counted since an earlier look. A topic that was forgotten and is back has
// begun anew.
func (f *figures) since(o *figures) (m task.PastMinute) {
	if f.scheduled < o.scheduled || f.delivered < o.delivered || f.failed < o.failed || f.died < o.died || f.cancelled < o.cancelled {
		o = &figures{}
	}
	m = task.PastMinute{Scheduled: f.scheduled - o.scheduled, Delivered: f.delivered - o.delivered, Failed: f.failed - o.failed, Died: f.died - o.died, Cancelled: f.cancelled - o.cancelled}
	for i, n := range f.lateness {
		if n -= o.lateness[i]; n != 0 {
			m.Lateness.Counts[i] = n
			m.Lateness.Max = boundOf(i)
		}
	}
	return m
}

// boundOf returns the upper bound of a bucket, and of the last one twice that of the one before.
func boundOf(bucket int) time.Duration {
	if bucket < len(task.LatenessBounds) {
		return task.LatenessBounds[bucket]
	}
	return 2 * task.LatenessBounds[len(task.LatenessBounds)-1]
}

// activity is how much has happened.
func activity(m *task.PastMinute) int64 {
	return m.Scheduled + m.Delivered + m.Failed + m.Died + m.Cancelled + m.Lateness.Counts.Total()
}

// New returns the past of a process that begins now.
func New(o Options) *Past {
	now := o.Clock()
	return &Past{Options: o, name: o.Node + " " + strconv.FormatInt(now.UnixMilli(), 36), start: now, began: now, before: map[string]figures{}}
}

// Tick does what is due: it enters minutes that are over, notes whether the ledger answers, and has
// the ledger take what waits. It is called about once a second; last says that no other call
// follows, so that the minute under way is entered as well.
func (p *Past) Tick(ctx context.Context, last bool) {
	now := p.Clock()
	p.noteDown(now)
	minute := now.Truncate(time.Minute)
	p.mu.Lock()
	over := !p.began.Truncate(time.Minute).Equal(minute) // a clock that was set back ends one, too
	p.mu.Unlock()
	if over || last {
		p.turn(now, last)
	}
	p.mu.Lock()
	rest := now.Sub(p.failed).Abs() < keepAgain
	p.mu.Unlock()
	if !rest || last {
		p.keep(ctx, now)
		p.keepWaves(ctx, now, last)
	}
}

// noteDown marks an outage of the ledger once it is over.
func (p *Past) noteDown(now time.Time) {
	down := p.Down()
	p.mu.Lock()
	since := p.down
	switch {
	case down && since.IsZero():
		p.down = now
	case !down:
		p.down = time.Time{}
	}
	p.mu.Unlock()
	if !down && !since.IsZero() {
		p.Mark(task.Mark{At: since, Until: now, Kind: task.MarkOutage, Node: p.Node})
	}
}

// turn enters what was counted since the figures were looked at last. What has happened in a topic
// counts in the last minute that is over.
func (p *Past) turn(now time.Time, last bool) {
	history := p.Total()
	p.mu.Lock()
	before := p.before
	p.mu.Unlock()
	type topic struct {
		name string
		figures
	}
	topics := make([]topic, 0, len(before)) // little is done in the visit, under locks
	p.Topics(func(name string, c *task.Counts) {
		if f := figuresOf(c); f != (figures{}) {
			topics = append(topics, topic{name, f})
		}
	})
	after := make(map[string]figures, len(topics))
	var active []topicSpan
	for i := range topics {
		t := &topics[i]
		after[t.name] = t.figures
		earlier := before[t.name]
		if m := t.since(&earlier); activity(&m) > 0 {
			active = append(active, topicSpan{t.name, m})
		}
	}
	active, cut := most(active)

	p.mu.Lock()
	defer p.mu.Unlock()
	from := p.began.Truncate(time.Minute)
	current := now.Truncate(time.Minute)
	if now.Before(p.began) {
		from = current // what was counted since is of no time that the clock knows
	}
	p.before, p.began = after, now
	for i := range history.Minutes {
		m := &history.Minutes[i]
		if m.At.Before(from) || !m.At.Before(current) && !last {
			continue
		}
		s := span{at: m.At, total: *m}
		if i+1 == len(history.Minutes) || !history.Minutes[i+1].At.Before(current) && !last {
			s.topics, s.cut = make(map[string]*task.PastMinute, len(active)), cut
			for k := range active {
				s.topics[active[k].name] = &active[k].PastMinute
			}
		}
		p.enterLocked(s)
	}
}

type topicSpan struct {
	name string
	task.PastMinute
}

// most returns the topics in which most has happened, and whether others were left out.
func most(active []topicSpan) (shown []topicSpan, cut bool) {
	slices.SortFunc(active, func(a, b topicSpan) int {
		return cmp.Or(cmp.Compare(activity(&b.PastMinute), activity(&a.PastMinute)), strings.Compare(a.name, b.name))
	})
	return active[:min(Shown, len(active))], len(active) > Shown
}

// enterLocked enters a minute, and adds it to its hour.
func (p *Past) enterLocked(s span) {
	p.minutes = append(p.minutes, s)
	p.minutes = slices.Delete(p.minutes, 0, max(0, len(p.minutes)-keptMinutes))
	p.waitLocked(recovery.MinuteRows, p.rowsOf(&s)...)
	at := s.at.Truncate(time.Hour)
	if n := len(p.hours); n == 0 || !p.hours[n-1].at.Equal(at) {
		p.hours = append(p.hours, span{at: at, total: task.PastMinute{At: at}, topics: make(map[string]*task.PastMinute)})
		p.hours = slices.Delete(p.hours, 0, max(0, len(p.hours)-keptHours))
	}
	h := &p.hours[len(p.hours)-1]
	h.total.Add(&s.total)
	h.cut = h.cut || s.cut
	for name, m := range s.topics {
		if sum := h.topics[name]; sum != nil {
			sum.Add(m)
		} else if len(h.topics) < 2*Shown {
			h.topics[name] = new(*m)
		} else {
			h.cut = true
		}
	}
	p.waitLocked(recovery.HourRows, p.rowsOf(h)...)
}

// rowsOf returns the rows of a span.
func (p *Past) rowsOf(s *span) []recovery.Row {
	rows := []recovery.Row{{At: s.at, Name: p.name, Value: encode(&s.total, s.cut)}}
	for name, m := range s.topics {
		rows = append(rows, recovery.Row{Part: name, At: s.at, Name: p.name, Value: encode(m, false)})
	}
	return rows
}

// waitLocked has rows wait for the ledger. One takes the place of an earlier one of the same time,
// part and name. The oldest are dropped beyond MaxWaiting.
func (p *Past) waitLocked(s recovery.Series, rows ...recovery.Row) {
	if p.Archive == nil {
		return
	}
	for _, r := range rows {
		same := func(w waiting) bool {
			return w.series == s && w.row.Part == r.Part && w.row.Name == r.Name && w.row.At.Equal(r.At)
		}
		if at := slices.IndexFunc(p.waiting, same); at >= 0 {
			p.bytes -= p.waiting[at].row.Size()
			p.waiting = slices.Delete(p.waiting, at, at+1)
		}
		p.waiting = append(p.waiting, waiting{s, r})
		p.bytes += r.Size()
	}
	dropped := 0
	for ; p.bytes > MaxWaiting; dropped++ {
		p.bytes -= p.waiting[dropped].row.Size()
	}
	p.waiting = slices.Delete(p.waiting, 0, dropped)
	p.Dropped.Add(int64(dropped))
}

// keep has the ledger take what waits.
func (p *Past) keep(ctx context.Context, now time.Time) {
	p.mu.Lock()
	all := slices.Clone(p.waiting)
	p.mu.Unlock()
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, KeepWithin)
	defer cancel()
	for _, s := range []recovery.Series{recovery.MinuteRows, recovery.HourRows, recovery.MarkRows, recovery.ActionRows} {
		var rows []recovery.Row
		for i := range all {
			if all[i].series == s {
				rows = append(rows, all[i].row)
			}
		}
		if len(rows) == 0 {
			continue
		}
		err := p.Archive.Keep(ctx, s, now, rows)
		if errors.Is(err, recovery.ErrRow) { // no ledger ever takes them
			p.Dropped.Add(int64(len(rows)))
		} else if err != nil {
			p.mu.Lock()
			p.failed = p.Clock()
			p.mu.Unlock()
			return // they wait on; Dropped tells
		}
		p.kept(s, rows)
	}
}

// kept removes rows that the ledger has taken, unless others have taken their place meanwhile.
func (p *Past) kept(s recovery.Series, rows []recovery.Row) {
	taken := make(map[*byte]bool, len(rows))
	for i := range rows {
		taken[&rows[i].Value[0]] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = slices.DeleteFunc(p.waiting, func(w waiting) bool {
		gone := w.series == s && taken[&w.row.Value[0]]
		if gone {
			p.bytes -= w.row.Size()
		}
		return gone
	})
}
