package diskledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger/internal/journal"
)

const (
	// draftName is the directory, in the one that a backup is restored to, that gets the copy.
	draftName = ".lapse-restoring"
	// copiedAtOnce is how many bytes are copied before a Restore looks whether it is to end.
	copiedAtOnce = 4 << 20
)

// Restore makes a ledger of a backup: a copy in a directory that does not exist, or is empty, such
// as a file system that was just mounted. The backup stays as it is. The copy was opened once, so
// that a damaged backup is an error. A Restore that fails leaves nothing. One that was killed
// leaves what is no ledger, and may be repeated.
//
// Unless tell is nil, it is called with the number of bytes of each piece that was copied, and with
// that of all.
func Restore(ctx context.Context, backup, dir string, o Options, tell func(copied, total int64)) (err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	if err := checkEmpty(dir); err != nil {
		return err
	}
	from, err := Open(backup, o)
	if err != nil {
		return err
	}
	if err := from.checkBackup(); err != nil {
		return err
	}
	_, missing := os.Stat(dir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		err = errors.Join(err, clearRestored(dir))
		if missing != nil {
			err = errors.Join(err, os.Remove(dir))
		}
	}()
	if err := clearRestored(dir); err != nil { // of an interrupted one
		return err
	}
	draft := filepath.Join(dir, draftName)
	if err := from.copyTo(ctx, draft, tell); err != nil {
		return fmt.Errorf("restoring %s: %w", backup, err)
	}
	copied, err := Open(draft, o)
	if err == nil {
		if _, err = copied.Adopt(ctx); err == nil {
			err = copied.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("the copy of %s cannot be opened: %w", backup, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := moveUp(draft, dir); err != nil {
		return fmt.Errorf("restoring %s: %w", backup, err)
	}
	return syncDir(filepath.Dir(dir))
}

// checkEmpty returns an error if a directory holds anything that neither a new file system has nor
// an interrupted Restore has left.
func checkEmpty(dir string) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	interrupted := slices.ContainsFunc(files, func(f fs.DirEntry) bool { return f.Name() == draftName && f.IsDir() })
	for _, f := range files {
		switch name := f.Name(); {
		case name == "lost+found", name == draftName && interrupted:
		case name == markerName, !interrupted, !f.Type().IsRegular(), !isOfStore(name):
			return fmt.Errorf("%s is not empty (it has %q): name an empty directory, or one that does not exist", dir, name)
		}
	}
	return nil
}

// isOfStore reports whether a file of a ledger may have a name.
func isOfStore(name string) bool {
	for _, pattern := range []string{markerName, "MANIFEST-*", "OPTIONS-*", "marker.*", "*.log", "*.sst", "*.blob", "*.dbtmp", journal.Prefix + "*"} {
		if ok, _ := filepath.Match(pattern, name); ok {
			return true
		}
	}
	return false
}

// clearRestored removes what a Restore has made in a directory that was empty: the draft last,
// since it says that the rest may be removed.
func clearRestored(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, markerName)); err != nil {
		return err
	}
	for _, f := range files {
		if f.Type().IsRegular() && isOfStore(f.Name()) && f.Name() != markerName {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(filepath.Join(dir, draftName))
}

// moveUp moves the files of a ledger out of a draft into the directory that it is in. The marker is
// the last: before, the directory is no ledger.
func moveUp(draft, dir string) error {
	files, err := os.ReadDir(draft)
	if err != nil {
		return err
	}
	move := func(name string) error { return os.Rename(filepath.Join(draft, name), filepath.Join(dir, name)) }
	for _, f := range files {
		if name := f.Name(); name != markerName && name != "LOCK" && name != ownerName {
			if err := move(name); err != nil {
				return err
			}
		}
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	if err := move(markerName); err != nil {
		return err
	}
	if err := os.RemoveAll(draft); err != nil {
		return err
	}
	return syncDir(dir)
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
func (l *Ledger) copyTo(ctx context.Context, dir string, tell func(copied, total int64)) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	files, err := os.ReadDir(l.dir)
	if err != nil {
		return err
	}
	var names []string
	total := int64(0)
	for _, f := range files {
		if name := f.Name(); f.Type().IsRegular() && name != "LOCK" && name != ownerName {
			info, err := f.Info()
			if err != nil {
				return err
			}
			names, total = append(names, name), total+info.Size()
		}
	}
	for _, name := range names {
		err := copyFile(ctx, filepath.Join(l.dir, name), filepath.Join(dir, name), func(n int64) {
			if tell != nil {
				tell(n, total)
			}
		})
		if err != nil {
			return err
		}
	}
	return syncDir(dir)
}

// copyFile copies a file in pieces, until ctx ends.
func copyFile(ctx context.Context, from, to string, tell func(copied int64)) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for err == nil {
		if err = ctx.Err(); err == nil {
			var n int64
			n, err = io.CopyN(out, in, copiedAtOnce)
			tell(n)
		}
	}
	if errors.Is(err, io.EOF) {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}
