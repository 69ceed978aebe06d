package cli

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
)

func TestTopicsCommands(t *testing.T) {
	s := newShell(t)
	s.fails(exitNotFound, []string{"topics", "get", "x"}, "no settings")
	s.prints([]string{"topics", "set", "x", "--lease", "1h", "--max-attempts", "3", "--max-backoff", "2d", "--count-crashes"},
		"x\n  delivery       pull\n", "  max attempts   3\n", "  backoff        1s to 2d\n", "  lease          1h\n", "  count crashes  true\n")
	// Settings that are not given stay, also those that are left to the server.
	if got := s.object("topics", "get", "x"); got["concurrency_set"] != false {
		t.Errorf("got %v", got)
	}
	got := s.object("topics", "set", "x", "--concurrency", "7", "--no-count-crashes", "--kind", "pull", "--min-backoff", "5s")
	if fmt.Sprintf("%v %v %v %v %v", got["lease"], got["retry"], got["concurrency"], got["count_crashes"], got["revision"]) !=
		"1h map[max_age:1d max_attempts:3 max_backoff:2d min_backoff:5s] 7 false 2" {
		t.Errorf("got %v", got)
	}
	for _, way := range []string{"null", "{}", `{"kind":5}`, `{"kind":null}`, `{"kind":""}`, `[]`, `{"kind":"pull"} {}`, `{"kind":"webhook","kind":"pull"}`, `{"kind":"webhook","\u006bind":"pull"}`} {
		s.fails(exitUsage, []string{"topics", "set", "x", "--delivery", way}, "delivery")
	}
	s.fails(exitUsage, []string{"topics", "set", "x", "--lease", "1ms", "--concurrency", "1000000"}, "lease", "concurrency")
	s.prints([]string{"topics", "pause", "--create", "x", "y"}, "x is paused\ny is paused\n")
	if got := s.lines("topics", "list"); len(got) != 2 || got[0]["paused"] != true || got[0]["name"] != "x" {
		t.Errorf("got %v", got)
	}
	s.prints([]string{"topics", "resume", "x"}, "x is delivered again\n")
	out := s.ok("topics", "list")
	rows := strings.Split(strings.TrimSpace(out), "\n")
	if len(rows) != 3 || !strings.HasPrefix(rows[0], "TOPIC  PENDING  READY") || strings.HasSuffix(rows[1], "paused") || !strings.HasSuffix(rows[2], "paused") {
		t.Errorf("got\n%s", out)
	}
	s.prints([]string{"topics", "delete", "x", "y"}, "x has its defaults again\ny has its defaults again\n")
	for _, verb := range []string{"get", "pause", "resume", "delete", "purge"} {
		s.fails(exitNotFound, []string{"topics", verb, "unknown"}, "no settings")
	}
	s.fails(exitNotFound, []string{"topics", "purge", "unknown.*"}, `no name of a topic begins with "unknown."`)
	if got := s.lines("topics", "list"); len(got) != 0 {
		t.Errorf("a command has created %v", got)
	}
	s.prints([]string{"schedule", "z", "--id", "z-1", "--delay", "1h"}, "z-1 is scheduled")
	s.fails(exitConflict, []string{"topics", "delete", "z"}, "has tasks", "--force", "purge")
	s.prints([]string{"topics", "delete", "z", "--force"}, "z has its defaults again")
}

// A burst bounds nothing without a rate, so it is refused and not dropped.
func TestTopicsSetRate(t *testing.T) {
	s := newShell(t)
	s.fails(exitUsage, []string{"topics", "set", "x", "--burst", "4"}, "burst", "--rate")
	s.fails(exitUsage, []string{"topics", "set", "x", "--rate", "0", "--burst", "4"}, "burst", "--rate")
	s.fails(exitNotFound, []string{"topics", "get", "x"}, "no settings")
	s.prints([]string{"topics", "set", "x", "--rate", "10"}, "  rate           10 a second, 10 at once\n")
	s.prints([]string{"topics", "set", "x", "--burst", "4"}, "  rate           10 a second, 4 at once\n")
	s.fails(exitUsage, []string{"topics", "set", "x", "--misfire", "colaesce"}, "misfire must be deliver, skip or coalesce")
}

// Settings that another caller has changed meanwhile are not overwritten.
func TestTopicsSetIsGuarded(t *testing.T) {
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			fmt.Fprint(w, `{"name":"x","lease":"1h","revision":7}`)
			return
		}
		if r.Header.Get("If-Match") != `"7"` {
			t.Errorf("If-Match is %s", r.Header.Get("If-Match"))
		}
		w.WriteHeader(http.StatusPreconditionFailed)
		fmt.Fprint(w, `{"type":"/problems/precondition_failed","title":"The settings have another revision","status":412}`)
	})
	s.fails(exitConflict, []string{"topics", "set", "x", "--paused"}, "another revision")
}

func TestPurgeCommand(t *testing.T) {
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method+r.URL.Path != "DELETE/v1/topics/x/tasks" {
			t.Errorf("got %s %s", r.Method, r.URL)
		}
		fmt.Fprint(w, `{"cancelled":12,"delivering":3}`)
	})
	s.prints([]string{"topics", "purge", "x"}, "x is purged: 12 tasks are cancelled, 3 are being delivered and stay\n")
	if got := s.object("topics", "purge", "x"); fmt.Sprint(got) != "map[cancelled:12 delivering:3]" {
		t.Errorf("got %v", got)
	}
}

func TestDeadCommands(t *testing.T) {
	s := newShell(t)
	s.ready("a", "b", "c", "d")
	for _, d := range s.lines("reserve", "x", "--max", "4") {
		s.ok("bury", d["receipt"].(string), "--reason", "poison\x1b[2J")
	}
	out := s.ok("dead", "list", "x")
	rows := strings.Split(strings.TrimSpace(out), "\n")
	if len(rows) != 5 || !strings.HasPrefix(rows[0], "ID  DIED") || !strings.HasSuffix(rows[1], "poison [2J") {
		t.Errorf("got\n%s", out)
	}
	if got := s.lines("dead", "list", "x", "--limit", "10"); len(got) != 4 || got[0]["state"] != "dead" {
		t.Errorf("got %v", got)
	}
	if got := s.lines("dead", "list", "x", "--id-prefix", "b", "--error", "POISON", "--reason", "buried", "--died-from", "2020-01-01T00:00:00Z"); len(got) != 1 || got[0]["id"] != "b" {
		t.Errorf("got %v", got)
	}
	if out := s.ok("dead", "list", "x", "--died-to", "2020-01-01T00:00:00Z", "--json"); out != "" {
		t.Errorf("got %q", out)
	}
	s.fails(exitUsage, []string{"dead", "list", "x", "--reason", "boredom"}, "reason")
	s.typed("b\nunknown\n")
	if fields := strings.Fields(rows[1]); !slices.Contains(fields, "buried") {
		t.Errorf("got\n%s", out)
	}
	s.prints([]string{"stats"}, "4 dead, the first of them ")
	if code, out, errs := s.run("dead", "requeue", "x", "a", "-", "--delay", "1h"); code != exitConflict || out != "2 dead tasks of x are requeued\n" || !strings.HasSuffix(errs, "not dead: unknown\n") {
		t.Errorf("requeued some: %d, %q, %q", code, out, errs)
	}
	if got := s.object("get", "a"); got["state"] != "pending" || got["attempt"] != 0.0 {
		t.Errorf("got %v", got)
	}
	s.prints([]string{"dead", "delete", "x", "c"}, "these dead tasks of x are deleted\n")
	if got := s.object("dead", "requeue", "x", "--all"); fmt.Sprint(got["requeued"]) != "1" {
		t.Errorf("got %v", got)
	}
	// No ids on standard input must not mean all.
	s.typed("\n")
	s.fails(exitUsage, []string{"dead", "delete", "x", "-"}, "standard input holds none")
}

func TestStatsCommand(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "x", "--delay", "1h")
	s.prints([]string{"stats"}, "  state        ready\n", "  tasks        1 pending, 0 ready, 0 delivering, 0 dead\n", "  rescued      0\n", "\nTOPIC  PENDING")
	if got := s.object("stats"); got["node"] == nil || got["version"] != buildVersion() {
		t.Errorf("got %v", got)
	}
	s = canned(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"node":"n","uptime":"2s","state":{"ready":false,"replay":{"records":9,"elapsed":"2s"},"ledger":{"stalled":"3s","condition":"the disk is full"}}}`)
	})
	s.prints([]string{"stats"}, "replaying for 2s, 9 records so far", "silent for 3s, the disk is full")
}

func TestForecastCommand(t *testing.T) {
	query := ""
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.RawQuery
		fmt.Fprint(w, `{"from":"2026-11-20T12:00:00.000Z","step":"1m","counts":[0,4,0,2000,1],"ready":5,"delivering":2,"later":77,"complete":false,"judgement":{"limit":true,"text":"It waits.","peaks":[{"at":"2026-11-20T12:03:30Z"}]}}`)
	})
	out := s.ok("forecast", "--topic", "x", "--window", "5m", "--step", "1m")
	if query != "scope=fleet&step=1m&topic=x&window=5m" {
		t.Errorf("asked for %s", query)
	}
	if rows := strings.Split(out, "\n"); len(rows) != 10 || rows[0] != "5 ready, 2 delivering; next attempts by 1m:" ||
		!strings.HasSuffix(rows[1], "  0") || !strings.HasSuffix(rows[2], "  4     #") || !strings.HasSuffix(rows[3], "  0") ||
		!strings.HasSuffix(rows[4], "  2000  "+strings.Repeat("#", 40)+" waits") ||
		rows[6] != "77 later than 5m from now" || !strings.Contains(rows[7], "some are missing") || rows[8] != "It waits." {
		t.Errorf("got\n%s", out)
	}
	s.ok("forecast")
	if query != "scope=fleet" {
		t.Errorf("asked for %s", query)
	}
}

// The table of topics tells of tasks that no receiver takes, though none was delivered late.
func TestTopicTableShowsWhatIsLate(t *testing.T) {
	now := time.Now()
	since := now.Add(-90 * time.Second)
	list := []client.TopicInfo{{Name: "idle"}, {Name: "stuck", Counts: client.Counts{
		Pending: 8, Retrying: 7, Ready: 55, Overdue: client.Overdue{Count: 62, OldestAt: &since},
		Recent: client.RecentLateness{Count: 55, P99: client.Duration(2 * time.Minute), Max: client.Duration(90 * time.Second)},
	}}}
	var b strings.Builder
	topicTable(&b, list, now)
	lines := strings.Split(b.String(), "\n")
	for i, want := range []string{
		"TOPIC PENDING READY DELIVERING DEAD DELIVERED FAILED LATE P99 ≤ OVERDUE OLDEST LATE NOW P99 ≤ RETRYING",
		"idle 0 0 0 0 0 0 - 0 - - 0",
		"stuck 8 55 0 0 0 0 - 62 1m30s 2m 7",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d: %q; want %q", i, got, want)
		}
	}
	stuck := &list[1]
	if got, want := taskCounts(&stuck.Counts), "8 pending (7 retrying), 55 ready, 0 delivering, 0 dead"; got != want {
		t.Errorf("got %q; want %q", got, want)
	}
	if got, want := lateNow(&stuck.Counts, now), "62 overdue, the oldest for 1m30s; p50 up to 0s, p99 up to 2m, most 1m30s"; got != want {
		t.Errorf("got %q; want %q", got, want)
	}
	stuck.Counts.Attempts = client.Attempts{Delivered: 1, Retried: 2, Exhausted: 3, Buried: 4, LeaseExpired: 5, Returned: 6}
	if got, want := attempts(&stuck.Counts), "1 delivered, 2 retried, 3 exhausted, 4 buried, 5 with an expired lease, 6 returned"; got != want {
		t.Errorf("got %q; want %q", got, want)
	}
	b.Reset()
	if statsBlock(&b, &client.Stats{Total: client.Counts{Receivers: 3}}, now); !strings.Contains(b.String(), "receivers    3 waiting") {
		t.Errorf("got\n%s", b.String())
	}
	stuck.LastError, stuck.LastFailedAt = "no route to host", &since
	b.Reset()
	if topicBlock(&b, stuck, now); !strings.Contains(b.String(), "last error     no route to host, 1m30s ago") {
		t.Errorf("got\n%s", b.String())
	}
}

func TestHealthCommand(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"health"}, "alive\n")
	s.prints([]string{"health", "--ready"}, "ready\n")
	if got := s.object("health"); got["status"] != "alive" {
		t.Errorf("got %v", got)
	}
	var out, errs screen
	if code := run(t.Context(), []string{"health", "--server", "http://127.0.0.1:1"}, streams{&out, &errs}); code != exitUnavailable {
		t.Errorf("without a server: exit code %d: %s", code, errs.String())
	}
}
