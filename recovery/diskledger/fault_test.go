package diskledger

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lapsehq/lapse/recovery"
)

var errDisk = errors.New("the disk says no")

// A faultyDisk is a file system in memory whose operations fail on demand.
type faultyDisk struct {
	mem *vfs.MemFS

	mu    sync.Mutex // guards everything below
	kinds []errorfs.OpKind
	name  string // pattern of the file's name
	skip  int    // operations that still succeed
	times int    // how many fail after that
	err   error
	hits  int
	hit   chan struct{} // gets a token for each failure, if there is room
}

func newFaultyDisk() *faultyDisk {
	return &faultyDisk{mem: vfs.NewCrashableMem(), hit: make(chan struct{}, 100)}
}

func (d *faultyDisk) fs() vfs.FS { return errorfs.Wrap(d.mem, errorfs.InjectorFunc(d.maybe)) }

// fail makes the operations of these kinds on such files fail.
func (d *faultyDisk) fail(err error, name string, skip, times int, kinds ...errorfs.OpKind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.name, d.skip, d.times, d.kinds, d.hits = err, name, skip, times, kinds, 0
}

func (d *faultyDisk) heal() { d.fail(nil, "", 0, 0) }

func (d *faultyDisk) failed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hits
}

func (d *faultyDisk) maybe(op errorfs.Op) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ok, _ := filepath.Match(d.name, filepath.Base(op.Path)); !ok || d.times == 0 {
		return nil
	}
	for _, kind := range d.kinds {
		if kind != op.Kind {
			continue
		}
		if d.skip > 0 {
			d.skip--
			return nil
		}
		d.times--
		d.hits++
		select {
		case d.hit <- struct{}{}:
		default:
		}
		return d.err
	}
	return nil
}

var (
	syncs  = []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}
	writes = []errorfs.OpKind{errorfs.OpFileWrite, errorfs.OpFileWriteAt}
	makes  = []errorfs.OpKind{errorfs.OpCreate, errorfs.OpReuseForWrite}
	all    = append(append(append([]errorfs.OpKind{errorfs.OpRename, errorfs.OpLink}, syncs...), writes...), makes...)
)

// A bench writes to a ledger through a committer and records what was confirmed.
type bench struct {
	*testing.T
	disk      *faultyDisk
	ledger    *Ledger
	committer *recovery.Committer[int64]

	mu        sync.Mutex // guards confirmed
	confirmed []int64
	news      chan struct{} // holds a token when confirmed has grown
}

func newBench(t *testing.T, disk *faultyDisk) *bench {
	l, err := Open("/ledger", Options{
		fs: disk.fs(), Log: quiet(), MinFree: -1, extent: extent{segment: 2 << 20, kept: 3, together: 2, most: 6},
		reopening: recovery.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	terms, err := l.Adopt(t.Context())
	if err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	b := &bench{T: t, disk: disk, ledger: l, news: make(chan struct{}, 1)}
	terms.MaxChanges = 8
	b.committer = recovery.NewCommitter(recovery.CommitterConfig[int64]{
		Ledger: l, Terms: terms, Log: quiet(), Done: b.done,
		Backoff: recovery.Backoff{Min: time.Millisecond, Max: 10 * time.Millisecond},
	})
	t.Cleanup(func() {
		_ = b.committer.Close(t.Context())
		_ = l.Close()
	})
	return b
}

func (b *bench) done(_ int, tags []int64, err error) {
	if err != nil {
		if !errors.Is(err, recovery.ErrClosed) {
			b.Errorf("Done: %v", err)
		}
		return
	}
	b.mu.Lock()
	b.confirmed = append(b.confirmed, tags...)
	b.mu.Unlock()
	select {
	case b.news <- struct{}{}:
	default:
	}
}

func id(n int64) []byte { return fmt.Appendf(nil, "task-%d", n) }

func (b *bench) submit(n int64, size int) {
	b.committer.Submit(0, recovery.Change{
		ID:   id(n),
		To:   recovery.Spot{Place: recovery.Pending, At: n},
		Data: []byte(strings.Repeat("x", size)),
	}, n)
}

func (b *bench) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.confirmed)
}

// await waits until n changes are confirmed.
func (b *bench) await(n int) {
	for b.count() < n {
		<-b.news
	}
}

// afterPowerCut reads what is left if the power fails now, and fails the test if anything confirmed
// is missing.
func (b *bench) afterPowerCut() {
	b.Helper()
	b.mu.Lock()
	confirmed := append([]int64{}, b.confirmed...)
	clone := b.disk.mem.CrashClone(vfs.CrashCloneCfg{})
	b.mu.Unlock()
	got := pendingIn(b.T, clone)
	for _, n := range confirmed {
		if !got[string(id(n))] {
			b.Fatalf("%s was confirmed and is lost (%d of %d left)", id(n), len(got), len(confirmed))
		}
	}
}

// pendingIn opens a ledger and returns the ids that it holds.
func pendingIn(t *testing.T, fs vfs.FS) map[string]bool {
	t.Helper()
	l, err := Open("/ledger", Options{fs: fs, Log: quiet(), extent: small})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	ids := map[string]bool{}
	if err := l.Scan(t.Context(), func(page []recovery.Entry) error {
		for _, e := range page {
			ids[string(e.ID)] = true
		}
		return nil
	}); err != nil {
		t.Fatalf("Scan: %v", err)
	}
	return ids
}

// TestDiskFailures makes each kind of write fail a few times, under enough load for the log to be
// rotated and tables to be written. The process goes on, all changes are confirmed in the end, and
// what was confirmed is there after a power cut.
func TestDiskFailures(t *testing.T) {
	t.Parallel()
	full := &vfsPathError{syscall.ENOSPC}
	for name, c := range map[string]struct {
		err         error
		file        string
		skip, times int
		kinds       []errorfs.OpKind
	}{
		"log sync":              {errDisk, "journal-*", 5, 1, syncs},
		"log sync, repeatedly":  {errDisk, "journal-*", 5, 6, syncs},
		"log write":             {full, "journal-*", 5, 1, writes},
		"log rotation":          {full, "journal-*", 0, 3, makes},
		"sync while rotating":   {errDisk, "ledger", 0, 2, syncs},
		"table creation":        {full, "*.sst", 0, 3, makes},
		"table write":           {full, "*.sst", 1, 3, writes},
		"table sync":            {errDisk, "*.sst", 0, 3, syncs},
		"manifest write":        {full, "MANIFEST-*", 0, 1, writes},
		"manifest sync":         {errDisk, "MANIFEST-*", 0, 2, syncs},
		"full disk, everything": {full, "*", 10, 25, all},
		"dead disk, everything": {errDisk, "*", 60, 40, all},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() && name != "full disk, everything" && name != "log sync, repeatedly" && name != "table write" {
				t.Skip("32 MiB of records, twice")
			}
			b := newBench(t, newFaultyDisk())
			b.disk.fail(c.err, c.file, c.skip, c.times, c.kinds...)
			const records = 64 // of 512 KiB: more than the journal keeps
			for n := range int64(records) {
				b.submit(n, 512<<10)
				if n%32 == 31 {
					b.await(int(n) - 8)
					b.afterPowerCut()
				}
			}
			b.await(records)
			if b.disk.failed() == 0 {
				t.Error("nothing has failed: the test tests nothing")
			}
			b.afterPowerCut()
		})
	}
}

// vfsPathError is an error as the operating system wraps it.
type vfsPathError struct{ errno syscall.Errno }

func (e *vfsPathError) Error() string { return "write: " + e.errno.Error() }
func (e *vfsPathError) Unwrap() error { return e.errno }

// TestNothingIsConfirmedWithoutSync: while every sync fails, no change may be confirmed and every
// method refuses; then all goes on.
func TestNothingIsConfirmedWithoutSync(t *testing.T) {
	b := newBench(t, newFaultyDisk())
	b.submit(0, 10)
	b.await(1)
	b.disk.fail(&vfsPathError{syscall.ENOSPC}, "journal-*", 0, -1, syncs...)
	b.submit(1, 10)
	<-b.disk.hit
	<-b.disk.hit // it was opened anew and failed again
	if n := b.count(); n != 1 {
		t.Fatalf("%d changes are confirmed, although no sync succeeds", n)
	}
	if b.committer.Stalled(0) == 0 {
		t.Error("the committer does not say that it is stalled")
	}
	ctx := t.Context()
	for name, err := range map[string]error{
		"Get":     b.ledger.Get(ctx, 0, []recovery.Ref{{ID: "task-0"}}, func(int, recovery.Entry) {}),
		"Scan":    b.ledger.Scan(ctx, func([]recovery.Entry) error { return nil }),
		"GetDead": b.ledger.GetDead(ctx, []string{"task-0"}, func(int, recovery.Entry) {}),
	} {
		if err == nil || errors.Is(err, recovery.ErrClosed) || errors.Is(err, recovery.ErrLost) {
			t.Errorf("%s during the failure: %v", name, err)
		}
	}
	b.afterPowerCut()
	b.disk.heal()
	b.await(2)
	b.submit(2, 10)
	b.await(3)
	if err := b.ledger.Condition(); err != nil {
		t.Errorf("Condition after the disk has recovered: %v", err)
	}
	b.afterPowerCut()
}

// TestCloseDuringFailure: Close does not wait for a disk that does not come back.
func TestCloseDuringFailure(t *testing.T) {
	b := newBench(t, newFaultyDisk())
	b.disk.fail(errDisk, "*", 0, -1, all...)
	b.submit(1, 10)
	<-b.disk.hit
	if err := b.ledger.Close(); err != nil {
		t.Logf("Close: %v", err) // it may complain, but it must return
	}
	if err := b.ledger.Condition(); err != nil && !errors.Is(err, recovery.ErrFull) {
		t.Errorf("Condition: %v", err)
	}
	if n := b.count(); n != 0 {
		t.Errorf("%d changes are confirmed", n)
	}
}

// TestCutDuringFlush: what waits for a flush does not wait for one that never ends.
func TestCutDuringFlush(t *testing.T) {
	stuck, hit := make(chan struct{}), make(chan struct{}, 100)
	l := shortLedger(t, errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			hit <- struct{}{}
			<-stuck
		}
		return nil
	})), usual)
	change(t, l, 1, recovery.Spot{}, at(1), "x")
	e := l.engine
	settled := make(chan error)
	go func() { settled <- e.settle(context.Background()) }()
	<-hit
	e.fence.cut(errDisk)
	if err := <-settled; !errors.Is(err, errDisk) {
		t.Errorf("settled: %v", err)
	}
	close(stuck)
	shut(t, l)
}

// TestScanAcrossReopening: a scan that the failure interrupts starts anew, and
// brings nothing back.
func TestScanAcrossReopening(t *testing.T) {
	b := newBench(t, newFaultyDisk())
	for n := range int64(3000) {
		b.submit(n, 10)
	}
	b.await(3000)
	if err := b.committer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.ledger.Close(); err != nil {
		t.Fatal(err)
	}
	b = newBench(t, b.disk)
	err := b.ledger.Scan(t.Context(), func([]recovery.Entry) error {
		b.disk.fail(errDisk, "journal-*", 0, 1, syncs...)
		b.submit(9999, 10)
		b.await(1)
		return nil
	})
	if err == nil {
		t.Fatal("the scan went on with another state than that at Adopt")
	}
	seen := 0
	if err := b.ledger.Scan(t.Context(), func(page []recovery.Entry) error {
		seen += len(page)
		if page[0].Data != nil {
			t.Error("the second scan hands out Data")
		}
		return nil
	}); err != nil || seen != 3001 {
		t.Errorf("the second scan nominates %d, want 3001: %v", seen, err)
	}
}

// TestInterruptedCreation fails each operation of a ledger's creation in turn,
// and cuts the power. The next Adopt must succeed.
func TestInterruptedCreation(t *testing.T) {
	for n := 0; ; n++ {
		disk := newFaultyDisk()
		disk.fail(errDisk, "*", n, -1, append([]errorfs.OpKind{errorfs.OpMkdirAll}, all...)...)
		l, err := Open("/ledger", Options{fs: disk.fs(), Log: quiet(), extent: small})
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Adopt(t.Context())
		disk.heal()
		if err == nil {
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if n < 10 {
				t.Errorf("a creation of %d operations: the test tests nothing", n)
			}
			return
		}
		if errors.Is(err, recovery.ErrHeld) || errors.Is(err, recovery.ErrLayout) {
			t.Errorf("operation %d fails: %v", n, err)
		}
		pendingIn(t, disk.mem.CrashClone(vfs.CrashCloneCfg{}))
		if _, err := l.Adopt(t.Context()); err != nil {
			t.Errorf("Adopt after operation %d failed: %v", n, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}
