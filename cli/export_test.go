package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lapsehq/lapse/cli/internal/exportfile"
)

// An export of one server is imported by another one, compressed or not, and by way of a pipe.
func TestExportAndImportCommands(t *testing.T) {
	from := newShell(t)
	from.ok("topics", "set", "x", "--weight", "7")
	for i := range 20 {
		from.ok("schedule", "x", "--id", fmt.Sprint("task-", i), "--delay", "1h", "--payload", `{"n": 1.50}`)
	}
	from.ok("schedule", "y", "--id", "dead")
	from.ok("bury", from.lines("reserve", "y", "--wait", "5s")[0]["receipt"].(string))
	for _, name := range []string{"all.ndjson", "all.ndjson.gz", "all.ndjson.zst"} {
		file := filepath.Join(t.TempDir(), name)
		from.prints([]string{"export", "--output", file}, "exported 1 topic, 20 tasks, 1 dead and 0 finished")
		from.fails(exitUsage, []string{"export", "--output", file}, "exists")
		to := newShell(t)
		to.prints([]string{"import", "file", file}, "imported 21 tasks and 1 topic\n")
		to.prints([]string{"import", "file", file}, "imported 0 tasks and 0 topics; there already: 21 tasks and 1 topic\n")
		if got, want := fmt.Sprint(to.object("get", "task-3")["payload"]), "map[n:1.5]"; got != want {
			t.Errorf("the payload is %s", got)
		}
		if left, _ := filepath.Glob(file + ".*"); len(left) != 0 {
			t.Errorf("there remain %v", left)
		}
		to.ok("topics", "set", "x", "--weight", "8")
		to.prints([]string{"import", "file", file, "--replace-topics"}, "imported 0 tasks and 1 topic; there already: 21 tasks")
	}
	text := from.ok("export", "--topic", "y")
	if strings.Count(text, "\n") != 3 || !strings.Contains(text, `"dead"`) {
		t.Errorf("exported %s", text)
	}
	to := newShell(t)
	to.typed(text)
	to.prints([]string{"import", "file", "-"}, "imported 1 task and 0 topics\n")
}

// A file that is no export, or is cut off, is told from a whole one, and so are refused lines.
func TestImportOfWrongFiles(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "x", "--id", "a", "--delay", "1h")
	s.ok("schedule", "x", "--id", "b", "--delay", "1h")
	text := s.ok("export")
	for _, test := range []struct {
		text  string
		exit  int
		parts []string
	}{
		{"", exitFailed, []string{"not an export"}},
		{`{"id":"a"}` + "\n", exitFailed, []string{"not an export"}},
		{text[:len(text)-30], exitFailed, []string{"cut off"}},
		{strings.Replace(text, `"fingerprint":"`, `"fingerprint":"x`, 1), exitUsage, []string{"not imported 1 line", "line 2", "fingerprint"}},
		{strings.Replace(text, `"version":1`, `"version":2`, 1), exitUsage, []string{"version"}},
	} {
		s.fails(test.exit, []string{"import", "file", s.file(test.text)}, test.parts...)
	}
	s.fails(exitUsage, []string{"import", "file", "/no/such/file"}, "/no/such/file")
}

// An interrupted command leaves what a repeated one goes on with, at the same server.
func TestExportGoesOn(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "x", "--id", "a", "--delay", "1h")
	s.ok("schedule", "x", "--id", "b", "--delay", "1h")
	s.ok("topics", "set", "x", "--weight", "7")
	file := filepath.Join(t.TempDir(), "all.ndjson")
	var broken atomic.Bool // the server answers the first page only
	front := fronting(s, func(w http.ResponseWriter, r *http.Request) bool {
		if broken.Load() && r.URL.Query().Has("cursor") {
			http.Error(w, "broken", http.StatusForbidden)
			return true
		}
		return false
	})
	interrupted := func() {
		t.Helper()
		broken.Store(true)
		front.fails(exitDenied, []string{"export", "--output", file}, "repeat the command to go on")
		broken.Store(false)
		for _, suffix := range []string{".partial", ".progress"} {
			if _, err := os.Stat(file + suffix); err != nil {
				t.Fatal(err)
			}
		}
	}
	exported := func(hint string) {
		t.Helper()
		code, out, errs := front.run("export", "--output", file)
		if code != exitOK || !strings.Contains(out, "exported 1 topic, 2 tasks") || !strings.Contains(errs, hint) {
			t.Errorf("exit code %d, %s%s", code, out, errs)
		}
		got, err := os.ReadFile(file)
		if err != nil || strings.Count(string(got), "\n") != 5 || strings.ContainsAny(string(got), "\x00") || strings.Contains(string(got), "rubbish") {
			t.Errorf("%s, %v", got, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}

	interrupted()
	front.fails(exitUsage, []string{"export", "--output", file, "--topic", "y"}, "something else was interrupted", file+".progress")
	s.fails(exitUsage, []string{"export", "--output", file}, "something else was interrupted", front.url, file+".progress")
	rest, err := os.OpenFile(file+".partial", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = rest.WriteString("rubbish")
	if err := errors.Join(err, rest.Close()); err != nil {
		t.Fatal(err)
	}
	exported("going on behind line 2,")

	interrupted()
	if err := os.Truncate(file+".partial", 5); err != nil {
		t.Fatal(err)
	}
	exported("beginning anew: " + file + ".partial has 5 bytes")

	busy, err := exportfile.New(file, front.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	front.fails(exitInUse, []string{"export", "--output", file}, "another lapse export writes "+file)
}

// If the server cannot go on where it was, the file is cut back to where the tasks begin. What was
// written to standard output cannot be, so the command fails.
func TestExportThatBeginsAnew(t *testing.T) {
	s := newShell(t)
	s.ok("topics", "set", "x", "--weight", "7")
	for i := range 3 {
		s.ok("schedule", "x", "--id", fmt.Sprint("task-", i), "--delay", "1h")
	}
	var forgets atomic.Bool
	// As a restarted server does, it does not know the mark in its log of requeued tasks.
	front := fronting(s, func(_ http.ResponseWriter, r *http.Request) bool {
		q := r.URL.Query()
		raw, _ := base64.RawURLEncoding.DecodeString(q.Get("cursor"))
		if another := regexp.MustCompile(`"m":{"\w+"`).ReplaceAll(raw, []byte(`"m":{"other"`)); bytes.Contains(raw, []byte(`"s":3`)) && forgets.Swap(false) {
			q.Set("cursor", base64.RawURLEncoding.EncodeToString(another))
			r.URL.RawQuery = q.Encode()
		}
		return false
	})
	for _, name := range []string{"all.ndjson", "all.ndjson.zst"} {
		forgets.Store(true)
		file := filepath.Join(t.TempDir(), name)
		front.prints([]string{"export", "--output", file}, "exported 1 topic, 3 tasks, 0 dead and 0 finished")
		if forgets.Load() {
			t.Fatal("the export did not begin anew")
		}
		r, err := exportfile.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || strings.Count(string(text), "\n") != 6 || !strings.Contains(string(text), `"topics":1,"tasks":3,`) {
			t.Errorf("%s, %v", text, err)
		}
	}
	forgets.Store(true)
	front.fails(exitFailed, []string{"export"}, "has begun anew", "--output")
	if n := strings.Count(front.ok("export"), "\n"); n != 6 {
		t.Errorf("the next one has %d lines", n)
	}
}

// fronting is a shell of a server that passes on to that of s what it does not answer itself.
func fronting(s *shell, answer func(w http.ResponseWriter, r *http.Request) bool) *shell {
	s.Helper()
	to, err := url.Parse(s.url)
	if err != nil {
		s.Fatal(err)
	}
	pass := httputil.NewSingleHostReverseProxy(to)
	return canned(s.T, func(w http.ResponseWriter, r *http.Request) {
		if !answer(w, r) {
			pass.ServeHTTP(w, r)
		}
	})
}

// A topic that does not exist leaves no file. One without settings may have finished tasks, which
// are exported.
func TestExportOfUnknownTopic(t *testing.T) {
	s := newShell(t)
	s.ok("topics", "set", "x", "--keep-finished", "1h")
	s.ok("schedule", "x", "--id", "a")
	s.ok("reserve", "x", "--ack", "--wait", "5s")
	s.ok("topics", "delete", "x")
	file := filepath.Join(t.TempDir(), "all.ndjson")
	s.fails(exitNotFound, []string{"export", "--output", file, "--topic", "x", "--topic", "y"}, `the topic "y" is unknown`)
	if left, _ := filepath.Glob(file + "*"); len(left) != 0 {
		t.Errorf("there remain %v", left)
	}
	s.prints([]string{"export", "--output", file, "--topic", "x"}, "exported 0 topics, 0 tasks, 0 dead and 1 finished")
}

// A half is an import that was interrupted after most of its file.
type half struct {
	*shell // the server
	file   string
	errs   string // what the interrupted command has said
}

// halfImported interrupts an import of a topic and more tasks than a request takes. The second task
// is refused.
func halfImported(t *testing.T) half {
	t.Helper()
	const tasks = 10_050
	from := newShell(t)
	from.ok("schedule", "x", "--id", "task-00000", "--delay", "1h")
	from.ok("topics", "set", "x", "--weight", "7")
	lines := strings.SplitAfter(from.ok("export"), "\n")
	if len(lines) != 5 {
		t.Fatalf("exported %q", lines)
	}
	var text strings.Builder
	text.WriteString(lines[0] + lines[1])
	for i := range tasks {
		line := strings.Replace(lines[2], "task-00000", fmt.Sprintf("task-%05d", i), 1)
		if i == 1 {
			line = strings.Replace(line, `"fingerprint":"`, `"fingerprint":"x`, 1)
		}
		text.WriteString(line)
	}
	fmt.Fprintf(&text, `{"type":"end","topics":1,"tasks":%d,"dead":0,"finished":0,"unreadable":0}`+"\n", tasks)
	h := half{file: from.file(text.String())}

	to := newShell(t)
	to.ok("topics", "set", "x", "--weight", "8")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	last := fmt.Sprintf("task-%05d", tasks-1)
	h.shell = fronting(to, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/import" || ctx.Err() != nil {
			return false
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if !bytes.Contains(body, []byte(last)) {
			return false
		}
		for r.Context().Err() == nil { // until what comes before it is done
			if _, err := os.Stat(h.file + ".imported"); err == nil {
				interrupt()
				<-r.Context().Done() // an answer beside the interruption would be read as one
				return true
			}
			runtime.Gosched()
		}
		return true
	})
	var o, e screen
	if code := run(ctx, []string{"import", "file", h.file, "--server", h.url}, streams{&o, &e}); code != exitInterrupted {
		t.Errorf("exit code %d: %s%s", code, &o, &e)
	}
	h.errs = e.String()
	return h
}

// The lines that were refused before an interruption are told then, and again in the end.
func TestImportGoesOn(t *testing.T) {
	h := halfImported(t)
	for _, part := range []string{"repeat the command to go on", "not imported 1 line:", "line 4: ", "fingerprint"} {
		if !strings.Contains(h.errs, part) {
			t.Errorf("%q is not in\n%s", part, h.errs)
		}
	}
	code, out, errs := h.run("import", "file", h.file)
	if code != exitUsage || !strings.HasPrefix(errs, "going on behind line ") || strings.Contains(out, "there already") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	for _, part := range []string{"not imported 1 line (1 of them by an earlier command):", "line 4: ", "fingerprint"} {
		if !strings.Contains(errs, part) {
			t.Errorf("%q is not in\n%s", part, errs)
		}
	}
	if left, _ := filepath.Glob(h.file + ".*"); len(left) != 0 {
		t.Errorf("there remain %v", left)
	}
}

// An import with --replace-topics does not go on with one that has left the topics as they were.
func TestImportBeginsAnew(t *testing.T) {
	h := halfImported(t)
	code, out, errs := h.run("import", "file", h.file, "--replace-topics")
	if code != exitUsage || !strings.HasPrefix(errs, "beginning anew: "+h.file+".imported") || !strings.Contains(out, "and 1 topic; there already: ") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if n := fmt.Sprint(h.object("topics", "get", "x")["weight"]); n != "7" {
		t.Errorf("the weight is %s", n)
	}
}

// A command that has done nothing tells only why.
func TestImportNotAllowed(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "x", "--id", "a", "--delay", "1h")
	file := s.file(s.ok("export"))
	tokens := written(t, "tokens.yaml", lineOf("a", "old", "read"))
	to, _ := started(t, "--data", t.TempDir(), "--token-file", tokens)
	code, out, errs := (&shell{t, to}).run("import", "file", file)
	if code != exitDenied || out != "" || !strings.Contains(errs, "token") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

// A second import of a file at the same time keeps no place, and says so. It imports all the same.
func TestImportBesideAnother(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "x", "--id", "a", "--delay", "1h")
	file := s.file(s.ok("export"))
	first, err := exportfile.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	noted := exportfile.Imported{Server: s.url, Lines: 1}
	if err := first.Note(&noted); err != nil {
		t.Fatal(err)
	}
	code, out, errs := s.run("import", "file", file)
	if code != exitOK || !strings.Contains(errs, "beginning anew: another lapse import") || !strings.Contains(out, "there already: 1 task") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if got, anew := first.Imported(s.url, false); got.Lines != 1 || anew != "" {
		t.Errorf("the place of the first is line %d: %s", got.Lines, anew)
	}
}
