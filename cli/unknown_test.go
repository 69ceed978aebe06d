package cli

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A name that the server does not know ends a command with its own exit code, and creates nothing.
func TestUnknownNames(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "order.unpaid", "--id", "a", "--delay", "1h", "--group", "g")
	for _, args := range []string{
		"topics pause", "topics resume", "topics delete", "topics delete --force --yes", "topics purge --yes", "topics set --lease 1m", "list --topic",
		"dead list", "dead requeue --all", "dead delete --all --yes", "dead requeue --reason buried", "dead delete --reason buried --yes", "dead requeue --reason buried --dry-run",
		"cancel --yes --topic", "fire --yes --topic", "hold --yes --topic", "resume --yes --topic", "reschedule --yes --shift 1h --topic",
		"cancel --dry-run --topic", "forecast --topic", "reserve", "list --state dead --topic", "list --state finished --topic", "list --wide --topic",
		"export --topic", "dead reasons",
	} {
		s.fails(exitNotFound, append(strings.Fields(args), "order.unpiad"), `the topic "order.unpiad" is unknown`, `did you mean "order.unpaid"?`)
	}
	for _, args := range []string{"dead requeue order.unpiad a", "dead delete order.unpiad a b", "topics set order.unpaid --on-dead order.unpiad",
		"export --topic order.unpaid --topic order.unpiad", "export --output " + filepath.Join(t.TempDir(), "all.ndjson") + " --topic order.unpiad"} {
		s.fails(exitNotFound, strings.Fields(args), `the topic "order.unpiad" is unknown`, `did you mean "order.unpaid"?`)
	}
	s.fails(exitNotFound, []string{"export", "--topic", "ordre.*"}, `no name of a topic begins with "ordre."`)
	for _, args := range []string{"dead list --group", "dead list order.unpaid --group", "dead reasons --group", "dead requeue order.unpaid --group", "cancel --group", "cancel --yes --topic order.unpaid --group", "list --group", "fire --yes --group", "hold --yes --group", "reschedule --yes --shift 1h --group"} {
		s.fails(exitNotFound, append(strings.Fields(args), "unknown"), `the group "unknown" is unknown or finished`)
	}
	if got := s.lines("topics", "list"); len(got) != 1 {
		t.Errorf("a command has created one of %v", got)
	}
	// A topic and a group that exist may have none of what the command looks for.
	s.ok("list", "--topic", "order.unpaid", "--state", "dead")
	s.ok("dead", "list", "order.unpaid")
	s.ok("dead", "list", "--group", "g")
	s.ok("export", "--topic", "order.*")
	s.ok("topics", "set", "order.unpaid", "--on-dead", "order.unpiad", "--create")
	s.ok("topics", "set", "order.unpaid", "--on-dead", "")
	s.ok("cancel", "--group", "g", "--state", "held", "--yes")
	s.ok("dead", "requeue", "order.unpaid", "--all")
	// Names that are meant.
	s.ok("topics", "set", "order.unpiad", "--lease", "1m", "--create")
	s.ok("topics", "set", "mail", "--lease", "1m")
	s.ok("topics", "set", "shop.1", "--lease", "1m")
	s.ok("topics", "set", "shop.2", "--lease", "1m")
}

// An import takes the name of a new topic for a slip if it is almost that of another one, and reads
// nothing then.
func TestImportIntoSlip(t *testing.T) {
	s, source := newShell(t), redistest.Start(t)
	s.ok("topics", "set", "order.expired", "--lease", "1m")
	fill(t, source.Client(), 3)
	redis := []string{"import", "redis", "--from", source.URL(), "--match", "*", "--topic", "order.expird"}
	for _, args := range [][]string{redis, {"import", "asynq", "--from", source.URL(), "--topic", "order.expird"},
		{"import", "beanstalkd", "--from", redistest.FreeAddr(t), "--topic", "order.expird"}} {
		s.fails(exitNotFound, args, `the topic "order.expird" is unknown`, `did you mean "order.expired"?`, "--create")
	}
	if got := s.lines("topics", "list"); len(got) != 1 {
		t.Errorf("an import has created one of %v", got)
	}
	wantCounts(t, "created", s.imported(append(redis, "--create")...), map[string]int{"imported": 3})
}

// While a node does not answer, a topic may be its own: a name that the others do not know is no
// slip.
func TestNameThatAMissingNodeMayKnow(t *testing.T) {
	missing := `{"node":"n1","error":"no heartbeat"}`
	answers := http.NewServeMux()
	answers.HandleFunc("GET /v1/topics/x", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"type":"/problems/topic_not_found","title":"Unknown topic","status":404}`)
	})
	answers.HandleFunc("GET /v1/topics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"scope":"fleet","covers":["n2"],"missing":[%s],"topics":[]}`, missing)
	})
	answers.HandleFunc("POST /v1/topics/x/reserve", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"tasks":[]}`)
	})
	server := httptest.NewServer(answers)
	defer server.Close()
	s := &shell{t, server.URL}
	if code, _, errs := s.run("reserve", "x"); code != exitOK {
		t.Errorf("exit code %d: %s", code, errs)
	}
	missing = ""
	s.fails(exitNotFound, []string{"reserve", "x"}, "unknown")
}

// A terminal is told of a new topic whose name is almost that of another one; a script is not.
func TestScheduleTellsOfSlip(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "order.unpaid", "--delay", "1h")
	const told = "It is the first task of order.unpiad. Was it for order.unpaid? Then: lapse cancel a\n"
	if out := s.ok("schedule", "order.unpiid", "--id", "b", "--delay", "1h"); strings.Contains(out, "first task") {
		t.Errorf("got %s", out)
	}
	was := isTerminal
	t.Cleanup(func() { isTerminal = was })
	isTerminal = func(stream any) bool { return stream != os.Stdin }
	if out := s.ok("schedule", "order.unpiad", "--id", "a", "--delay", "1h"); !strings.Contains(out, told) && !strings.Contains(out, "order.unpiid") {
		t.Errorf("got %s", out)
	}
	if out := s.ok("schedule", "order.unpaid", "--delay", "1h"); strings.Contains(out, "first task") {
		t.Errorf("got %s", out)
	}
}

func TestSlips(t *testing.T) {
	for _, c := range []struct {
		name, known string
		slip        bool
	}{
		{"order.unpiad", "order.unpaid", true}, {"order.unpaidd", "order.unpaid", true}, {"Order.unpaid", "order.unpaid", true},
		{"order.paid", "order.unpaid", true}, {"order.late", "order.unpaid", false}, {"shop.1", "shop.2", false}, {"shop.10", "shop.2", false},
		{"mail", "mai", false}, {"mails", "mail", true}, {"a", "b", false}, {"mail", "male", false},
	} {
		if got := isSlip(c.name, c.known); got != c.slip {
			t.Errorf("%s for %s: %t", c.name, c.known, got)
		}
	}
}

// The dead tasks of all topics are listed topic by topic, as many as are asked for.
func TestDeadListOfAllTopics(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"dead", "list"}, "no task is dead")
	for _, id := range []string{"mail:a", "order:b", "order:c"} {
		topic, name, _ := strings.Cut(id, ":")
		s.ok("schedule", topic, "--id", name)
		for _, d := range s.lines("reserve", topic, "--wait", "5s") {
			s.ok("bury", d["receipt"].(string), "--reason", "poison of "+topic)
		}
	}
	out := s.ok("dead", "list")
	order, mail := strings.Index(out, "order\nID"), strings.Index(out, "mail\nID")
	if order < 0 || mail < order || strings.Count(out, "poison of order") != 2 || strings.Count(out, "poison of mail") != 1 {
		t.Errorf("got\n%s", out)
	}
	if got := s.lines("dead", "list", "--all"); len(got) != 3 || got[0]["topic"] != "order" || got[2]["topic"] != "mail" {
		t.Errorf("got %v", got)
	}
	if code, out, errs := s.run("dead", "list", "--limit", "1"); code != exitOK || strings.Contains(out, "mail") || !strings.Contains(errs, "there is more of order") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if code, out, errs := s.run("dead", "list", "--limit", "2"); code != exitOK || strings.Contains(out, "mail") || !strings.Contains(errs, "there is more: --limit, --all, or a topic") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	if got := s.lines("dead", "list", "--error", "MAIL"); len(got) != 1 || got[0]["id"] != "a" {
		t.Errorf("got %v", got)
	}
	s.fails(exitUsage, []string{"dead", "list", "--cursor", "x"}, "cursor: is for the list of one topic")
}

// Dead tasks are counted by topic, reason and error.
func TestDeadReasons(t *testing.T) {
	s := newShell(t)
	s.prints([]string{"dead", "reasons", "--reason", "deleted"}, "no task is dead")
	for i := range 3 {
		s.ok("schedule", "order", "--id", fmt.Sprint("o", i))
		for _, d := range s.lines("reserve", "order", "--wait", "5s") {
			s.ok("bury", d["receipt"].(string), "--reason", fmt.Sprintf("order %d:\x1b[2J HTTP 503", i))
		}
	}
	s.ok("schedule", "mail", "--id", "m", "--group", "g")
	s.ok("bury", s.lines("reserve", "mail", "--wait", "5s")[0]["receipt"].(string))
	for _, c := range []struct {
		args  string
		lines []string
	}{
		{"", []string{`TASKS +TOPIC +REASON +FIRST DIED +LAST DIED +ERROR`, `3 +order +buried .* order #: \[# HTTP 503`, `1 +mail +buried .* buried`}},
		{"order", []string{`TASKS +REASON .*`, `3 +buried .*`}},
		{"--limit 1", []string{`TASKS .*`, `3 +order .*`, `and 1 task for other reasons`}},
		{"--scope node --group g", []string{`TASKS .*`, `1 +mail .*`}},
		{"order --died-to 2020-01-01T00:00:00Z", []string{`no task is dead, or none that the flags select`}},
		{"--error-like buried", []string{`TASKS .*`, `1 +mail .*`}},
	} {
		out := s.ok(append([]string{"dead", "reasons"}, strings.Fields(c.args)...)...)
		if !regexp.MustCompile("^" + strings.Join(c.lines, " *\n") + " *\n$").MatchString(out) {
			t.Errorf("%s: got\n%s, want %q", c.args, out, c.lines)
		}
	}
	r := s.object("dead", "reasons", "--limit", "1")
	if one := r["reasons"].([]any)[0].(map[string]any); one["count"] != 3.0 || one["example"] != "order 0:\x1b[2J HTTP 503" || r["complete"] != true || r["looked_at"] != 4.0 || r["left_out"] != 1.0 {
		t.Errorf("got %v", r)
	}
	s.fails(exitUsage, []string{"dead", "reasons", "--limit", "51"}, "limit: must be from 1 to 50")
	s.fails(exitNotFound, []string{"dead", "reasons", "ordre"}, `the topic "ordre" is unknown`)
}

// A list is counted by topic and state.
func TestListCount(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "order", "--id", "a", "--delay", "1h", "--group", "g")
	s.ok("schedule", "order", "--id", "b")
	s.ok("schedule", "mail", "--id", "c", "--delay", "1h")
	for args, want := range map[string]string{
		"":                            `TOPIC +TASKS *\norder +2 +1 pending, 1 ready *\nmail +1 +1 pending *\n3 tasks: 2 pending, 1 ready`,
		"--group g --within 500ms":    `1 task: 1 pending`,
		"--state dead":                `0 tasks: none`,
		"--id-prefix b --topic order": `1 task: 1 ready`,
	} {
		out := s.ok(append([]string{"list", "--count"}, strings.Fields(args)...)...)
		if !regexp.MustCompile("^" + want + " *\n$").MatchString(out) {
			t.Errorf("%s: got\n%s", args, out)
		}
	}
	if total := s.object("list", "--count")["total"].(map[string]any); total["pending"] != 2.0 || total["ready"] != 1.0 {
		t.Errorf("got %v", total)
	}
	s.fails(exitUsage, []string{"list", "--within", "1s"}, "within: is for --count only")
	s.fails(exitUsage, []string{"list", "--count", "--within", "1h"}, "within")
	s.fails(exitNotFound, []string{"list", "--count", "--topic", "ordre"}, `the topic "ordre" is unknown`)
	c := canned(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"total":{"pending":5},"topics":[],"looked_at":20,"of":70,"complete":false,"missing":[{"node":"n2","error":"no answer"}]}`)
	})
	c.prints([]string{"list", "--count"}, "at least 5 tasks: 5 pending\n", "about 20 of 70 tasks were looked at", "n2")
}

// What was not looked at is told.
func TestDeadReasonsNotComplete(t *testing.T) {
	s := canned(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"reasons":[{"topic":"t","error":"e","count":20000,"first_died_at":"2026-01-01T00:00:00Z","last_died_at":"2026-01-01T00:00:00Z"}],"looked_at":20000,"dead":70000,"complete":false,"missing":[]}`)
	})
	s.prints([]string{"dead", "reasons", "t"}, "Not complete: 20000 of 70000 dead tasks were looked at, the longest dead first. --died-from leads to later ones.\n")
}

// A list can show more of each task, and a task tells what comes next.
func TestWholeStory(t *testing.T) {
	s := newShell(t)
	s.ok("topics", "set", "order", "--max-attempts", "3")
	s.ok("schedule", "order", "--id", "a", "--delay", "1h", "--group", "g")
	out := s.ok("list", "--wide")
	rows := strings.Split(out, "\n")
	if !strings.HasPrefix(rows[0], "ID  TOPIC  STATE    DUE ") || !strings.Contains(rows[0], "GROUP  REVISION  CREATED") || strings.Fields(rows[1])[8] != "g" {
		t.Errorf("got\n%s", out)
	}
	s.prints([]string{"get", "a"}, "  delivery  pull, no receiver waits\n", "  gives up  after 3 attempts, or in 1d1h (")
	s.ok("topics", "pause", "order")
	s.prints([]string{"get", "a"}, "  delivery  pull, paused\n")
}

// Dead tasks of all topics come back. A topic whose first ones fail again is left.
func TestRedrive(t *testing.T) {
	s := newShell(t)
	bury := func(topic string, n int) {
		for i := range n {
			s.ok("schedule", topic, "--id", fmt.Sprint(topic, i))
			s.ok("bury", s.lines("reserve", topic, "--wait", "5s")[0]["receipt"].(string), "--reason", "refused")
		}
	}
	bury("bad", 4)
	s.fails(exitFailed, []string{"dead", "redrive", "bad", "--within", "1s"}, "not all were requeued: bad")
	for range 4 { // those that came back to be tried
		s.ok("bury", s.lines("reserve", "bad", "--wait", "5s")[0]["receipt"].(string), "--reason", "refused")
	}
	s.prints([]string{"dead", "redrive", "--reason", "buried", "--no-try", "--rate", "2"}, "bad: 4 of 4 requeued\n")
	s.prints([]string{"dead", "redrive"}, "no task is dead")
	s.fails(exitUsage, []string{"dead", "redrive", "--rate", "0"}, "rate: must be from 1 to 1000")
	s.fails(exitNotFound, []string{"dead", "redrive", "ordre"}, `the topic "ordre" is unknown`)

	acts := 0
	failing := canned(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Path == "/v1/counts":
			fmt.Fprint(w, `{"total":{"dead":12},"topics":[{"topic":"x","dead":12}],"complete":true,"missing":[]}`)
		case r.URL.Path == "/v1/topics/x/dead":
			fmt.Fprint(w, `{"tasks":[{"id":"a"},{"id":"b"}],"next_cursor":"c"}`)
		case r.URL.Path == "/v1/tasks/actions":
			acts++
			fmt.Fprint(w, `{"matched":2,"done":2,"failed":[]}`)
		default:
			fmt.Fprint(w, `{"id":"a","topic":"x","state":"dead","last_error":"HTTP 503"}`)
		}
	})
	failing.fails(exitFailed, []string{"dead", "redrive", "x"}, "not all were requeued: x")
	if acts != 1 { // of those that are tried, and none of the others
		t.Errorf("%d acts", acts)
	}
}

// A dead task is mended and sent again.
func TestMend(t *testing.T) {
	s := newShell(t)
	s.ok("schedule", "order", "--id", "a", "--payload", `{"n":1}`)
	s.ok("bury", s.lines("reserve", "order", "--wait", "5s")[0]["receipt"].(string))
	s.fails(exitUsage, []string{"dead", "requeue", "order", "--all", "--payload", "{}"}, "give one with --payload")
	s.fails(exitUsage, []string{"dead", "requeue", "order", "a", "--delivery", "["}, "delivery: must be a JSON object")
	s.prints([]string{"dead", "requeue", "order", "a", "--payload", `{"n":2}`, "--header", "by=me"}, "1 dead task of order is requeued")
	d := s.lines("reserve", "order", "--wait", "5s")[0]
	if d["id"] != "a" || d["payload"].(map[string]any)["n"] != 2.0 || d["headers"].(map[string]any)["by"] != "me" {
		t.Errorf("got %v", d)
	}
}
