package cli

import (
	"strings"
	"testing"
)

// The attempts of a task that have failed stand below it.
func TestGetShowsAttempts(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"schedule", "x", "--id", "a"}, "a is scheduled")
	for _, reason := range []string{"out of stock", "still out of stock"} {
		receipt := s.lines("reserve", "x", "--wait", "60s", "--json")[0]["receipt"].(string)
		s.ok("release", receipt, "--reason", reason, "--delay", "0s")
	}
	out := s.ok("get", "a")
	rows := strings.Split(strings.TrimSpace(out), "\n")
	rows = rows[len(rows)-4:]
	if strings.TrimSpace(rows[0]) != "failed attempts" || strings.Join(strings.Fields(rows[1]), " ") != "# ENDED TOOK OUTCOME BY ERROR" {
		t.Fatalf("got\n%s", out)
	}
	for i, reason := range []string{"out of stock", "still out of stock"} {
		fields := strings.Fields(rows[2+i])
		if fields[0] != []string{"1", "2"}[i] || !strings.Contains(rows[2+i], "  failed  ") || !strings.HasSuffix(rows[2+i], reason) {
			t.Errorf("got %q", rows[2+i])
		}
	}
	if got := s.object("get", "a"); len(got["attempts"].([]any)) != 2 {
		t.Errorf("got %v", got)
	}
}
