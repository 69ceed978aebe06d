package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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

// An interrupted command leaves what a repeated one goes on with.
func TestExportGoesOn(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "x", "--id", "a", "--delay", "1h")
	file := filepath.Join(t.TempDir(), "all.ndjson")
	if err := os.WriteFile(file+".partial", []byte("{\"type\":\"lapse_export\",\"version\":1}\nrubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := s.ok("export")
	if strings.Count(text, "\n") != 3 {
		t.Fatalf("exported %s", text)
	}
	first := strings.SplitAfter(text, "\n")[0]
	if err := os.WriteFile(file+".progress", fmt.Appendf(nil, `{"cursor":"","bytes":%d,"lines":1}`, len(`{"type":"lapse_export","version":1}`)+1), 0o600); err != nil {
		t.Fatal(err)
	}
	s.fails(exitUsage, []string{"export", "--output", file, "--topic", "y"}, "something else was interrupted", file+".progress")
	code, out, errs := s.run("export", "--output", file)
	if code != exitOK || !strings.Contains(out, "exported 0 topics, 1 task") || !strings.Contains(errs, "going on behind line 1") {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	got, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(got), `{"type":"lapse_export","version":1}`+"\n{") || strings.Contains(string(got), "rubbish") {
		t.Errorf("%s after %s, %v", got, first, err)
	}
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
