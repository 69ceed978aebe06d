package diskledger

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery"
)

// adoptedIn returns a ledger in a directory, and what it logs until it is adopted.
func adoptedIn(t *testing.T, dir string) (*Ledger, string) {
	t.Helper()
	var log bytes.Buffer
	l, err := Open(dir, Options{Log: slog.New(slog.NewTextHandler(&log, nil)), MinFree: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l, log.String()
}

func shut(t *testing.T, l *Ledger) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// Other users cannot read the files, neither new ones nor those that a copy has opened. There is a
// warning of a directory that other users can open.
func TestFilesArePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ledger")
	check := func() {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) < 5 {
			t.Fatalf("%d files, %v", len(entries), err)
		}
		for _, e := range entries {
			if info, err := e.Info(); err == nil && info.Mode().Perm()&others != 0 {
				t.Errorf("%s has the mode %v", e.Name(), info.Mode())
			}
		}
	}
	l, log := adoptedIn(t, dir)
	check()
	shut(t, l)
	if strings.Contains(log, "chmod") {
		t.Errorf("a directory of our own: %s", log)
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if err := os.Chmod(filepath.Join(dir, e.Name()), 0o644); err != nil { //nolint:gosec // as a copy may
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // as administrators do
		t.Fatal(err)
	}
	l, log = adoptedIn(t, dir)
	defer shut(t, l)
	check()
	if !strings.Contains(log, "level=WARN") || !strings.Contains(log, "mode=-rwxr-xr-x") {
		t.Errorf("nothing tells that the directory is open to others: %s", log)
	}
}

// A directory that was removed, or replaced by another one, takes no more tasks, although the open
// files can still be written.
func TestDirectoryGone(t *testing.T) {
	for name, replace := range map[string]func(dir string) error{
		"removed":        os.RemoveAll,
		"marker removed": func(dir string) error { return os.Remove(filepath.Join(dir, markerName)) },
		"replaced": func(dir string) error {
			if err := os.Rename(dir, dir+".old"); err != nil {
				return err
			}
			if err := os.Mkdir(dir, 0o700); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, markerName), []byte("lapse ledger, layout 1\n"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ledger")
			l, _ := adoptedIn(t, dir)
			defer func() { _ = l.Close() }() // without its files it may say that some are missing
			if err := l.Condition(); err != nil {
				t.Fatal(err)
			}
			if err := replace(dir); err != nil {
				t.Fatal(err)
			}
			if err := l.Condition(); err == nil {
				t.Error("it takes new records")
			}
		})
	}
	t.Run("moved back", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "ledger")
		l, _ := adoptedIn(t, dir)
		defer shut(t, l)
		for _, names := range [][2]string{{dir, dir + ".away"}, {dir + ".away", dir}} {
			if err := os.Rename(names[0], names[1]); err != nil {
				t.Fatal(err)
			}
			if err := l.Condition(); (err != nil) != (names[0] == dir) {
				t.Errorf("moved from %s: Condition = %v", filepath.Base(names[0]), err)
			}
		}
	})
}

var _ recovery.Conditioner = (*Ledger)(nil)
