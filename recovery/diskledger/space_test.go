package diskledger

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery"
)

// After a purge the space of the records is free again, though nothing is written any more.
func TestFilesAfterPurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := vfs.NewMem()
		l, err := Open("/ledger", Options{fs: fs, MinFree: -1, Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		defer shut(t, l)
		if _, err := l.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.engine.dropSnapshot() // as the first scan does
		const records, size = worthFlushing, 4 << 10
		random, place := rand.NewChaCha8([32]byte{}), recovery.Spot{Place: recovery.Pending, At: 1 << 40}
		var b recovery.Batch
		for n := range int64(records) {
			data := make([]byte, size)
			_, _ = random.Read(data)
			b.Add(recovery.Change{ID: id(n), To: place, Data: data})
			applyFull(t, l, &b, 1000)
		}
		for n := range int64(records) {
			b.Add(recovery.Change{ID: id(n), From: place})
			applyFull(t, l, &b, 1000)
		}
		time.Sleep(4 * shrinkEvery)
		synctest.Wait()
		if left := tablesIn(t, fs); left > records*size/16 {
			t.Errorf("tables of %d bytes are left of %d", left, records*size)
		}
	})
}

// applyFull writes the batch once it has n changes, and empties it.
func applyFull(t *testing.T, l *Ledger, b *recovery.Batch, n int) {
	t.Helper()
	if b.Len() < n {
		return
	}
	if err := l.Apply(t.Context(), 0, b); err != nil {
		t.Fatal(err)
	}
	*b = recovery.Batch{}
}

// tablesIn returns how many bytes the tables of a store take.
func tablesIn(t *testing.T, fs vfs.FS) (bytes int64) {
	t.Helper()
	names, err := fs.List("/ledger")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if info, err := fs.Stat("/ledger/" + name); err == nil && strings.HasSuffix(name, ".sst") {
			bytes += info.Size()
		}
	}
	return bytes
}

// Deletions are flushed once when there are many and hardly any more come.
func TestRemovalsLook(t *testing.T) {
	var r removals
	for i, step := range []struct {
		removed        int64
		flush, compact bool
	}{
		{0, false, false},
		{worthFlushing / 10, false, false},
		{worthFlushing, false, false}, // they still come
		{worthFlushing/10 - 1, true, false},
		{worthFlushing / 10, false, false},
		{0, false, true},
		{0, false, false},
		{worthFlushing * 8 / 10, false, false},
		{0, false, false}, // too few
		{worthFlushing / 10, false, false},
		{0, true, false},
	} {
		r.total.Add(step.removed)
		if flush, compact := r.look(); flush != step.flush || compact != step.compact {
			t.Errorf("step %d: flush %t, compact %t", i, flush, compact)
		}
	}
}
