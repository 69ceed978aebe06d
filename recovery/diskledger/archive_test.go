package diskledger

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery"
)

// Rows that Keep has confirmed survive a power cut, and periods that are too old are deleted.
func TestRowsAreForgotten(t *testing.T) {
	h := &powerCut{fs: vfs.NewCrashableMem(), extent: small}
	open := func() *Ledger {
		l := h.Open(t).(*Ledger)
		if _, err := l.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		return l
	}
	now := time.Date(2026, 1, 2, 3, 30, 0, 0, time.UTC)
	keep := func(l *Ledger, at time.Time) {
		t.Helper()
		if err := l.Keep(t.Context(), recovery.MinuteRows, at, []recovery.Row{{At: at, Name: "n", Value: []byte("v")}}); err != nil {
			t.Fatal(err)
		}
	}
	count := func(l *Ledger) (n int) {
		t.Helper()
		if err := l.Rows(t.Context(), recovery.MinuteRows, "", now.Add(-time.Hour), now.Add(30*time.Hour), func(recovery.Row) bool {
			n++
			return true
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	l := open()
	keep(l, now)
	keep(l, now.Add(time.Minute))
	h.Crash(t)
	l = open()
	if n := count(l); n != 2 {
		t.Fatalf("after a power cut %d rows, want 2", n)
	}
	keep(l, now.Add(recovery.MinuteRows.Kept))
	if n := count(l); n != 3 {
		t.Errorf("%d rows, want 3: the first period has not ended when its first row is too old", n)
	}
	keep(l, now.Add(recovery.MinuteRows.Kept+time.Hour))
	if n := count(l); n != 2 {
		t.Errorf("%d rows, want the 2 that are not too old", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
