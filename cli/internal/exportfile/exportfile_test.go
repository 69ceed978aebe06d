package exportfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/client"
)

func add(t *testing.T, w *Writer, page, next string) {
	t.Helper()
	if err := w.Add([]byte(page), next, false); err != nil {
		t.Fatal(err)
	}
}

func begun(t *testing.T, name string, topics ...string) *Writer {
	t.Helper()
	w, err := New(name, "a", topics)
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

		if _, err := New(name, "a", nil); !errors.Is(err, ErrOther) {
			t.Errorf("an export of other topics: %v", err)
		}
		if _, err := New(name, "b", []string{"x"}); !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), `the server "a"`) || !strings.Contains(err.Error(), name+".progress") {
			t.Errorf("an export of another server: %v", err)
		}
		w = begun(t, name, "x")
		if w.Cursor() != "three" || w.Lines() != 3 {
			t.Errorf("goes on at %q behind line %d", w.Cursor(), w.Lines())
		}
		add(t, w, "4\n", "")
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}
		if _, err := New(name, "a", []string{"x"}); !errors.Is(err, ErrExists) {
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

// When the tasks begin once more, what was written of them is dropped, also by an export that goes
// on.
func TestTasksBeginAnew(t *testing.T) {
	for _, suffix := range []string{"", ".zst"} {
		name := filepath.Join(t.TempDir(), "all.ndjson"+suffix)
		w := begun(t, name)
		begins := func() {
			t.Helper()
			if err := w.Add(nil, "tasks", true); err != nil || w.Lines() != 1 || w.Cursor() != "tasks" {
				t.Fatalf("%d lines, cursor %q, %v", w.Lines(), w.Cursor(), err)
			}
		}
		add(t, w, "topic\n", "more")
		begins()
		add(t, w, "first\nsecond\n", "more")
		begins()
		add(t, w, "third\n", "more")
		_ = w.Close()
		w = begun(t, name)
		begins()
		_ = w.Close()
		w = begun(t, name)
		add(t, w, "last\n", "")
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}
		r, err := Open(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || string(text) != "topic\nlast\n" {
			t.Errorf("%s: %q, %v", suffix, text, err)
		}
	}
}

// What an interrupted export has left is not gone on with where something of it is missing.
func TestBeginsAnew(t *testing.T) {
	name := filepath.Join(t.TempDir(), "all.ndjson")
	for _, test := range []struct {
		missing, why string
		break_       func(w *Writer) error
	}{
		{"the end of the partial file", "has 1 bytes, and should have 2", func(*Writer) error { return os.Truncate(name+".partial", 1) }},
		{"the partial file", "has 0 bytes, and should have 2", func(*Writer) error { return os.Remove(name + ".partial") }},
		{"the cursor", "does not say where to go on", func(w *Writer) error { return w.Add(nil, "", false) }},
	} {
		w := begun(t, name)
		add(t, w, "1\n", "two")
		if err := errors.Join(test.break_(w), w.Close()); err != nil {
			t.Fatal(err)
		}
		w = begun(t, name)
		if w.Cursor() != "" || w.Lines() != 0 || !strings.Contains(w.Anew(), test.why) {
			t.Errorf("without %s: goes on at %q behind line %d: %s", test.missing, w.Cursor(), w.Lines(), w.Anew())
		}
		if _, err := os.Stat(name + ".progress"); err == nil {
			t.Errorf("without %s: what is written now is counted by the old progress", test.missing)
		}
		add(t, w, "3\n", "")
		if err := w.Finish(); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(name); err != nil || string(text) != "3\n" {
			t.Errorf("without %s: %q, %v", test.missing, text, err)
		}
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// Two exports do not write the same file, and one that is refused leaves everything as it is.
func TestOneAtATime(t *testing.T) {
	name := filepath.Join(t.TempDir(), "all.ndjson")
	w := begun(t, name)
	for _, page := range []string{"1\n", "2\n"} {
		if _, err := New(name, "a", nil); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), name) {
			t.Errorf("while another one writes: %v", err)
		}
		add(t, w, page, "next")
	}
	if err := w.Finish(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != "1\n2\n" {
		t.Errorf("%q, %v", text, err)
	}
	other := filepath.Join(t.TempDir(), "other.ndjson")
	if err := begun(t, other).Discard(); err != nil {
		t.Fatal(err)
	}
	if err := begun(t, other).Close(); err != nil {
		t.Errorf("after one that has ended: %v", err)
	}
}

// A link in the place of what an export writes to is not followed: its target stays as it is.
func TestLinkInTheWay(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "all.ndjson")
	if err := os.Symlink(precious, name+partialSuffix); err != nil {
		t.Fatal(err)
	}
	if _, err := New(name, "a", nil); err == nil {
		t.Error("an export writes through a link")
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("the target is %q (%v)", text, err)
	}
}

// What was imported is known for one import and one state of the file.
func TestImported(t *testing.T) {
	name := filepath.Join(t.TempDir(), "all.ndjson")
	if err := os.WriteFile(name, []byte("1\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var last *Reader
	open := func() *Reader {
		t.Helper()
		if last != nil {
			_ = last.Close()
		}
		var err error
		if last, err = Open(name); err != nil {
			t.Fatal(err)
		}
		return last
	}
	t.Cleanup(func() { _ = last.Close() })
	want := Imported{"a", true, 7, 1, []client.ImportError{{Line: 3, ID: "x", Problem: &client.Problem{Type: "/problems/invalid"}}}}
	if err := open().Note(&want); err != nil {
		t.Fatal(err)
	}
	anew := func(server string, replaceTopics bool, why string) {
		t.Helper()
		got, anew := open().Imported(server, replaceTopics)
		if diff := cmp.Diff(Imported{Server: server, ReplaceTopics: replaceTopics}, got); diff != "" || !strings.Contains(anew, why) {
			t.Errorf("begins anew because %q: %s", anew, diff)
		}
	}
	got, why := open().Imported("a/", true)
	if diff := cmp.Diff(want, got); diff != "" || why != "" {
		t.Errorf("%s: %s", why, diff)
	}
	anew("b", true, `the server "a"`)
	anew("a", false, "with --replace-topics")
	if err := os.WriteFile(name, []byte("1\n2\n3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	anew("a", true, "has changed")
	if err := open().Note(&Imported{Server: "a"}); err != nil {
		t.Fatal(err)
	}
	anew("a", true, "without --replace-topics")
	if err := os.WriteFile(name+".imported", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	anew("a", true, name+".imported: ")
	for range 2 {
		if err := open().Forget(); err != nil {
			t.Error(err)
		}
	}
}

// Of two imports of a file, the first keeps its place, and the second has none.
func TestImportedOneAtATime(t *testing.T) {
	name := filepath.Join(t.TempDir(), "all.ndjson")
	if err := os.WriteFile(name, []byte("1\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var readers [2]*Reader
	for i := range readers {
		var err error
		if readers[i], err = Open(name); err != nil {
			t.Fatal(err)
		}
	}
	first, second := readers[0], readers[1]
	if err := first.Note(&Imported{Server: "a", Lines: 1}); err != nil {
		t.Fatal(err)
	}
	if done, why := second.Imported("a", false); done.Lines != 0 || !strings.Contains(why, "another lapse import") {
		t.Errorf("the second goes on behind line %d: %q", done.Lines, why)
	}
	if err := second.Note(&Imported{Server: "a", Lines: 2}); err == nil {
		t.Error("the second notes its place")
	}
	if err := errors.Join(second.Forget(), second.Close()); err != nil {
		t.Error(err)
	}
	if done, why := first.Imported("a", false); done.Lines != 1 || why != "" {
		t.Errorf("the first goes on behind line %d: %q", done.Lines, why)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
}
