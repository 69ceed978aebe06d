package diskledger

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/lapsehq/lapse/recovery"
)

// A backup removes nothing that no backup has left, and notes what is in its way.
func TestBackupRemovesNothingOfOthers(t *testing.T) {
	t.Parallel()
	l := openedIn(t, filepath.Join(t.TempDir(), "data"), Options{MinFree: -1})
	create(t, l, "a")
	backups := t.TempDir()
	putFile(t, filepath.Join(backups, "ledger.partial", markerName), "lapse ledger, layout 1\n")
	putFile(t, filepath.Join(backups, "file.partial"), "mine")
	if err := os.Symlink("ledger.partial", filepath.Join(backups, "link.partial")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ledger", "file", "link"} {
		if _, err := l.Backup(t.Context(), filepath.Join(backups, name)); !errors.Is(err, recovery.ErrInTheWay) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names := namesIn(t, backups); names != "file.partial ledger.partial link.partial" {
		t.Errorf("there remain %s", names)
	}
	if names := namesIn(t, filepath.Join(backups, "ledger.partial")); names != markerName {
		t.Errorf("of the ledger there remains %s", names)
	}
	if err := os.Mkdir(filepath.Join(backups, "empty.partial"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Backup(t.Context(), filepath.Join(backups, "empty")); err != nil {
		t.Errorf("Backup after one that has ended at once: %v", err)
	}
}

// What a killed backup has left of its look whether files can be linked does not stand in the way
// of the next: it does not need the room of a copy.
func TestBackupLinksAfterInterruption(t *testing.T) {
	t.Parallel()
	l := openedIn(t, filepath.Join(t.TempDir(), "data"), Options{MinFree: -1})
	create(t, l, "a")
	e, err := l.use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer e.users.Done()
	partial := filepath.Join(t.TempDir(), "b"+partialSuffix)
	for range 2 { // the second one follows one that was killed
		if err := beginPartial(partial); err != nil {
			t.Fatal(err)
		}
		if err := l.roomFor(e, partial); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(partial, probeName)); err != nil {
			t.Errorf("the marker could not be linked: %v", err)
		}
		if names := namesIn(t, filepath.Dir(partial)); names != "b"+partialSuffix {
			t.Errorf("beside it there is %s", names)
		}
	}
}

// During a backup to the directory that the ledger's is in, the ledger outlives the failures of its
// disk as ever.
func TestBackupAroundTheLedger(t *testing.T) {
	t.Parallel()
	backups := t.TempDir()
	data := filepath.Join(backups, "data")
	var armed, begun atomic.Bool
	failed := make(chan struct{})
	var store *pebble.DB
	disk := errorfs.Wrap(private{vfs.Default}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch {
		case armed.Load() && strings.HasPrefix(op.Path, data) && (op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpReuseForWrite):
			if armed.CompareAndSwap(true, false) {
				close(failed)
				return syscall.EIO
			}
		case strings.Contains(op.Path, partialSuffix) && op.Kind == errorfs.OpCreate && begun.CompareAndSwap(false, true):
			armed.Store(true)
			go func() { _, _ = store.AsyncFlush() }() // makes a new log
			<-failed
		}
		return nil
	}))
	l := openedIn(t, data, Options{MinFree: -1, fs: disk})
	create(t, l, "a")
	e, err := l.use(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	store = e.db
	e.users.Done()
	if _, err := l.Backup(t.Context(), filepath.Join(backups, "b")); !errors.Is(err, syscall.EIO) {
		t.Errorf("Backup of a ledger that was cut off: %v", err)
	}
	if names := namesIn(t, backups); names != "data" {
		t.Errorf("there remain %s", names)
	}
	for tick := time.Tick(time.Millisecond); ; <-tick { // until it is opened anew
		if e, err := l.use(t.Context()); err == nil {
			e.users.Done()
			break
		} else if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
	create(t, l, "c")
}
