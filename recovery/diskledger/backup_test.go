package diskledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lapsehq/lapse/recovery"
)

// openedIn opens a ledger in a directory. It is closed with the test.
func openedIn(t *testing.T, dir string, o Options) *Ledger {
	t.Helper()
	l, err := Open(dir, o)
	if err == nil {
		_, err = l.Adopt(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// create writes records as one batch: pending ones, and a dead one.
func create(t *testing.T, l *Ledger, ids ...string) {
	t.Helper()
	var b recovery.Batch
	for i, id := range ids {
		b.Add(recovery.Change{ID: []byte(id), To: recovery.Spot{Place: recovery.Pending, At: int64(i)}, Data: []byte(strings.Repeat(id, 100))})
	}
	b.Add(recovery.Change{ID: []byte("dead-" + ids[0]), To: recovery.Spot{Place: recovery.Dead, At: 1, Label: "x"}, Data: []byte(ids[0])})
	if err := l.Apply(t.Context(), 0, &b); err != nil {
		t.Fatal("Apply:", err)
	}
}

// contentOf returns the ids in a ledger, each with its place.
func contentOf(t *testing.T, dir string) map[string]recovery.Place {
	t.Helper()
	l := openedIn(t, dir, Options{MinFree: -1})
	all := map[string]recovery.Place{}
	err := errors.Join(
		l.Scan(t.Context(), func(page []recovery.Entry) error {
			for _, e := range page {
				all[string(e.ID)] = e.Spot.Place
			}
			return nil
		}),
		l.ListDead(t.Context(), "", recovery.Ref{}, func(e recovery.Entry) bool { all[string(e.ID)] = e.Spot.Place; return true }),
		l.Close())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A backup of a ledger that is written to has all that was confirmed before, and of each batch all
// or nothing. It is restored as often as is wished, and can be opened itself.
func TestBackup(t *testing.T) {
	for name, e := range map[string]extent{"usual": usual, "hasty": hasty} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testBackup(t, e)
		})
	}
}

func testBackup(t *testing.T, e extent) {
	l := openedIn(t, filepath.Join(t.TempDir(), "data"), Options{MinFree: -1, extent: e})
	for i := range 300 {
		create(t, l, fmt.Sprint("before-", i), fmt.Sprint("also-before-", i))
	}
	var next atomic.Int64
	var confirmed sync.Map
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for range 3 {
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					i := next.Add(1)
					create(t, l, fmt.Sprint("during-", i), fmt.Sprint("also-during-", i))
					confirmed.Store(int(i), true)
				}
			}
		})
	}
	stopWriting := sync.OnceFunc(func() {
		close(stop)
		writers.Wait()
	})
	defer stopWriting()
	backups := t.TempDir()
	for k := range 3 {
		var before []int
		confirmed.Range(func(i, _ any) bool { before = append(before, i.(int)); return true })
		dir := filepath.Join(backups, fmt.Sprint("backup-", k))
		size, err := l.Backup(t.Context(), dir)
		if err != nil || size == 0 {
			t.Fatalf("Backup: %d bytes, %v", size, err)
		}
		restored := filepath.Join(t.TempDir(), "restored")
		for range 2 {
			if err := Restore(t.Context(), dir, restored, Options{MinFree: -1}, nil); err != nil {
				t.Fatal("Restore:", err)
			}
			all := contentOf(t, restored)
			for i := range 300 {
				if all[fmt.Sprint("before-", i)] != recovery.Pending || all[fmt.Sprint("dead-before-", i)] != recovery.Dead {
					t.Fatalf("record %d of before is not in the backup", i)
				}
			}
			for i := 1; i <= int(next.Load()); i++ {
				one, two, dead := all[fmt.Sprint("during-", i)], all[fmt.Sprint("also-during-", i)], all[fmt.Sprint("dead-during-", i)]
				if (one == recovery.Pending) != (two == recovery.Pending) || (one == recovery.Pending) != (dead == recovery.Dead) {
					t.Fatalf("batch %d is in the backup in part", i)
				}
			}
			for _, i := range before {
				if all[fmt.Sprint("during-", i)] != recovery.Pending {
					t.Fatalf("batch %d was confirmed before, and is not in the backup", i)
				}
			}
			if err := os.RemoveAll(restored); err != nil {
				t.Fatal(err)
			}
		}
	}
	stopWriting()
	if all := contentOf(t, filepath.Join(backups, "backup-0")); len(all) < 900 {
		t.Errorf("a backup that is opened has %d records", len(all))
	}
	files, err := os.ReadDir(filepath.Join(backups, "backup-1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files { // LOCK is empty
		if info, err := f.Info(); err != nil || info.Mode().Perm()&0o077 != 0 && info.Size() > 0 {
			t.Errorf("other users can open %s of a backup: %v, %v", f.Name(), info.Mode(), err)
		}
	}
	if info, err := os.Stat(filepath.Join(backups, "backup-1")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("other users can open a backup: %v, %v", info.Mode(), err)
	}
	if _, err := l.Backup(t.Context(), filepath.Join(backups, "backup-0")); !errors.Is(err, recovery.ErrBackupExists) {
		t.Errorf("Backup into one that is there: %v", err)
	}
}

// What a backup that was interrupted has left is replaced, and is no backup.
func TestInterruptedBackup(t *testing.T) {
	t.Parallel()
	l := openedIn(t, filepath.Join(t.TempDir(), "data"), Options{MinFree: -1})
	create(t, l, "a")
	dir, restored := filepath.Join(t.TempDir(), "b"), filepath.Join(t.TempDir(), "r")
	putFile(t, filepath.Join(dir+partialSuffix, unfinishedName), "")
	putFile(t, filepath.Join(dir+partialSuffix, partialStore, "000001.log"), "half of it")
	putFile(t, filepath.Join(restored, draftName, "000001.log"), "half of it")
	putFile(t, filepath.Join(restored, "000002.sst"), "half of it")
	if err := Restore(t.Context(), dir+partialSuffix, restored, Options{}, nil); err == nil {
		t.Error("half a backup was restored")
	}
	if _, err := l.Backup(t.Context(), dir); err != nil {
		t.Fatal("Backup:", err)
	}
	if err := Restore(t.Context(), dir, restored, Options{MinFree: -1}, nil); err != nil {
		t.Fatal("Restore:", err)
	}
	if all := contentOf(t, restored); len(all) != 2 {
		t.Errorf("restored %v", all)
	}
	for _, gone := range []string{dir + partialSuffix, filepath.Join(restored, draftName), filepath.Join(restored, "000002.sst")} {
		if _, err := os.Stat(gone); err == nil {
			t.Errorf("%s remains", gone)
		}
	}
}

// What fails in the directory of backups does not harm the ledger. Where files cannot be linked,
// they are copied.
func TestBackupFaults(t *testing.T) {
	t.Parallel()
	backups := t.TempDir()
	var fail atomic.Pointer[error]
	var kind atomic.Int64
	disk := errorfs.Wrap(private{vfs.Default}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if err := fail.Load(); err != nil && int64(op.Kind) == kind.Load() && strings.HasPrefix(op.Path, backups) {
			return *err
		}
		return nil
	}))
	l := openedIn(t, filepath.Join(t.TempDir(), "data"), Options{MinFree: -1, fs: disk})
	create(t, l, "a")
	e, err := l.use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	flushed, err := e.db.AsyncFlush() // so that there is a table to be linked
	if err != nil {
		t.Fatal(err)
	}
	<-flushed
	e.users.Done()
	for name, op := range map[string]errorfs.OpKind{"create": errorfs.OpCreate, "write": errorfs.OpFileWrite, "sync": errorfs.OpFileSync} {
		kind.Store(int64(op))
		full := error(syscall.ENOSPC)
		fail.Store(&full)
		if _, err := l.Backup(t.Context(), filepath.Join(backups, name)); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s fails: %v", name, err)
		}
		create(t, l, name)
		fail.Store(nil)
	}
	apart := error(syscall.EXDEV)
	kind.Store(int64(errorfs.OpLink))
	fail.Store(&apart)
	dir := filepath.Join(backups, "copied")
	if _, err := l.Backup(t.Context(), dir); err != nil {
		t.Fatal("Backup to another file system:", err)
	}
	if all := contentOf(t, dir); len(all) != 8 {
		t.Errorf("the backup has %v", all)
	}
	if left, _ := os.ReadDir(backups); len(left) != 1 {
		t.Errorf("there remain %v", left)
	}
	small := openedIn(t, filepath.Join(t.TempDir(), "data"), Options{MinFree: 1 << 62})
	if _, err := small.Backup(t.Context(), filepath.Join(backups, "full")); !errors.Is(err, recovery.ErrFull) {
		t.Errorf("Backup without room: %v", err)
	}
}
