package past

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// An ended row is what a process has counted of a topic.
type ended struct {
	topic string
	at    time.Time // the minute
	task.WaveCounts
}

func newArchive() *archive { return &archive{rows: map[recovery.Series]map[string]recovery.Row{}} }

// A process counts what has ended, and keeps that in a ledger that others share.
type process struct {
	*Past
	now  time.Time
	rows []ended
	down bool
}

func newProcess(node string, a recovery.Archive, now time.Time) *process {
	r := &process{now: now}
	r.Past = New(Options{
		Archive: a, Node: node, Clock: func() time.Time { return r.now }, Down: func() bool { return r.down },
		Total: func() task.History { return task.History{} }, Topics: func(func(string, *task.Counts)) {},
		Ended: func(from, to int64, visit func(string, int64, *task.WaveCounts)) {
			for minute := from; minute < to; minute++ {
				for i := range r.rows {
					if e := &r.rows[i]; e.at.Unix() == 60*minute {
						visit(e.topic, minute, &e.WaveCounts)
					}
				}
			}
		},
	})
	return r
}

func (r *process) kept(t *testing.T, q task.WaveQuery, node string, live map[string]time.Time) task.Wave {
	w := task.Wave{Complete: true}
	for _, at := range live {
		w.Since = at
	}
	r.Waves(t.Context(), q, node, live).AddTo(&w)
	return w
}

// What a process has counted stays once it is gone, counts once, and tells since when it is known.
func TestWavesAreKept(t *testing.T) {
	a := newArchive()
	began := time.Date(2026, 1, 2, 3, 0, 30, 0, time.UTC)
	minute := began.Truncate(time.Minute)
	q := task.WaveQuery{From: minute, To: minute.Add(time.Hour)}
	first := newProcess("a b", a, began)
	first.rows = []ended{
		{"x", minute, task.WaveCounts{Delivered: 300, LastEnd: began}}, {"y", minute, task.WaveCounts{Dead: -1, Cancelled: 2}},
		{"x", minute.Add(59 * time.Minute), task.WaveCounts{Skipped: 4}}, {"", minute, task.WaveCounts{Delivered: 5}},
	}
	first.Tick(t.Context(), false)
	first.rows[0].Delivered++
	first.Tick(t.Context(), false) // in the same minute: nothing is written
	again := newProcess("a b", a, began.Add(time.Hour))
	other := newProcess("c", a, began.Add(time.Hour))
	w := again.kept(t, q, "", map[string]time.Time{again.Name(): again.now})
	if c := w.Total(); c.Delivered != 305 || c.Dead != -1 || c.Cancelled != 2 || c.Skipped != 4 || !c.LastEnd.Equal(began) || !w.Complete || !w.Since.Equal(began) {
		t.Errorf("after a kill: %+v", w)
	}
	first.Tick(t.Context(), true)
	if w := again.kept(t, q, "a b", map[string]time.Time{again.Name(): again.now}); w.Total().Delivered != 306 || w.Others.Delivered != 5 {
		t.Errorf("after an end: %+v", w)
	}
	if w := again.kept(t, q, "", map[string]time.Time{first.Name(): began}); len(w.Topics) != 0 {
		t.Errorf("while it lives it counts twice: %+v", w)
	}
	if w := other.kept(t, q, "c", map[string]time.Time{other.Name(): other.now}); len(w.Topics) != 0 || !w.Since.Equal(other.now) {
		t.Errorf("of another node: %+v", w)
	}
	ofTopic := q
	ofTopic.Topic = "x"
	if w := again.kept(t, ofTopic, "", nil); w.Total().Delivered != 301 || w.Complete {
		t.Errorf("of one topic, while some are not known: %+v", w)
	}
	again.down = true
	if w := again.kept(t, q, "", map[string]time.Time{again.Name(): again.now}); w.Complete || !w.Since.Equal(again.now) {
		t.Errorf("while the ledger is down: %+v", w)
	}
	again.down, again.now = false, began.Add(30*time.Hour)
	if w := again.kept(t, q, "", map[string]time.Time{again.Name(): began}); !w.Since.Equal(minute.Add(6 * time.Hour)) {
		t.Errorf("30 hours later it is since %v", w.Since)
	}
}

// An archive that notes what it is given, and may have lost all of it.
type noting struct {
	recovery.Archive
	fails error
	calls []int // bytes of each
}

func (n *noting) Keep(ctx context.Context, s recovery.Series, now time.Time, rows []recovery.Row) error {
	bytes := 0
	for i := range rows {
		bytes += rows[i].Size()
	}
	if n.calls = append(n.calls, bytes); n.fails != nil {
		return n.fails
	}
	return n.Archive.Keep(ctx, s, now, rows)
}

// Many topics are written in pieces, what did not change is not written again, and what the ledger
// has refused or lost is written later.
func TestWavesAreBounded(t *testing.T) {
	n := &noting{Archive: newArchive()}
	began := time.Date(2026, 1, 2, 3, 0, 30, 0, time.UTC)
	minute := began.Truncate(time.Minute)
	q := task.WaveQuery{From: minute, To: minute.Add(time.Minute)}
	p := newProcess("n", n, began)
	const topics = 5000
	for i := range topics {
		name := strconv.Itoa(i)
		p.rows = append(p.rows, ended{name + strings.Repeat("-", 128-len(name)), minute, task.WaveCounts{Delivered: 1}})
	}
	delivered := func() int64 {
		w := p.kept(t, q, "", nil)
		return w.Total().Delivered
	}
	n.fails = recovery.ErrClosed
	p.Tick(t.Context(), false)
	if delivered() != 0 {
		t.Error("what was refused counts")
	}
	n.fails, n.calls, p.now = nil, nil, p.now.Add(keepAgain)
	for range 10 {
		p.now = p.now.Add(time.Second)
		p.Tick(t.Context(), false)
	}
	if most := slices.Max(n.calls); delivered() != topics || len(n.calls) < 3 || len(n.calls) > 6 || most > maxWaveBytes+recovery.MaxRowBytes+100 {
		t.Errorf("%d of %d in %d pieces of up to %d bytes", delivered(), topics, len(n.calls), most)
	}
	n.calls, p.rows[0].Delivered, p.now = nil, 7, p.now.Add(time.Minute)
	p.Tick(t.Context(), false)
	if len(n.calls) != 1 || n.calls[0] > recovery.MaxRowBytes || delivered() != topics+6 {
		t.Errorf("one topic is written in pieces of %d bytes", n.calls)
	}
	n.Archive, p.now = newArchive(), p.now.Add(time.Hour)
	if delivered() != 0 {
		t.Error("rows that were lost count")
	}
	for range 10 {
		p.now = p.now.Add(time.Second)
		p.Tick(t.Context(), false)
	}
	if delivered() != topics+6 {
		t.Errorf("an hour later %d are there again", delivered())
	}
}

// A damaged row is none.
func TestDamagedWave(t *testing.T) {
	value := appendWave([]byte{waveVersion}, "x", &task.WaveCounts{Delivered: 1})
	for end := range value {
		if err := eachWave(value[:end], func(string, *task.WaveCounts) {}); err == nil && end != 1 {
			t.Errorf("%x is a row", value[:end])
		}
	}
	if err := eachWave(append(value, 200), func(string, *task.WaveCounts) {}); err == nil {
		t.Error("a row with a rest is one")
	}
}
