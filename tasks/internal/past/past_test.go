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

func (a *archive) Keep(_ context.Context, s recovery.Series, _ time.Time, rows []recovery.Row) error {
	if a.down {
		return errors.New("down")
	}
	if a.rows[s] == nil {
		a.rows[s] = map[string]recovery.Row{}
	}
	for _, r := range rows {
		a.rows[s][fmt.Sprint(r.Part, r.At.Unix(), r.Name)] = r
	}
	return nil
}

func (a *archive) Rows(context.Context, recovery.Series, string, time.Time, time.Time, func(recovery.Row) bool) error {
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
