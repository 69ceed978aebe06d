package diskledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lapsehq/lapse/recovery"
)

const (
	// partialSuffix ends the name of a backup that is being made, draftSuffix that of a directory
	// into which one is being restored.
	partialSuffix = ".partial"
	draftSuffix   = ".restoring"
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
	if err := os.RemoveAll(partial); err != nil { // of an interrupted one
		return 0, err
	}
	if err := l.roomFor(e, filepath.Dir(dir)); err != nil {
		return 0, err
	}
	e.fence.leaveOut(filepath.Dir(dir))
	defer e.fence.leaveOut("")
	if err = e.db.Checkpoint(partial, pebble.WithFlushedWAL()); err == nil {
		err = e.fence.broken() // behind which it has copied less than everything
	}
	if err == nil {
		bytes, err = finishBackup(partial, dir)
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("backup of %s: %w", l.dir, err), os.RemoveAll(partial))
	}
	return bytes, nil
}

// roomFor returns ErrFull if a backup does not fit into a directory. Files that can be linked take
// no room; the log is always copied.
func (l *Ledger) roomFor(e *engine, parent string) error {
	m := e.db.Metrics()
	need := m.WAL.PhysicalSize + m.MemTable.Size
	probe := filepath.Join(parent, ".lapse-link")
	if err := os.Link(filepath.Join(l.dir, markerName), probe); err != nil {
		need += m.DiskSpaceUsage()
	} else if err := os.Remove(probe); err != nil {
		return err
	}
	usage, err := l.fs.GetDiskUsage(parent)
	if err != nil {
		return fmt.Errorf("the directory of backups: %w", err)
	}
	if usage.AvailBytes < need+l.space.floor {
		return fmt.Errorf("%w: a backup needs %d MiB in %s, which has %d left, of which %d are kept free",
			recovery.ErrFull, need>>20, parent, usage.AvailBytes>>20, l.space.floor>>20)
	}
	return nil
}

// finishBackup makes the copy of a store a ledger, and gives it its name.
func finishBackup(partial, dir string) (bytes int64, err error) {
	files, err := os.ReadDir(partial)
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
	if err := writeSynced(filepath.Join(partial, markerName), fmt.Appendf(nil, markerFormat, layoutVersion)); err != nil {
		return 0, err
	}
	if err := syncDir(partial); err != nil {
		return 0, err
	}
	if err := os.Rename(partial, dir); err != nil {
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

// Restore makes a ledger of a backup: a copy in a directory that does not exist, or is empty. The
// backup stays as it is. The copy was opened once, so that a damaged backup is an error. An
// interrupted Restore leaves nothing in the directory, and may be repeated.
func Restore(ctx context.Context, backup, dir string, o Options) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if files, err := os.ReadDir(dir); err == nil && len(files) > 0 {
		return fmt.Errorf("%s is not empty: name an empty directory, or one that does not exist", dir)
	}
	from, err := Open(backup, o)
	if err != nil {
		return err
	}
	if err := from.checkBackup(); err != nil {
		return err
	}
	draft := dir + draftSuffix
	if err := os.RemoveAll(draft); err != nil { // of an interrupted one
		return err
	}
	if err := from.copyTo(ctx, draft); err != nil {
		return errors.Join(fmt.Errorf("restoring %s: %w", backup, err), os.RemoveAll(draft))
	}
	copied, err := Open(draft, o)
	if err == nil {
		if _, err = copied.Adopt(ctx); err == nil {
			err = copied.Close()
		}
	}
	if err != nil {
		return errors.Join(fmt.Errorf("the copy of %s cannot be opened: %w", backup, err), os.RemoveAll(draft))
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(draft, dir); err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}

// checkBackup returns an error if the directory is no ledger, or one that is in use.
func (l *Ledger) checkBackup() error {
	if _, err := os.Stat(filepath.Join(l.dir, markerName)); err != nil {
		return fmt.Errorf("%s is no backup: it has no file %s: %w", l.dir, markerName, err)
	}
	if _, err := l.readMarker(); err != nil {
		return err
	}
	// A backup may be where nothing can be written. Then no process can use it either.
	lock, err := pebble.LockDirectory(l.dir, l.fs)
	var denied *fs.PathError
	switch {
	case err == nil:
		return lock.Close()
	case errors.As(err, &denied):
		return nil
	}
	return fmt.Errorf("%w: %s is no backup; it is in use by %s", recovery.ErrHeld, l.dir, l.owner())
}

// copyTo copies the files of the ledger.
func (l *Ledger) copyTo(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	files, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if name := f.Name(); f.Type().IsRegular() && name != "LOCK" && name != ownerName {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := copyFile(filepath.Join(l.dir, name), filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return syncDir(dir)
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
