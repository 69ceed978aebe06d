package cli

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-json"
)

// following runs a command that goes on until it is stopped, which is no failure.
func (s *shell) following(args ...string) (out *screen, stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	out, errs, code := &screen{}, &screen{}, make(chan int, 1)
	go func() { code <- run(ctx, append(args, "--server", s.url), streams{out, errs}) }()
	return out, func() {
		s.Helper()
		cancel()
		if got := <-code; got != exitOK || errs.String() != "" {
			s.Errorf("%q: exit code %d: %s", args, got, errs.String())
		}
	}
}

func TestEvents(t *testing.T) {
	s := newShell(t)
	all, stopAll := s.following("events")
	some, stopSome := s.following("events", "--topic", "x", "--topic", "y", "--kind", "started", "--kind", "dead", "--json")
	s.until(func() bool { return s.object("stats")["events"].(map[string]any)["streams"] == 2.0 })
	s.ok("schedule", "z", "--id", "other", "--delay", "1h")
	s.ready("a")
	receipt := s.lines("reserve", "x")[0]["receipt"].(string)
	s.ok("bury", receipt, "--reason", "no\nstock")
	s.until(func() bool {
		return strings.Count(all.String(), "\n") == 4 && strings.Count(some.String(), "\n") == 2
	})
	stopAll()
	stopSome()
	for i, line := range strings.Split(strings.TrimSpace(all.String()), "\n") {
		want := []string{`scheduled  z  other`, `scheduled  x  a`, `started    x  a  attempt 1, [0-9.]+m?s late`, `dead       x  a  attempt 1: no stock`}[i]
		if !regexp.MustCompile(`^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  ` + want + `$`).MatchString(line) {
			t.Errorf("told %q, want %s", line, want)
		}
	}
	for i, line := range strings.Split(strings.TrimSpace(some.String()), "\n") {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil || e["kind"] != []string{"started", "dead"}[i] || e["id"] != "a" {
			t.Errorf("told %s (%v)", line, err)
		}
	}
	s.fails(exitUsage, []string{"events", "--kind", "died"}, "kind ")
	s.fails(exitUsage, []string{"events", "--topic", ""}, "topic ")
}

// A gap is reported. A server that ends the stream, or breaks it, is a failure that may pass.
func TestEventsThatEnd(t *testing.T) {
	const stream = "id: 7\nevent: lost\ndata: {\"kind\":\"lost\",\"count\":7}\n\n"
	broken := false
	s := canned(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, stream)
		if broken {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	})
	for range 2 {
		code, out, errs := s.run("events")
		if code != exitUnavailable || out != "-- 7 events were lost: this reader was too slow\n" || !strings.HasPrefix(errs, "lapse: the server") {
			t.Errorf("exit code %d, %q, %q", code, out, errs)
		}
		code, out, _ = s.run("events", "--json")
		if code != exitUnavailable || out != "{\"kind\":\"lost\",\"count\":7}\n" {
			t.Errorf("exit code %d, %q", code, out)
		}
		broken = true
	}
}
