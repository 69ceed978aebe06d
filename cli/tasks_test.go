package cli

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestScheduleCommand(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"schedule", "x", "--id", "a", "--delay", "1d12h", "--payload", `{"n":1}`, "--header", "tenant=eu",
		"--header", "list=a,b;c", "--group", "g", "--max-lateness", "2d"}, "a is scheduled: due in 1d12h (2")
	s.prints([]string{"schedule", "x", "--id", "a", "--delay", "1d12h", "--payload", `{"n":1}`, "--header", "tenant=eu",
		"--header", "list=a,b;c", "--group", "g", "--max-lateness", "2d"}, "a is there already: due in 1d12h (2")
	got := s.object("get", "a")
	for name, want := range map[string]string{"topic": "x", "state": "pending", "payload": "map[n:1]",
		"headers": "map[list:a,b;c tenant:eu]", "group": "g", "max_lateness": "2d"} {
		if fmt.Sprint(got[name]) != want {
			t.Errorf("%s is %v, want %s", name, got[name], want)
		}
	}
	s.fails(exitConflict, []string{"schedule", "x", "--id", "a"}, "The id is taken")
	s.prints([]string{"schedule", "x", "--id", "a", "--due-at", "2031-01-31T12:00:00+01:00", "--replace"}, "a is replaced: due in ")
	if got := s.object("get", "a"); got["due_at"] != "2031-01-31T11:00:00.000Z" || got["payload"] != nil {
		t.Errorf("got %v", got)
	}
	s.prints([]string{"schedule", "x", "--id", "new", "--delay", "1h", "--replace"}, "new is scheduled")
	// The payload from elsewhere, as it is.
	if got := s.object("schedule", "x", "--delay", "1h", "--payload", "@"+s.file(`[1,"2"]`)); fmt.Sprint(got["payload"]) != "[1 2]" {
		t.Errorf("got %v", got)
	}
	s.typed(`"typed"`)
	if got := s.object("schedule", "x", "--delay", "1h", "--payload", "-"); got["payload"] != "typed" {
		t.Errorf("got %v", got)
	}
}

// A repeated request says what has become of the task, and ends with another code if it is over.
func TestScheduleAgainTellsTheState(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"topics", "set", "kept", "--keep-finished", "1h", "--max-attempts", "1"}, "kept")
	again := func(id string) []string { return []string{"schedule", "kept", "--id", id, "--delay", "1h"} }
	for _, id := range []string{"cancelled", "delivered", "dead", "held", "ready"} {
		s.prints(again(id), id+" is scheduled: due in 1h (")
	}
	s.prints([]string{"hold", "held"}, "held")
	s.prints(again("held"), "held is there already: held, with 1h left")
	s.prints([]string{"cancel", "cancelled"}, "is cancelled")
	s.fails(exitNotFound, again("cancelled"), "nothing is scheduled: cancelled was scheduled before, and is finished, cancelled ")
	s.fails(exitUsage, []string{"schedule", "--batch", s.file(`{"topic":"x","group":""}`)}, "line 1: group must not be empty")
	lines := s.file(`{"id":"cancelled","topic":"kept","delay":"1h"}` + "\n" + `{"id":"held","topic":"kept","delay":"1h"}` + "\n")
	s.fails(exitNotFound, []string{"schedule", "--batch", lines}, "1 task was scheduled before, and finished:\n",
		"line 1: nothing is scheduled: cancelled was scheduled before, and is finished; another id makes a new task")
	if _, out, _ := s.run("schedule", "--batch", lines); out != "scheduled 1 of 2 tasks\n" {
		t.Errorf("got %s", out)
	}
	if _, out, _ := s.run("schedule", "--batch", lines, "--json"); !strings.Contains(out, `{"line":1,"id":"cancelled","finished":true}`) {
		t.Errorf("got %s", out)
	}
	for _, verb := range []string{"ack", "bury"} {
		id := map[string]string{"ack": "delivered", "bury": "dead"}[verb]
		s.prints([]string{"fire", id}, id)
		receipt := s.object("reserve", "kept")["receipt"].(string)
		s.prints([]string{verb, receipt}, "1")
	}
	s.fails(exitNotFound, again("delivered"), "nothing is scheduled: delivered was scheduled before, and is finished, delivered ")
	s.fails(exitConflict, again("dead"), "The task is dead")
	s.prints([]string{"fire", "ready"}, "ready")
	s.prints(again("ready"), "ready is there already, and ready: due ")
}

// A task's own delivery, one by one and from a file.
func TestScheduleWithDelivery(t *testing.T) {
	s := newShell(t)
	s.fails(exitUsage, []string{"schedule", "x", "--delivery", `{"retry":{"max_attempts":5}}`}, "task_delivery")
	s.prints([]string{"topics", "set", "x", "--task-delivery"}, "task delivery", "true")
	s.prints([]string{"schedule", "x", "--id", "a", "--delay", "1h", "--delivery", `{"retry":{"max_attempts":5,"max_age":"2h"}}`}, "a is scheduled")
	s.prints([]string{"schedule", "--batch", s.file(`{"id":"b","topic":"x","delay":"1h","delivery":{"retry":{"max_attempts":5,"max_age":"2h"}}}` + "\n")}, "1")
	for _, id := range []string{"a", "b"} {
		if got := fmt.Sprint(s.object("get", id)["delivery"]); got != "map[retry:map[max_age:2h max_attempts:5]]" {
			t.Errorf("%s: %s", id, got)
		}
	}
	s.prints([]string{"get", "a"}, `"max_attempts":5`)
	s.fails(exitUsage, []string{"schedule", "x", "--delivery", `{"url":"https://a.example"}`}, "delivery")
	s.fails(exitUsage, []string{"schedule", "x", "--delivery", `{"retry":{},"retry":{}}`}, "twice")
	s.fails(exitUsage, []string{"schedule", "x", "--delivery", "here"}, "must be a JSON object")
}

// The bound of groups.
func TestPerGroupCommand(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"topics", "set", "x", "--concurrency-per-group", "2"}, "per group", "2; 0 tasks wait")
	if got := s.object("topics", "set", "x", "--concurrency-per-group", "0"); fmt.Sprint(got["concurrency_per_group"]) != "0" {
		t.Errorf("got %v", got["concurrency_per_group"])
	}
	s.fails(exitUsage, []string{"topics", "set", "x", "--concurrency-per-group", "10001"}, "concurrency_per_group")
}

// What follows a dead task.
func TestOnDeadCommand(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"topics", "set", "x", "--on-dead", "y", "--on-dead-delay", "1h"}, "followed by a task of y after 1h")
	s.prints([]string{"topics", "set", "x", "--on-dead-delay", "0"}, "followed by a task of y")
	s.fails(exitUsage, []string{"topics", "set", "x", "--on-dead", "x"}, "on_dead.topic")
	if got := s.object("topics", "set", "x", "--on-dead", ""); got["on_dead"] != nil {
		t.Errorf("got %v", got["on_dead"])
	}
}

// Nothing is sent if the command line is wrong, and all faults are reported.
func TestWrongArguments(t *testing.T) {
	s := &shell{t, "http://127.0.0.1:1"} // no server is there
	for _, test := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"schedule"}, []string{"topic"}},
		{[]string{"schedule", "x", "--delay", "soon"}, []string{"--delay", "30m", "lapse schedule --help"}},
		{[]string{"schedule", "x", "--due-at", "tomorrow"}, []string{"--due-at", "RFC 3339"}},
		{[]string{"schedule", "x", "--delay", "0s", "--due-at", "2031-01-31T12:00:00Z", "--replace"}, []string{"delay", "replace"}},
		{[]string{"schedule", "x", "--payload", "{"}, []string{"payload must be JSON"}},
		{[]string{"schedule", "x", "--payload", "@/no/such/file"}, []string{"payload", "/no/such/file"}},
		{[]string{"schedule", "x", "--batch", "f"}, []string{"batch"}},
		{[]string{"schedule", "--delay", "1h", "--batch", "f"}, []string{"batch"}},
		{[]string{"schedule", "--batch", "/no/such/file"}, []string{"batch", "/no/such/file"}},
		{[]string{"reschedule", "a"}, []string{"delay"}},
		{[]string{"reschedule", "a", "--delay", "1h", "--due-at", "2031-01-31T12:00:00Z"}, []string{"delay"}},
		{[]string{"fire"}, []string{"id", "--topic"}},
		{[]string{"cancel"}, []string{"id", "--group"}},
		{[]string{"list", "--limit", "0"}, []string{"limit"}},
		{[]string{"list", "--limit", "-1", "--timeout", "0s"}, []string{"limit", "timeout"}},
		{[]string{"reserve", "x", "--max", "-1"}, []string{"max"}},
		{[]string{"reserve", "x", "--exec", "true", "--ack"}, []string{"exec"}},
		{[]string{"reserve", "x", "--exec", "true", "--lease", "10ms"}, []string{"lease"}},
		{[]string{"dead", "requeue", "x"}, []string{"--all"}},
		{[]string{"dead", "requeue", "x", "a", "--delay", "1h", "--due-at", "2030-01-31T12:00:00Z"}, []string{"--due-at"}},
		{[]string{"dead", "delete", "x", "a", "--all"}, []string{"--all"}},
		{[]string{"topics", "set", "x", "--lease", "0s", "--max-attempts", "0"}, []string{"lease", "max-attempts"}},
		{[]string{"stats", "--timeout=-1s"}, []string{"Timeout"}},
		{[]string{"stats", "--ca-file", "/no/such/file", "--token-from", "/no/such/token"}, []string{"ca-file", "token-from"}},
		{[]string{"stats", "--ca-file", "remote.go"}, []string{"ca-file", "no certificate"}},
		{[]string{"stats", "--token-from", "/dev/null"}, []string{"token-from", "empty"}},
		{[]string{"get", ""}, []string{"<id>", "must not be empty"}},
	} {
		s.fails(exitUsage, test.args, test.parts...)
	}
}

func TestRescheduleFireCancel(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "x", "--id", "a", "--delay", "1h")
	s.ok("schedule", "x", "--id", "b", "--delay", "1h")
	s.prints([]string{"reschedule", "a", "--delay", "3d"}, "a is due in 3d (")
	if got := s.object("reschedule", "a", "--payload", "7"); fmt.Sprint(got["payload"], got["revision"]) != "7 3" {
		t.Errorf("got %v", got)
	}
	s.prints([]string{"fire", "a"}, "a is due now")
	s.prints([]string{"cancel", "a", "b"}, "a is cancelled\nb is cancelled\n")
	// With --json, it prints what the API answers: nothing.
	if out := s.ok("cancel", "a", "--json"); out != "" {
		t.Errorf("got %q", out)
	}
	s.ok("schedule", "x", "--id", "c", "--delay", "1h")
	s.typed("unknown\n\nc\n")
	s.fails(exitNotFound, []string{"cancel", "-"}, "Unknown or finished: unknown\n")
	s.fails(exitNotFound, []string{"get", "c"}, "lapse: Unknown or finished: c\n")
	s.fails(exitNotFound, []string{"reschedule", "c", "--delay", "0"}, "lapse: Unknown or finished: c\n")
	s.fails(exitNotFound, []string{"fire", "c", "--json"}, `{"error":"Unknown or finished: c","exit":4,"problem":{"type":"/problems/not_found"`)
}

func TestHoldAndResume(t *testing.T) {
	s := newShell(t)
	for _, id := range []string{"a", "b", "c"} {
		s.ok("schedule", "x", "--id", id, "--delay", "3d", "--group", "g")
	}
	s.prints([]string{"hold", "a", "b"}, "a is held, with 3d left\nb is held, with 3d left\n")
	s.prints([]string{"get", "a"}, "  state     held\n", "  held      ", ", with 3d left\n")
	s.prints([]string{"list", "--state", "held"}, "a   x      held   after 3d  0\n")
	s.prints([]string{"stats"}, "3 pending (2 held), 0 ready")
	s.prints([]string{"forecast", "--window", "7d"}, "0 later than 7d from now\n2 held\n")
	if got := s.object("resume", "a"); got["state"] != "pending" || got["revision"] != 3.0 {
		t.Errorf("got %v", got)
	}
	s.prints([]string{"hold", "--group", "g", "--dry-run"}, "3 tasks would be held\n")
	s.prints([]string{"hold", "--group", "g"}, "3 tasks are held\n")
	s.prints([]string{"resume", "--topic", "x"}, "3 tasks are resumed\n")
	s.prints([]string{"resume", "--topic", "x"}, "0 tasks are resumed\n")
	s.prints([]string{"resume", "c"}, "c goes on, and is due in 3d (")
	s.fails(exitNotFound, []string{"hold", "unknown"}, "Unknown or finished: unknown\n")
	s.fails(exitUsage, []string{"hold"}, "id")
	s.fails(exitUsage, []string{"resume", "a", "--yes"}, "yes")
}

func TestGetAndList(t *testing.T) {
	s := newShell(t)
	for i := range 5 {
		s.ok("schedule", "x", "--id", fmt.Sprint("t", i), "--delay", fmt.Sprint(i+1, "d"), "--payload", "[1]", "--header", "k=v")
	}
	s.prints([]string{"get", "t0"}, "t0\n  topic     x\n", "  state     pending\n", "  due       in 1d (2", "  payload   [1]\n", "  headers   k=v\n")
	if got := s.lines("get", "t0", "t3"); len(got) != 2 || got[1]["id"] != "t3" {
		t.Errorf("got %v", got)
	}
	out := s.ok("list", "--topic", "x")
	rows := strings.Split(strings.TrimSpace(out), "\n")
	if len(rows) != 6 || !strings.HasPrefix(rows[0], "ID  TOPIC  STATE    NEXT   ATTEMPT") || !strings.HasPrefix(rows[5], "t4  x      pending  in 5d  0") {
		t.Errorf("got\n%s", out)
	}
	for line := range strings.Lines(out) {
		if strings.TrimRight(line, " \n") != strings.TrimSuffix(line, "\n") {
			t.Errorf("blanks at the end of %q", line)
		}
	}
	if got := s.lines("list", "--all"); len(got) != 5 || got[0]["id"] != "t0" {
		t.Errorf("got %v", got)
	}
	// Part by part.
	code, out, errs := s.run("list", "--limit", "2", "--json")
	_, cursor, more := strings.Cut(errs, "--cursor ")
	cursor, _, _ = strings.Cut(cursor, ",")
	if code != exitOK || strings.Count(out, "\n") != 2 || !more {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	if got := s.lines("list", "--cursor", cursor); len(got) != 3 || got[0]["id"] != "t2" {
		t.Errorf("got %v", got)
	}
	s.fails(exitNotFound, []string{"list", "--topic", "unknown", "--json"}, `"exit":4`)
	due := s.object("get", "t3")["due_at"].(string)
	if got := s.lines("list", "--id-prefix", "t", "--due-from", due, "--due-to", "2100-01-01T00:00:00+02:00"); len(got) != 2 || got[0]["id"] != "t3" {
		t.Errorf("got %v", got)
	}
	if got := s.lines("list", "--id-prefix", "t4"); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	if out := s.ok("list", "--error", "none"); !strings.HasPrefix(out, "ID") || strings.Count(out, "\n") != 1 {
		t.Errorf("got %q", out)
	}
	s.fails(exitUsage, []string{"list", "--due-from", "odd"}, "due-from")
	s.fails(exitUsage, []string{"list", "--state", "odd"}, "state")
	s.fails(exitUsage, []string{"list", "--cursor", "odd"}, "cursor")
}

func TestBatchCommand(t *testing.T) {
	s := newShell(t)
	text := `{"id":"a","topic":"x","delay":"1d","payload":{"n": 1},"headers":{"k":"v"},"max_lateness":60000,"group":"g"}

{"id":"b","topic":"x","due_at":"2031-01-31T12:00:00Z"}
`
	s.prints([]string{"schedule", "--batch", s.file(text)}, "scheduled 2 of 2 tasks\n")
	got := s.object("get", "a")
	if fmt.Sprintf("%v %v %v", got["payload"], got["max_lateness"], got["group"]) != "map[n:1] 1m g" {
		t.Errorf("got %v", got)
	}
	s.typed(text)
	// Again: the tasks exist.
	s.prints([]string{"schedule", "--batch", "-"}, "scheduled 2 of 2 tasks\n")
	// Some are refused, the others stay.
	mixed := s.file(`{"id":"c","topic":"x","delay":"1h"}` + "\n\n" + `{"id":"d","topic":"?","delay":-1}` + "\n")
	s.fails(exitUsage, []string{"schedule", "--batch", mixed}, "refused 1 task:\n", "line 3: ", "topic", "delay")
	s.ok("get", "c")
	code, out, errs := s.run("schedule", "--batch", mixed, "--json")
	if code != exitUsage || !strings.Contains(out, `{"line":1,"id":"c"}`+"\n") || !strings.Contains(out, `{"line":3,"id":"d","problem":{"type":"/problems/invalid"`) {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	// A line that cannot be read is named, and what stood before it.
	for _, line := range []string{`{"topic":"x","dely":"1h"}`, `{`, `[]`, `{"topic":"x"} {}`, `{"topic":"x","delay":"soon"}`, `{"topic":"x","due_at":"soon"}`} {
		s.fails(exitUsage, []string{"schedule", "--batch", s.file("\n" + line + "\n")}, "line 2: ", "scheduled before that: 0")
	}
	s.fails(exitUsage, []string{"schedule", "--batch", s.file(`[{"topic":"x"}]`)}, "line 1: it must be a JSON object", "no array around them")
	s.fails(exitUsage, []string{"schedule", "--batch", s.file(`{"topic":"x","headers":7}`)}, "line 1: headers must not be of type number")
	// More than one request's worth.
	var many strings.Builder
	for i := range batchTasks + 10 {
		fmt.Fprintf(&many, `{"id":"m%d","topic":"many","delay":"1h"}`+"\n", i)
	}
	s.prints([]string{"schedule", "--batch", s.file(many.String())}, fmt.Sprintf("scheduled %d of %d tasks", batchTasks+10, batchTasks+10))
	s.fails(exitUsage, []string{"schedule", "--batch", s.file(many.String() + "nonsense\n")}, fmt.Sprintf("line %d: ", batchTasks+11), fmt.Sprintf("before that: %d", batchTasks))
}

func TestGroupCommands(t *testing.T) {
	s := newShell(t)
	s.typed(`{"id":"a","topic":"x","delay":"2h","group":"g"}` + "\n" + `{"id":"b","topic":"y","delay":"1h","group":"g"}` + "\n" + `{"id":"c","topic":"x","delay":"1h"}` + "\n")
	s.ok("schedule", "--batch", "-")
	if got := s.lines("list", "--group", "g"); len(got) != 2 || got[0]["id"] != "b" || got[1]["id"] != "a" {
		t.Errorf("got %v", got)
	}
	s.fails(exitUsage, []string{"cancel", "a", "--group", "g"}, "give ids, or flags", "--group, not both")
	s.fails(exitUsage, []string{"cancel", "--group", "a/b"}, "group")
	s.prints([]string{"cancel", "--group", "g"}, "2 tasks of the group g are cancelled\n")
	s.fails(exitNotFound, []string{"cancel", "--group", "g"}, `the group "g" is unknown or finished`)
	s.ok("get", "c")
	s = canned(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method+r.URL.Path != "DELETE/v1/groups/g" {
			t.Errorf("got %s %s", r.Method, r.URL)
		}
		fmt.Fprint(w, `{"cancelled":12,"delivering":["a","b"],"more_delivering":3}`)
	})
	s.prints([]string{"cancel", "--group", "g"}, "12 tasks of the group g are cancelled\n5 are being delivered, and stay: a b and 3 more\n")
}

func TestRelative(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for d, want := range map[time.Duration]string{
		0: "now", 400 * time.Microsecond: "now", -400 * time.Microsecond: "now", 1500 * time.Microsecond: "in 2ms",
		29*time.Minute + 58*time.Second + 600*time.Millisecond: "in 29m59s", -3210 * time.Millisecond: "3.2s ago",
		25 * time.Hour: "in 1d1h", -400 * 24 * time.Hour: "400d ago", 90 * time.Minute: "in 1h30m",
	} {
		if got := relative(now.Add(d), now); got != want {
			t.Errorf("%s: got %q, want %q", d, got, want)
		}
	}
	// The least duration has no opposite.
	if got := relative(time.Time{}, now) + ", " + roundedText(math.MinInt64); got != "106751d23h ago, -106751d23h" {
		t.Errorf("got %q", got)
	}
	if got := short("a\x1b[2Jb\nc\u2028d", 100); got != "a [2Jb c d" {
		t.Errorf("got %q", got)
	}
	if got := short(strings.Repeat("é", 50), 10); got != "ééééééé..." {
		t.Errorf("got %q", got)
	}
}

// Tasks that are finished or dead have no next attempt.
func TestListOfWhatHasEnded(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"topics", "set", "order.unpaid", "--keep-finished", "1h"}, "finished kept  1h")
	for _, id := range []string{"kept", "killed"} {
		s.prints([]string{"schedule", "order.unpaid", "--id", id, "--delay", "1h"}, "scheduled")
	}
	s.prints([]string{"cancel", "kept"}, "cancelled")
	out := s.ok("list", "--state", "finished", "--topic", "order.unpaid")
	if !regexp.MustCompile(`(?m)^kept +order.unpaid +finished, cancelled +- +0$`).MatchString(out) {
		t.Errorf("it prints\n%s", out)
	}
	s.ok("topics", "delete", "order.unpaid", "--force")
	out = s.ok("list", "--state", "dead", "--topic", "order.unpaid")
	if !regexp.MustCompile(`(?m)^killed +order.unpaid +dead +- +0\b`).MatchString(out) {
		t.Errorf("it prints\n%s", out)
	}
}
