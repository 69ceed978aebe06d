package diskledger

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lapsehq/lapse/recovery"
)

// New tasks are refused before Pebble stops all writes, and until compaction is well ahead.
func TestPressure(t *testing.T) {
	var p pressure
	for i, step := range []struct {
		load    load
		refused bool
	}{
		{load{0, 0}, false},
		{load{39, 8<<30 - 1}, false},
		{load{40, 0}, true},
		{load{39, 0}, true},
		{load{20, 0}, true},
		{load{19, 4 << 30}, true},
		{load{19, 4<<30 - 1}, false},
		{load{39, 0}, false},
		{load{0, 8 << 30}, true},
		{load{0, 0}, false},
	} {
		p.note(step.load, most, enough)
		if err := p.condition(); errors.Is(err, recovery.ErrBehind) != step.refused || errors.Is(err, recovery.ErrFull) {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if stop := tuning(vfs.Default, pebbleLog{quiet(), newFence(vfs.Default)}).L0StopWritesThreshold; int(most.sublevels) > stop*3/4 {
		t.Errorf("refusal at %d sublevels, Pebble stops at %d", most.sublevels, stop)
	}
}

// put writes records that are due at their numbers, in one batch.
func put(t *testing.T, l *Ledger, numbers ...int64) {
	t.Helper()
	var b recovery.Batch
	for _, n := range numbers {
		b.Add(recovery.Change{ID: id(n), To: recovery.Spot{Place: recovery.Pending, At: n}, Data: []byte("x")})
	}
	if err := l.Apply(t.Context(), 0, &b); err != nil {
		t.Fatal(err)
	}
}

// The state of Pebble's level 0 reaches Condition, and a store that has caught up takes tasks
// again.
func TestConditionWhileCompactionIsBehind(t *testing.T) {
	l, err := Open("/ledger", Options{fs: vfs.NewMem(), MinFree: -1, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, l)
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, l, 1, 2, 3)
	if err := l.engine.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := loadOf(l.engine.db)
	if now.sublevels != 1 {
		t.Fatalf("one table makes %d sublevels", now.sublevels)
	}
	l.stop() // the ledger itself no longer measures
	<-l.kept
	bound := load{sublevels: 1, debt: 1 << 40}
	l.pressure.note(now, bound, bound)
	if err := l.Condition(); !errors.Is(err, recovery.ErrBehind) || !strings.Contains(err.Error(), "1 sublevels of at most 1") {
		t.Errorf("Condition: %v", err)
	}
	if err := l.engine.db.Compact(t.Context(), []byte{0}, []byte{0xFF}, false); err != nil {
		t.Fatal(err)
	}
	l.pressure.note(loadOf(l.engine.db), bound, bound)
	if err := l.Condition(); err != nil {
		t.Errorf("Condition after compaction: %v", err)
	}
}

// After Close all records are in tables: the next start has no journal to read.
func TestCloseFlushes(t *testing.T) {
	fs := vfs.NewMem()
	l, err := Open("/ledger", Options{fs: fs, MinFree: -1, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range int64(10) {
		put(t, l, n)
	}
	shut(t, l)
	names, err := fs.List("/ledger")
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			tables++
		}
	}
	if tables == 0 {
		t.Errorf("no table among %v", names)
	}
	if got := pendingIn(t, fs); len(got) != 10 {
		t.Errorf("%d records of 10", len(got))
	}
}

// A disk that hangs in the flush at Close delays Close by no more than the bound, and the
// journal still has everything.
func TestFlushIsBounded(t *testing.T) {
	disk := vfs.NewMem()
	resume := make(chan struct{})
	l, err := Open("/ledger", Options{fs: errorfs.Wrap(disk, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".sst") {
			<-resume
		}
		return nil
	})), MinFree: -1, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, l, 1)
	if err := l.engine.flush(time.Millisecond); !errors.Is(err, errFlushLate) {
		t.Errorf("flush: %v", err)
	}
	close(resume)
	if err := l.Close(); err != nil {
		t.Logf("Close: %v", err) // it may return an error, but it must return
	}
	if got := pendingIn(t, disk); len(got) != 1 {
		t.Errorf("%d records of 1", len(got))
	}
}
