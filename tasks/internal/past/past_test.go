package past

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// A row says what was counted, and a damaged one is none.
func TestRows(t *testing.T) {
	m := task.PastMinute{Scheduled: 1, Delivered: 300, Failed: 2, Died: 3, Cancelled: 4}
	m.Lateness.Max = 5 * time.Second
	m.Lateness.Counts[0], m.Lateness.Counts[len(task.LatenessBounds)] = 7, 1
	value := encode(&m, true)
	got, cut, err := decode(value)
	if diff := cmp.Diff(m, got); diff != "" || !cut || err != nil {
		t.Errorf("%s, cut %v, %v", diff, cut, err)
	}
	for _, damaged := range [][]byte{nil, {2}, value[:4], append(value, 200)} {
		if _, _, err := decode(damaged); err == nil {
			t.Errorf("%x is a row", damaged)
		}
	}
}

// An archive that takes nothing while it is down.
type archive struct {
	down bool
	rows map[recovery.Series]map[string]recovery.Row
}

func (a *archive) Keep(_ context.Context, s recovery.Series, now time.Time, rows []recovery.Row) error {
	if a.down {
		return errors.New("down")
	}
	if _, err := s.Keepable(now, rows); err != nil {
		return err
	}
	if a.rows[s] == nil {
		a.rows[s] = map[string]recovery.Row{}
	}
	for _, r := range rows {
		a.rows[s][fmt.Sprint(r.Part, r.At.Unix(), r.Name)] = r
	}
	return nil
}

func (a *archive) Rows(_ context.Context, s recovery.Series, part string, from, to time.Time, visit func(recovery.Row) bool) error {
	for _, r := range a.rows[s] {
		if r.Part == part && r.Within(from, to) && !visit(r) {
			break
		}
	}
	return nil
}

// While the ledger does not answer, rows wait up to a bound, and then the oldest are dropped and
// counted. Of more topics than are shown, the row of all says that some were left out.
func TestWaitingRowsAreBounded(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 30, 0, time.UTC)
	a := &archive{down: true, rows: map[recovery.Series]map[string]recovery.Row{}}
	scheduled := int64(0)
	p := New(Options{
		Archive: a, Node: "n", Clock: func() time.Time { return now }, Down: func() bool { return a.down },
		Total: func() (h task.History) {
			for at := now.Add(-time.Minute).Truncate(time.Minute); !at.After(now); at = at.Add(time.Minute) {
				h.Minutes = append(h.Minutes, task.PastMinute{At: at, Scheduled: 7})
			}
			return h
		},
		Topics: func(visit func(string, *task.Counts)) {
			for i := range Shown + 1 {
				c := task.Counts{Scheduled: scheduled + int64(i)}
				visit(fmt.Sprint(strings.Repeat("long", 100), i), &c)
			}
		},
	})
	minutes := 0
	for ; p.Dropped.Load() == 0; minutes++ {
		if minutes > 5000 {
			t.Fatal("nothing was dropped")
		}
		now, scheduled = now.Add(time.Minute), scheduled+100
		p.Tick(t.Context(), false)
		if p.bytes > MaxWaiting {
			t.Fatalf("%d bytes wait", p.bytes)
		}
	}
	dropped := p.Dropped.Load()
	a.down, now = false, now.Add(keepAgain)
	p.Tick(t.Context(), false)
	if len(p.waiting) > 0 || p.bytes != 0 {
		t.Errorf("%d rows of %d bytes wait, %d, then %d were dropped", len(p.waiting), p.bytes, dropped, p.Dropped.Load())
	}
	if n := len(a.rows[recovery.MinuteRows]); n < minutes*Shown/2 {
		t.Errorf("%d rows were kept of %d minutes", n, minutes)
	}
	for _, r := range a.rows[recovery.MinuteRows] {
		if _, cut, err := decode(r.Value); err != nil || cut != (r.Part == "") {
			t.Errorf("the row of %q: cut %v, %v", r.Part, cut, err)
		}
	}
	if n := len(a.rows[recovery.MarkRows]); n != 1 {
		t.Errorf("%d marks, want that of the outage", n)
	}
}

// The calls of one act are one entry, and of an hour only so many entries are kept.
func TestEntriesAreBounded(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 30, 0, time.UTC)
	p := New(Options{
		Archive: &archive{rows: map[recovery.Series]map[string]recovery.Row{}}, Node: "n", Clock: func() time.Time { return now },
	})
	for i := range 3 {
		p.Record(task.AuditEntry{Verb: "cancel", Topic: "t", Count: 2, Partial: i < 2})
	}
	p.Record(task.AuditEntry{Verb: "cancel", Topic: "t", Count: 9})
	q := task.AuditQuery{From: now.Add(-time.Hour), To: now.Add(time.Hour), Limit: 1}
	first, err := p.Entries(t.Context(), q)
	q.Cursor = first.Cursor
	second, err2 := p.Entries(t.Context(), q)
	if err != nil || err2 != nil || len(first.Entries) != 1 || first.Entries[0].Count != 9 || second.Entries[0].Count != 6 || second.Cursor != "" {
		t.Errorf("the pages are %+v, %v, and %+v, %v", first, err, second, err2)
	}
	kept := 2
	for p.Record(task.AuditEntry{Verb: "pause", Detail: strings.Repeat("x", 3*task.MaxAuditText)}) {
		kept++
	}
	if kept != task.MaxAuditsAnHour || p.bytes > MaxWaiting {
		t.Errorf("%d entries of an hour are kept, %d bytes", kept, p.bytes)
	}
	now = now.Add(time.Hour)
	if !p.Record(task.AuditEntry{Verb: "pause"}) {
		t.Error("the next hour has none")
	}
}

// Pages of several acts that are under way at once are an entry each. Acts on one task leave room
// for the others, and an entry that no ledger takes is refused, or dropped, alone.
func TestEntriesAreApart(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 30, 0, time.UTC)
	a := &archive{rows: map[recovery.Series]map[string]recovery.Row{}}
	p := New(Options{
		Archive: a, Node: "n", Clock: func() time.Time { return now }, Down: func() bool { return false },
		Total: func() task.History { return task.History{} }, Topics: func(func(string, *task.Counts)) {},
	})
	for i := range 3 {
		for topic := range openActs {
			p.Record(task.AuditEntry{Verb: "cancel", Topic: fmt.Sprint("t", topic), Count: 1, Partial: i < 2})
		}
	}
	q := task.AuditQuery{From: now.Add(-time.Hour), To: now.Add(time.Hour), Limit: 100}
	page, err := p.Entries(t.Context(), q)
	if err != nil || len(page.Entries) != openActs || page.Entries[0].Count != 3 {
		t.Errorf("interleaved pages made %d entries, %v", len(page.Entries), err)
	}
	for i := range 3 * openActs {
		p.Record(task.AuditEntry{Verb: "cancel", Topic: fmt.Sprint("u", i), Partial: true})
	}
	if n := len(p.actions.open); n > openActs {
		t.Errorf("%d acts are open", n)
	}
	q.Topic = "t1"
	p.Record(task.AuditEntry{Verb: "hold", Topic: "t*"})
	if page, _ = p.Entries(t.Context(), q); len(page.Entries) != 2 {
		t.Errorf("%d entries are about t1, want its own and that of its pattern", len(page.Entries))
	}
	ofTasks := 0
	for p.Record(task.AuditEntry{Verb: "cancel", Task: "a"}) {
		ofTasks++
	}
	if ofTasks > task.MaxAuditsAnHour/2 || !p.Record(task.AuditEntry{Verb: "pause"}) {
		t.Errorf("%d acts on one task are kept, and then no other", ofTasks)
	}
	poison := strings.Repeat("\x01", task.MaxAuditText)
	long := task.AuditEntry{Verb: poison, By: poison, Topic: poison, Group: poison, Target: poison, Detail: poison, Before: poison}
	if p.Record(long) {
		t.Error("an entry that is larger than a row is kept")
	}
	p.mu.Lock()
	p.waitLocked(recovery.HourRows, recovery.Row{At: now, Name: strings.Repeat("n", recovery.MaxRowName+1), Value: []byte{1}})
	p.mu.Unlock()
	p.Tick(t.Context(), false)
	if len(p.waiting) > 0 || len(a.rows[recovery.ActionRows]) == 0 {
		t.Errorf("%d rows wait, %d entries are kept", len(p.waiting), len(a.rows[recovery.ActionRows]))
	}
}

// A clock that is set back ends the minute: the next ones are kept.
func TestClockIsSetBack(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 30, 0, time.UTC)
	a := &archive{rows: map[recovery.Series]map[string]recovery.Row{}}
	p := New(Options{
		Archive: a, Node: "n", Clock: func() time.Time { return now }, Down: func() bool { return false },
		Total: func() (h task.History) {
			for at := now.Add(-10 * time.Minute).Truncate(time.Minute); !at.After(now); at = at.Add(time.Minute) {
				h.Minutes = append(h.Minutes, task.PastMinute{At: at, Scheduled: 7})
			}
			return h
		},
		Topics: func(func(string, *task.Counts)) {},
	})
	now = now.Add(-20 * time.Minute)
	p.Tick(t.Context(), false)
	if n := len(p.minutes); n != 0 {
		t.Errorf("%d minutes are entered of a time that was not", n)
	}
	for range 3 {
		now = now.Add(time.Minute)
		p.Tick(t.Context(), false)
	}
	if n := len(a.rows[recovery.MinuteRows]); n != 3 {
		t.Errorf("%d minutes are kept, want 3", n)
	}
}

// A look that falls together with the end of a minute counts nothing twice.
func TestLookIsOfOneMinute(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 0, 30, 0, time.UTC)
	var p *Past
	ticks := 0
	p = New(Options{
		Node: "n", Clock: func() time.Time { return now }, Down: func() bool { return false },
		Total: func() task.History {
			return task.History{Minutes: []task.PastMinute{{At: now.Add(-time.Minute).Truncate(time.Minute)}}}
		},
		Topics: func(visit func(string, *task.Counts)) { visit("t", &task.Counts{Scheduled: 5}) },
		Topic: func(string) (task.Counts, bool) {
			if ticks++; ticks == 1 {
				now = now.Add(time.Minute)
				p.Tick(context.Background(), false)
			}
			return task.Counts{Scheduled: 5}, true
		},
	})
	scheduled := int64(0)
	part := p.Live("t", time.Hour)
	for i := range part.Points {
		scheduled += part.Points[i].Scheduled
	}
	if scheduled != 5 {
		t.Errorf("%d were scheduled, want 5", scheduled)
	}
}

// A mark of changed settings names those that have another value than before.
func TestMarkNamesSettings(t *testing.T) {
	for _, of := range []struct{ before, detail, names string }{
		{`{"lease":"30s","weight":1,"revision":4}`, `{"lease":"1m","weight":1,"retry":{"max_attempts":2},"revision":5}`, "lease, retry"},
		{`{"lease":"30s"}`, `{"lease":"30s"}`, ""},
		{"", `{"lease":"1m"}`, ""},
		{`{"lease":"30s"}`, `{"lease":"1m","delivery":{"url":"http...`, ""},
	} {
		if names := changedSettings(&task.AuditEntry{Before: of.before, Detail: of.detail}); names != of.names {
			t.Errorf("%s after %s changes %q, want %q", of.detail, of.before, names, of.names)
		}
	}
}
