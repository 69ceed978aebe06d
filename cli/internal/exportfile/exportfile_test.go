package exportfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func add(t *testing.T, w *Writer, page, next string) {
	t.Helper()
	if err := w.Add([]byte(page), next); err != nil {
		t.Fatal(err)
	}
}

func begun(t *testing.T, name string, topics ...string) *Writer {
	t.Helper()
	w, err := New(name, topics)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// An export that was interrupted anywhere goes on behind the last page that counts.
func TestGoesOn(t *testing.T) {
	for _, suffix := range []string{"", ".gz", ".zst"} {
		name := filepath.Join(t.TempDir(), "all.ndjson"+suffix)
		w := begun(t, name, "x")
		add(t, w, "1\n2\n", "two")
		add(t, w, "3\n", "three")
		if _, err := w.file.WriteString("what was written when the process was killed"); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()

		if _, err := New(name, nil); !errors.Is(err, ErrOther) {
			t.Errorf("an export of other topics: %v", err)
		}
		w = begun(t, name, "x")
		if w.Cursor() != "three" || w.Lines() != 3 {
			t.Errorf("goes on at %q behind line %d", w.Cursor(), w.Lines())
		}
		add(t, w, "4\n", "")
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}
		if _, err := New(name, []string{"x"}); !errors.Is(err, ErrExists) {
			t.Errorf("over a file that exists: %v", err)
		}
		r, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil || string(text) != "1\n2\n3\n4\n" || r.Done() != r.Size() {
			t.Errorf("%s: read %q, %v, %d of %d bytes", suffix, text, err, r.Done(), r.Size())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob(name + ".*"); len(left) != 0 {
			t.Errorf("there remain %v", left)
		}
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("other users can read it: %v, %v", info.Mode(), err)
		}
	}
}

// What was imported is known for one server and one state of the file.
func TestImported(t *testing.T) {
	name := filepath.Join(t.TempDir(), "all.ndjson")
	if err := os.WriteFile(name, []byte("1\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() *Reader {
		t.Helper()
		r, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	if err := open().Note("a", 7); err != nil {
		t.Fatal(err)
	}
	if a, b := open().Imported("a"), open().Imported("b"); a != 7 || b != 0 {
		t.Errorf("imported %d lines, and at another server %d", a, b)
	}
	if err := os.WriteFile(name, []byte("1\n2\n3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := open().Imported("a"); n != 0 {
		t.Errorf("of another file %d lines are imported", n)
	}
	for range 2 {
		if err := open().Forget(); err != nil {
			t.Error(err)
		}
	}
}
