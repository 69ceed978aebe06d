package diskledger

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger/internal/journal"
)

// Files of the directory beside those of the store.
const (
	// markerName says that the directory is a ledger, and in which layout.
	markerName   = "LAPSE"
	markerFormat = "lapse ledger, layout %d\n"
	markerDraft  = "LAPSE.new"
	// ownerName names the process that holds the lock, for the error of other processes.
	ownerName = "OWNER"
)

// lockDirectory makes the directory if need be and locks it. The lock is the kernel's and ends
// with the process, however it ends.
func (l *Ledger) lockDirectory() (*pebble.Lock, error) {
	if err := l.fs.MkdirAll(l.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the ledger's directory: %w", err)
	}
	if l.real {
		// The lock's name must be the same for all processes that open this directory.
		dir, err := filepath.EvalSymlinks(l.dir)
		if err != nil {
			return nil, fmt.Errorf("the ledger's directory: %w", err)
		}
		l.dir = dir
	}
	// This comes before any write: a directory of another program stays as it is.
	if names, err := l.fs.List(l.dir); err == nil && !slices.Contains(names, markerName) {
		if err := l.refuseForeign(names); err != nil {
			return nil, err
		}
	}
	lock, err := pebble.LockDirectory(l.dir, l.fs)
	if err != nil {
		var denied *fs.PathError
		if errors.As(err, &denied) {
			return nil, fmt.Errorf("locking the ledger's directory: %w", err)
		}
		return nil, fmt.Errorf("%w: %s is in use by %s", recovery.ErrHeld, l.dir, l.owner())
	}
	owner := fmt.Sprintf("process %d since %s", os.Getpid(), time.Now().Format(time.RFC3339))
	if err := l.writeFile(ownerName, owner); err != nil {
		return nil, errors.Join(fmt.Errorf("the ledger's directory: %w", err), lock.Close())
	}
	return lock, nil
}

// owner describes the process that holds the lock.
func (l *Ledger) owner() string {
	if owner, err := l.readFile(ownerName); err == nil && owner != "" {
		return owner
	}
	return "another process"
}

// readMarker reports whether the directory holds a ledger. It refuses one that it cannot read, and
// a directory that holds something else.
func (l *Ledger) readMarker() (exists bool, err error) {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return false, fmt.Errorf("the ledger's directory: %w", err)
	}
	marker, err := l.readFile(markerName)
	if errors.Is(err, fs.ErrNotExist) {
		return false, l.refuseForeign(names)
	}
	if err != nil {
		return false, fmt.Errorf("the ledger's directory: %w", err)
	}
	number, ok := strings.CutPrefix(strings.TrimSpace(marker), "lapse ledger, layout ")
	version, err := strconv.Atoi(number)
	switch {
	case !ok || err != nil || version < 1:
		return false, fmt.Errorf("the ledger in %s is torn: its file %s holds %.60q", l.dir, markerName, marker)
	case version != layoutVersion:
		return false, fmt.Errorf("%w: %s has layout %d, this version of Lapse knows %d",
			recovery.ErrLayout, l.dir, version, layoutVersion)
	}
	if !slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, journal.Prefix) }) {
		return false, fmt.Errorf("the ledger in %s is torn: it has no journal (%s*)", l.dir, journal.Prefix)
	}
	return true, nil
}

// refuseForeign returns an error if a directory without a marker holds anything but the remains of
// an interrupted creation of a ledger.
func (l *Ledger) refuseForeign(names []string) error {
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			return fmt.Errorf("the ledger in %s is torn: it holds records, but no file %s", l.dir, markerName)
		}
		ours := false
		for _, pattern := range []string{
			"LOCK", ownerName, markerDraft, "lost+found",
			"MANIFEST-*", "OPTIONS-*", "marker.*", "*.log", "*.dbtmp", journal.Prefix + "*",
		} {
			if ok, _ := filepath.Match(pattern, name); ok {
				ours = true
			}
		}
		if !ours {
			return fmt.Errorf("%s holds other files (%q) and no ledger: name an empty directory, or one that does not exist", l.dir, name)
		}
	}
	return nil
}

// writeMarker makes the directory a ledger: from now on a store must be there.
func (l *Ledger) writeMarker() error {
	err := l.writeFile(markerDraft, fmt.Sprintf(markerFormat, layoutVersion))
	if err == nil {
		err = l.fs.Rename(l.fs.PathJoin(l.dir, markerDraft), l.fs.PathJoin(l.dir, markerName))
	}
	if err == nil {
		err = l.syncDirectory()
	}
	if err != nil {
		return fmt.Errorf("making the ledger's file %s: %w", markerName, err)
	}
	return nil
}

func (l *Ledger) syncDirectory() error {
	dir, err := l.fs.OpenDir(l.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (l *Ledger) writeFile(name, content string) error {
	f, err := l.fs.Create(l.fs.PathJoin(l.dir, name), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = io.WriteString(f, content)
	return errors.Join(err, f.Sync(), f.Close())
}

func (l *Ledger) readFile(name string) (string, error) {
	f, err := l.fs.Open(l.fs.PathJoin(l.dir, name))
	if err != nil {
		return "", err
	}
	content, err := io.ReadAll(f)
	return string(content), errors.Join(err, f.Close())
}
