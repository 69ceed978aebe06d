package diskledger

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Restore takes nothing but a backup, and writes nowhere but into an empty directory.
func TestRestoreRefuses(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	l := openedIn(t, data, Options{MinFree: -1})
	create(t, l, "a")
	dir := filepath.Join(t.TempDir(), "b")
	if _, err := l.Backup(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct{ from, to, says string }{
		"a ledger in use":       {data, filepath.Join(t.TempDir(), "r"), "in use"},
		"no ledger":             {t.TempDir(), filepath.Join(t.TempDir(), "r"), "no backup"},
		"nothing":               {"/no/such/directory", filepath.Join(t.TempDir(), "r"), "no backup"},
		"into a used directory": {dir, data, "not empty"},
	} {
		if err := Restore(t.Context(), test.from, test.to, Options{MinFree: -1}, nil); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	tables, _ := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
	if err := os.WriteFile(tables[0], []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "r")
	if err := Restore(t.Context(), dir, to, Options{MinFree: -1}, nil); err == nil {
		t.Error("a damaged backup was restored")
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("a damaged backup leaves a directory")
	}
}

// putFile makes a file, with the directories that it is in.
func putFile(t *testing.T, name, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// namesIn returns the names of the files in a directory, "" if it is not there.
func namesIn(t *testing.T, dir string) string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return strings.Join(names, " ")
}

// backedUp returns a backup of a ledger with two records and a file of some pieces.
func backedUp(t *testing.T) (dir string) {
	t.Helper()
	l := openedIn(t, filepath.Join(t.TempDir(), "data"), Options{MinFree: -1})
	create(t, l, "a")
	dir = filepath.Join(t.TempDir(), "b")
	if _, err := l.Backup(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	// Pebble passes over zeros behind the last record of a log.
	logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
	if err := os.Truncate(logs[len(logs)-1], 3*copiedAtOnce); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A file system that was just mounted is restored into: nothing is made beside it, and it is not
// replaced.
func TestRestoreIntoMountPoint(t *testing.T) {
	t.Parallel()
	dir, to := backedUp(t), filepath.Join(t.TempDir(), "mounted")
	if err := os.MkdirAll(filepath.Join(to, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(to)
	if err != nil {
		t.Fatal(err)
	}
	err = Restore(t.Context(), dir, to, Options{MinFree: -1}, func(int64, int64) {
		if names := namesIn(t, filepath.Dir(to)); names != "mounted" {
			t.Errorf("beside the directory there is %s", names)
		}
	})
	if err != nil {
		t.Fatal("Restore:", err)
	}
	if after, err := os.Stat(to); err != nil || !os.SameFile(before, after) {
		t.Errorf("the directory was replaced, %v", err)
	}
	if all := contentOf(t, to); len(all) != 2 {
		t.Errorf("restored %v", all)
	}
}

// A Restore that is interrupted ends within a file, and leaves nothing.
func TestRestoreIsInterrupted(t *testing.T) {
	t.Parallel()
	dir, empty := backedUp(t), t.TempDir()
	for _, to := range []string{filepath.Join(t.TempDir(), "new"), empty} {
		ctx, interrupt := context.WithCancel(t.Context())
		copied, whole := int64(0), int64(0)
		err := Restore(ctx, dir, to, Options{MinFree: -1}, func(n, total int64) {
			copied, whole = copied+n, total
			if n == copiedAtOnce {
				interrupt()
			}
		})
		if !errors.Is(err, context.Canceled) || copied > whole-copiedAtOnce {
			t.Errorf("%d of %d bytes were copied, %v", copied, whole, err)
		}
		if names := namesIn(t, to); names != "" {
			t.Errorf("it leaves %s", names)
		}
		if _, err := os.Stat(to); (err == nil) != (to == empty) {
			t.Errorf("%s: %v", to, err)
		}
		interrupt()
	}
	copied, whole := int64(0), int64(0)
	if err := Restore(t.Context(), dir, empty, Options{MinFree: -1}, func(n, total int64) { copied, whole = copied+n, total }); err != nil {
		t.Fatal(err)
	}
	if copied != whole || whole < 3*copiedAtOnce {
		t.Errorf("told of %d of %d bytes", copied, whole)
	}
}

// A Restore that was killed while it moved the files leaves no ledger, and can be repeated. Files
// of others stay.
func TestKilledRestore(t *testing.T) {
	t.Parallel()
	dir, to := backedUp(t), filepath.Join(t.TempDir(), "r")
	if err := Restore(t.Context(), dir, to, Options{MinFree: -1}, nil); err != nil {
		t.Fatal(err)
	}
	draft := filepath.Join(to, draftName)
	if err := errors.Join(os.Mkdir(draft, 0o700), os.Rename(filepath.Join(to, markerName), filepath.Join(draft, markerName))); err != nil {
		t.Fatal(err)
	}
	l, err := Open(to, Options{MinFree: -1})
	if err == nil {
		_, err = l.Adopt(t.Context())
	}
	if err == nil {
		t.Fatal("a directory that was restored to in part is a ledger")
	}
	putFile(t, filepath.Join(to, "mine"), "")
	before := namesIn(t, to)
	if err := Restore(t.Context(), dir, to, Options{MinFree: -1}, nil); err == nil || namesIn(t, to) != before {
		t.Errorf("Restore beside a file of others: %v; there is %s", err, namesIn(t, to))
	}
	if err := os.Remove(filepath.Join(to, "mine")); err != nil {
		t.Fatal(err)
	}
	if err := Restore(t.Context(), dir, to, Options{MinFree: -1}, nil); err != nil {
		t.Fatal("Restore again:", err)
	}
	if all := contentOf(t, to); len(all) != 2 {
		t.Errorf("restored %v", all)
	}
}
