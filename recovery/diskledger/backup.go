package diskledger

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/lapsehq/lapse/recovery"
)

const (
	// partialSuffix ends the name of the directory in which a backup is being made.
	partialSuffix = ".partial"
	// unfinishedName is the first file in that directory. Without it, the directory is not Lapse's.
	unfinishedName    = "UNFINISHED"
	unfinishedContent = "an unfinished backup of Lapse; the next one of its name replaces it\n"
	// partialStore is where in that directory the store is copied to.
	partialStore = "store"
	// probeName is a link that says whether files can be linked there.
	probeName = "probe"
)

// Backup implements recovery.Backer. The records are linked where the file system allows it: then a
// backup needs next to no room at first, and as much as its records later, when the ledger has
// replaced their files. It waits for no write, and no write waits for it.
func (l *Ledger) Backup(ctx context.Context, dir string) (bytes int64, err error) {
	if !l.backup.TryLock() {
		return 0, recovery.ErrBackupRunning
	}
	defer l.backup.Unlock()
	if dir, err = filepath.Abs(dir); err != nil {
		return 0, err
	}
	if _, err := os.Lstat(dir); err == nil {
		return 0, fmt.Errorf("%w: %s", recovery.ErrBackupExists, dir)
	}
	e, err := l.use(ctx)
	if err != nil {
		return 0, err
	}
	defer e.users.Done()
	partial := dir + partialSuffix
	if err := beginPartial(partial); err != nil {
		return 0, err
	}
	bytes, err = l.copyStore(e, partial, dir)
	if failed := os.RemoveAll(partial); err == nil && failed != nil {
		l.log.Warn("the backup is made; what is left of the making cannot be removed", "dir", partial, "error", failed)
	} else {
		err = errors.Join(err, failed)
	}
	if err != nil {
		return 0, fmt.Errorf("backup of %s: %w", l.dir, err)
	}
	return bytes, nil
}

// copyStore makes a backup: first as a part of the directory partial, which exists.
func (l *Ledger) copyStore(e *engine, partial, dir string) (bytes int64, err error) {
	if err := l.roomFor(e, partial); err != nil {
		return 0, err
	}
	e.fence.leaveOut(partial)
	defer e.fence.leaveOut("")
	store := filepath.Join(partial, partialStore)
	// The journal has whatever the copied tables lack, as long as nothing of it is freed.
	defer e.journal.Hold()()
	if err := e.db.Checkpoint(store); err != nil {
		return 0, err
	}
	if err := e.journal.Copy(store); err != nil {
		return 0, err
	}
	if err := e.fence.broken(); err != nil { // behind which it has copied less than everything
		return 0, err
	}
	return finishBackup(store, dir)
}

// beginPartial makes the directory in which a backup is made. It replaces the one of an interrupted
// backup, and nothing else.
func beginPartial(partial string) error {
	switch info, err := os.Lstat(partial); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%w: %s", recovery.ErrInTheWay, partial)
	default:
		if err := removePartial(partial); err != nil {
			return err
		}
	}
	if err := os.Mkdir(partial, 0o700); err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(partial, unfinishedName), []byte(unfinishedContent)); err != nil {
		return errors.Join(err, os.RemoveAll(partial))
	}
	return nil
}

// removePartial removes what an interrupted backup has left: its mark last, so that this can be
// interrupted as well.
func removePartial(partial string) error {
	files, err := os.ReadDir(partial)
	if err != nil {
		return err
	}
	if len(files) > 0 { // otherwise it ended before its mark was made
		if _, err := os.Lstat(filepath.Join(partial, unfinishedName)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: %s has no file %s", recovery.ErrInTheWay, partial, unfinishedName)
		} else if err != nil {
			return err
		}
	}
	for _, name := range []string{partialStore, probeName, unfinishedName, ""} {
		if err := os.RemoveAll(filepath.Join(partial, name)); err != nil {
			return err
		}
	}
	return nil
}

// roomFor returns ErrFull if a backup does not fit into a directory. Files that can be linked take
// no room; the journal is always copied.
func (l *Ledger) roomFor(e *engine, partial string) error {
	m := e.db.Metrics()
	need := uint64(e.journal.Bytes())
	if err := os.Link(filepath.Join(l.dir, markerName), filepath.Join(partial, probeName)); err != nil {
		need += m.DiskSpaceUsage()
	}
	usage, err := l.fs.GetDiskUsage(partial)
	if err != nil {
		return fmt.Errorf("the directory of backups: %w", err)
	}
	if usage.AvailBytes < need+l.space.floor {
		return fmt.Errorf("%w: a backup needs %d MiB in %s, which has %d left, of which %d are kept free",
			recovery.ErrFull, need>>20, filepath.Dir(partial), usage.AvailBytes>>20, l.space.floor>>20)
	}
	return nil
}

// finishBackup makes the copy of a store a ledger, and gives it its name.
func finishBackup(store, dir string) (bytes int64, err error) {
	files, err := os.ReadDir(store)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return 0, err
		}
		bytes += info.Size()
	}
	if err := writeSynced(filepath.Join(store, markerName), fmt.Appendf(nil, markerFormat, layoutVersion)); err != nil {
		return 0, err
	}
	if err := syncDir(store); err != nil {
		return 0, err
	}
	if err := os.Rename(store, dir); err != nil {
		return 0, err
	}
	return bytes, syncDir(filepath.Dir(dir))
}

func writeSynced(name string, content []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
