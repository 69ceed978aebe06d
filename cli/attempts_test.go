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

// A task that waits for another attempt is retrying for people. The API has it as pending.
func TestRetryingTask(t *testing.T) {
	s := newShell(t)
	s.ok("topics", "set", "x", "--min-backoff", "1h", "--max-backoff", "1h")
	s.prints([]string{"schedule", "x", "--id", "a"}, "a is scheduled")
	receipt := s.lines("reserve", "x", "--wait", "60s", "--json")[0]["receipt"].(string)
	s.ok("release", receipt)
	s.prints([]string{"schedule", "x", "--id", "b", "--delay", "1d"}, "b is scheduled")
	for _, query := range [][]string{{"list", "--state", "retrying"}, {"list"}} {
		rows := strings.Split(s.ok(query...), "\n")
		if got := strings.Fields(rows[1]); len(got) < 3 || got[0] != "a" || got[2] != "retrying" {
			t.Errorf("%v: %q", query, rows)
		}
	}
	if rows := strings.Split(s.ok("list"), "\n"); strings.Fields(rows[2])[2] != "pending" {
		t.Errorf("got %q", rows)
	}
	if out := s.ok("get", "a"); !strings.Contains(out, "retrying") {
		t.Errorf("got\n%s", out)
	}
	if got := s.object("get", "a")["state"]; got != "pending" {
		t.Errorf("the state is %v in JSON", got)
	}
	s.ok("hold", "a")
	if out := s.ok("get", "a"); !strings.Contains(out, "held") || strings.Contains(out, "retrying") {
		t.Errorf("got\n%s", out)
	}
}

// The delivery of a finished task stands below those of its attempts that have failed.
func TestGetShowsTheDelivery(t *testing.T) {
	s := newShell(t)
	s.ok("topics", "set", "x", "--keep-finished", "1h")
	s.prints([]string{"schedule", "x", "--id", "a"}, "a is scheduled")
	s.ok("ack", s.lines("reserve", "x", "--wait", "60s", "--json")[0]["receipt"].(string))
	rows := strings.Split(strings.TrimSpace(s.ok("get", "a")), "\n")
	if last := rows[len(rows)-1]; rows[len(rows)-3] != "  attempts" || !strings.HasPrefix(last, "    1  ") || !strings.Contains(last, "  delivered  ") {
		t.Errorf("got %q", rows)
	}
}
