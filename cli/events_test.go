package cli

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
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
	s.ok("topics", "set", "x", "--lease", "30s")
	s.ok("topics", "set", "y", "--lease", "30s")
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
	s.fails(exitUsage, []string{"events", "--topic", ""}, "--topic: ")
}

// The events of all nodes come from any of them, with the names of the nodes.
func TestEventsOfTheFleet(t *testing.T) {
	server := redistest.Start(t)
	shells, stops := fleet(t, server, "n1", "n2")
	n1, n2 := shells["n1"], shells["n2"]
	n1.until(func() bool { return len(n1.object("stats")["covers"].([]any)) == 2 })
	all, stopAll := n1.following("events")
	own, stopOwn := n1.following("events", "--scope", "node")
	n1.until(func() bool {
		return n1.object("stats", "--scope", "node")["events"].(map[string]any)["streams"] == 2.0
	})
	n1.until(func() bool { return strings.Contains(all.String(), "-- node n2 is covered\n") })
	n2.ok("schedule", "x", "--id", "theirs", "--delay", "1h")
	n1.ok("schedule", "x", "--id", "ours", "--delay", "1h")
	n1.until(func() bool {
		return strings.Contains(all.String(), "scheduled  x  theirs  on n2\n") && strings.Contains(all.String(), "scheduled  x  ours  on n1\n") &&
			strings.HasSuffix(own.String(), "scheduled  x  ours\n")
	})
	if code := stops["n2"](); code != exitOK {
		t.Errorf("the server that was stopped ends with %d", code)
	}
	n1.until(func() bool { return strings.HasSuffix(all.String(), "-- node n2 has left\n") })
	if strings.Contains(own.String(), "n2") || strings.Contains(own.String(), "theirs") {
		t.Errorf("told %q", own.String())
	}
	n1.fails(exitUsage, []string{"events", "--scope", "all"}, "scope")
	stopAll()
	stopOwn()
	if code := stops["n1"](); code != exitOK {
		t.Errorf("the last server ends with %d", code)
	}
}

func TestEventLines(t *testing.T) {
	for want, e := range map[string]client.Event{
		"-- 7 events of node n2 were lost: this reader was too slow": {Kind: client.EventsLost, Node: "n2", Count: 7},
		"-- node n2 is covered": {Kind: client.NodeCovered, Node: "n2"},
		"-- node n2 is covered; events of it may be missing before this": {Kind: client.NodeCovered, Node: "n2", Gap: true},
		"-- node n2 is missing: no answer":                               {Kind: client.NodeMissing, Node: "n2", Error: "no answer"},
		"-- node n2 has left":                                            {Kind: client.NodeLeft, Node: "n2"},
	} {
		if got := eventLine(&e, true); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
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
