package diskledger

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A private file system makes files that only their owner can read. Records hold payloads, and the
// settings hold the key of receipts.
type private struct{ vfs.FS }

// Create implements vfs.FS. The mode is set before anything is written.
func (p private) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := p.FS.Create(name, category)
	return restrict(name, f, err)
}

// OpenReadWrite implements vfs.FS.
func (p private) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := p.FS.OpenReadWrite(name, category, opts...)
	return restrict(name, f, err)
}

// MkdirAll implements vfs.FS.
func (p private) MkdirAll(dir string, perm os.FileMode) error {
	return p.FS.MkdirAll(dir, perm&^others)
}

func restrict(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(name, 0o600); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// others are the permission bits of users other than the owner.
const others = 0o077

// closeToOthers removes other users' access to the files of the directory, which a copy can have
// made readable for all. It logs a warning about a directory that others can open: its mode is its
// owner's choice.
func (l *Ledger) closeToOthers() error {
	if !l.real {
		return nil
	}
	if info, err := os.Stat(l.dir); err == nil && info.Mode().Perm()&others != 0 {
		l.log.Warn("other users can open the directory of the ledger; chmod 700 prevents that", "dir", l.dir, "mode", info.Mode().Perm().String())
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("the ledger's directory: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&others == 0 {
			continue // it was removed meanwhile
		}
		if err := os.Chmod(filepath.Join(l.dir, e.Name()), info.Mode().Perm()&^fs.FileMode(others)); err != nil {
			l.log.Warn("other users can read a file of the ledger", "file", filepath.Join(l.dir, e.Name()), "error", err)
		}
	}
	return nil
}

// noteMarker remembers the identity of the marker file.
func (l *Ledger) noteMarker() (err error) {
	if l.real {
		l.marker, err = os.Stat(filepath.Join(l.dir, markerName))
	}
	return err
}

// gone returns why the directory is not the one that was adopted. Pebble notices only when it needs
// its next file: until then it writes to files that have no name any more.
func (l *Ledger) gone() error {
	if l.marker == nil {
		return nil
	}
	switch now, err := os.Stat(filepath.Join(l.dir, markerName)); {
	case err != nil:
		return fmt.Errorf("the ledger's directory is not there any more: %w", err)
	case !os.SameFile(l.marker, now):
		return fmt.Errorf("the ledger's directory %s was replaced: its file %s is another one", l.dir, markerName)
	}
	return nil
}
