package cli

import (
	"strings"
	"testing"
)

// A search goes on to its end and says each thing once, the best matches of a part first.
func TestFind(t *testing.T) {
	s := newShell(t)
	for _, id := range []string{"a-8812", "8812", "8812-b", "other"} {
		s.ok("schedule", "shop.8812", "--id", id, "--delay", "1h", "--group", "g-"+id)
	}
	lines := strings.Split(strings.TrimSpace(s.ok("find", "8812")), "\n")
	want := []string{"task 8812 ", "task 8812-b ", "task a-8812 ", "group g-8812 ", "group g-8812-b ", "group g-a-8812 ", "topic shop.8812"}
	if len(lines) != len(want) {
		t.Fatalf("found %q", lines)
	}
	for i, line := range lines {
		if line = strings.Join(strings.Fields(line), " ") + " "; !strings.HasPrefix(line, want[i]) {
			t.Errorf("line %d is %q, want %q", i, line, want[i])
		}
	}
	if _, out, errs := s.run("find", "8812", "--limit", "2"); strings.Count(out, "\n") != 2 || !strings.Contains(errs, "there may be more: --limit") {
		t.Errorf("with a limit: %q, %q", out, errs)
	}
	if got := s.lines("find", "OTHER"); len(got) != 2 || got[0]["kind"] != "task" || got[0]["match"] != "begin" || got[0]["name"] != "other" {
		t.Errorf("as JSON: %v", got)
	}
	if code, out, errs := s.run("find", "unknown"); code != exitOK || out != "" || errs != "0 found among 4 tasks\n" {
		t.Errorf("nothing is %q, %q", out, errs)
	}
	s.fails(exitUsage, []string{"find", "8812", "--limit", "0"}, "limit: must be at least 1")
	s.fails(exitUsage, []string{"find", "a b"}, "must be characters that ids")
}
