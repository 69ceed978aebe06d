package diskledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger/internal/journal"
)

// shortLedger is an adopted ledger in memory whose journal is short.
func shortLedger(t *testing.T, fs vfs.FS, e extent) *Ledger {
	t.Helper()
	l, err := Open("/ledger", Options{fs: fs, MinFree: -1, Log: quiet(), extent: e})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

func change(t *testing.T, l *Ledger, n int64, from, to recovery.Spot, data string) {
	t.Helper()
	var b recovery.Batch
	b.Add(recovery.Change{ID: id(n), From: from, To: to, Data: []byte(data)})
	if err := l.Apply(t.Context(), 0, &b); err != nil {
		t.Fatal(err)
	}
}

func at(ms int64) recovery.Spot { return recovery.Spot{Place: recovery.Pending, At: ms} }

// inStore counts the pending records that the store has, whether they are young or not.
func inStore(t *testing.T, l *Ledger) int {
	t.Helper()
	p := page{next: []byte{kindPending}}
	if err := p.read(l.engine, l.engine.db, []byte{kindPending + 1}); err != nil {
		t.Fatal(err)
	}
	return len(p.items)
}

// lookedUp gets the tasks 0 to 4 at their times, and task 2 at its other one.
func lookedUp(t *testing.T, l *Ledger) map[string]string {
	t.Helper()
	refs := []recovery.Ref{{ID: "task-2", Next: 22}}
	for n := range int64(5) {
		refs = append(refs, recovery.Ref{ID: string(id(n)), Next: n})
	}
	got := make(map[string]string)
	if err := l.Get(t.Context(), 0, refs, func(_ int, e recovery.Entry) { got[string(e.ID)] = string(e.Data) }); err != nil {
		t.Fatal(err)
	}
	return got
}

// A record that ends while it is young is never in the store.
func TestYoungRecordsAreNotInTheStore(t *testing.T) {
	l := shortLedger(t, vfs.NewMem(), usual)
	defer shut(t, l)
	for n := range int64(100) {
		change(t, l, n, recovery.Spot{}, at(n), "x")
		change(t, l, n, at(n), recovery.Spot{}, "")
	}
	if err := l.engine.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := inStore(t, l); n != 0 || l.engine.db.Metrics().Flush.Count != 0 {
		t.Errorf("the store has had work: %d records, %d flushes", n, l.engine.db.Metrics().Flush.Count)
	}
}

// The files that a backup has kept are removed after it, but for as many as the journal uses.
func TestJournalAfterHold(t *testing.T) {
	fs := vfs.NewMem()
	short := extent{segment: 4 << 10, kept: 2, together: 2, most: 5}
	l := shortLedger(t, fs, short)
	defer shut(t, l)
	files := func() (n int) {
		names, err := fs.List("/ledger")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if strings.HasPrefix(name, journal.Prefix) {
				n++
			}
		}
		return n
	}
	write := func() {
		for n := range int64(100) {
			change(t, l, n, recovery.Spot{}, at(n), strings.Repeat("x", 1<<10))
			change(t, l, n, at(n), recovery.Spot{}, "")
		}
		if err := l.engine.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	release := l.engine.journal.Hold()
	write()
	if n := files(); n < 3*short.most {
		t.Errorf("%d files are held, want more", n)
	}
	release()
	write()
	if n := files(); n > 2*short.most {
		t.Errorf("%d files are left, want at most %d", n, 2*short.most)
	}
}

// A record that is removed, or written over, while its segment is being moved to the store is gone
// from there afterwards, or has its new content.
func TestChangesDuringMove(t *testing.T) {
	l := shortLedger(t, vfs.NewMem(), usual)
	defer shut(t, l)
	for n := range int64(5) {
		change(t, l, n, recovery.Spot{}, at(n), "old")
	}
	e := l.engine
	if err := e.beginSegment(); err != nil {
		t.Fatal(err)
	}
	w, err := e.leftOf(e.journal.Closed())
	if err != nil {
		t.Fatal(err)
	}
	change(t, l, 4, at(4), at(4), "new")
	change(t, l, 4, at(4), recovery.Spot{}, "")
	if err := e.give(w); err != nil {
		t.Fatal(err)
	}
	change(t, l, 0, at(0), recovery.Spot{}, "")
	if got := lookedUp(t, l); got["task-0"] != "" || got["task-4"] != "" {
		t.Errorf("removed, but got %v", got)
	}
	change(t, l, 1, at(1), at(1), "new")
	change(t, l, 3, at(3), at(3), "new")
	change(t, l, 2, at(2), at(22), "moved")
	change(t, l, 2, at(22), recovery.Spot{}, "")
	change(t, l, 2, recovery.Spot{}, at(2), "again")
	if err := e.forgetMoved(); err != nil {
		t.Fatal(err)
	}
	change(t, l, 1, at(1), at(1), "newest")
	change(t, l, 3, at(3), recovery.Spot{}, "")
	want := map[string]string{"task-1": "newest", "task-2": "again"}
	for range 2 { // also once all is in the store
		if got := lookedUp(t, l); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if err := e.settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := inStore(t, l); n != 2 {
		t.Errorf("the store has %d records of 2", n)
	}
	change(t, l, 1, at(1), recovery.Spot{}, "")
	change(t, l, 2, at(2), recovery.Spot{}, "")
	if err := e.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := inStore(t, l); n != 0 {
		t.Errorf("the store has %d records of none", n)
	}
}

// What the store is given during a flush, the next one has.
func TestGivenDuringFlush(t *testing.T) {
	l := shortLedger(t, vfs.NewMem(), usual)
	defer shut(t, l)
	e := l.engine
	for n := range int64(1000) {
		key := appendDead(nil, id(n))
		given := make(chan struct{})
		go func() {
			defer close(given)
			w := e.db.NewBatch()
			if err := errors.Join(w.Set(key, nil, nil), e.give(w)); err != nil {
				t.Error(err)
			}
		}()
		for last := false; !last; {
			select {
			case <-given:
				last = true
			default:
			}
			if err := e.flushGiven(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		it, err := e.db.NewIter(&pebble.IterOptions{OnlyReadGuaranteedDurable: true})
		if err != nil {
			t.Fatal(err)
		}
		if !it.SeekPrefixGE(key) {
			t.Errorf("what was given as number %d is in no table", n)
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A batch whose answer was lost may come again when the store has its records already: a later
// removal removes them there too.
func TestRepeatedBatchAfterMove(t *testing.T) {
	l := shortLedger(t, vfs.NewMem(), usual)
	defer shut(t, l)
	change(t, l, 1, recovery.Spot{}, at(1), "x")
	if err := l.engine.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	change(t, l, 1, recovery.Spot{}, at(1), "x")
	change(t, l, 1, at(1), recovery.Spot{}, "")
	if err := l.engine.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := inStore(t, l); n != 0 {
		t.Errorf("the store has %d records of none", n)
	}
}

// Whatever the power cut leaves of what was not synced, the ledger has what was confirmed, while
// records come, end, and are moved to the store.
func TestPowerCutsWhileRecordsMove(t *testing.T) {
	const tasks = 400
	fs := vfs.NewCrashableMem()
	l := shortLedger(t, fs, extent{segment: 2 << 10, kept: 1, together: 1, most: 2})
	confirmed := make(map[string]bool)
	var cuts []func()
	for n := range int64(tasks) {
		change(t, l, n, recovery.Spot{}, at(n), "some bytes of a record")
		confirmed[string(id(n))] = true
		if old := n - 37; old >= 0 && old%3 != 0 {
			change(t, l, old, at(old), recovery.Spot{}, "")
			delete(confirmed, string(id(old)))
		}
		if n%50 == 49 {
			want := fmt.Sprint(confirmed)
			clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rand.New(rand.NewPCG(uint64(n), 1))})
			cuts = append(cuts, func() {
				if got := fmt.Sprint(pendingIn(t, clone)); got != want {
					t.Errorf("after a power cut behind task %d there is\n%s\nwant\n%s", n, got, want)
				}
			})
		}
	}
	shut(t, l)
	for _, look := range cuts {
		look()
	}
}
