package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
)

// On a terminal the user is asked first; elsewhere not.
func TestActingAsks(t *testing.T) {
	s := newShell(t)
	for i := range 3 {
		s.ok("schedule", "x", "--id", fmt.Sprint("order-", i), "--delay", "1h")
	}
	s.ok("schedule", "y", "--id", "other", "--delay", "1h")
	terminal := isTerminal
	defer func() { isTerminal = terminal }()
	isTerminal = func(any) bool { return true }
	for _, answer := range []string{"n\n", "\n", "", "maybe\n"} {
		s.typed(answer)
		code, _, errs := s.run("cancel", "--topic", "x")
		if code != exitFailed || !strings.HasPrefix(errs, "3 tasks will be cancelled. Go on? [y/N] ") || !strings.Contains(errs, "lapse: nothing was done") {
			t.Errorf("answered %q: %d, %s", answer, code, errs)
		}
	}
	s.prints([]string{"cancel", "--topic", "x", "--id-prefix", "none"}, "no task is selected\n")
	s.prints([]string{"cancel", "--topic", "x", "--dry-run"}, "3 tasks would be cancelled\n")
	s.typed("y\n")
	code, out, errs := s.run("reschedule", "--topic", "x", "--shift", "1d")
	if code != exitOK || out != "3 tasks are moved\n" || !strings.Contains(errs, "(0/3") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
	s.typed("")
	isTerminal = func(stream any) bool { return stream != os.Stdin }
	code, out, _ = s.run("fire", "--id-prefix", "order-1")
	if code != exitOK || out != "1 task is made due now\n" {
		t.Errorf("%d, %q", code, out)
	}
	isTerminal = terminal
	code, out, errs = s.run("cancel", "--topic", "x", "--yes")
	if code != exitOK || out != "3 tasks are cancelled\n" || errs != "" {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
	if left := s.lines("list"); len(left) != 1 || left[0]["id"] != "other" {
		t.Errorf("left are %v", left)
	}
}

func TestActingTellsWhatItLeft(t *testing.T) {
	s := newShell(t)
	s.ready("order-0", "order-1")
	s.ok("reserve", "x", "--max", "1", "--lease", "1h")
	s.fails(exitConflict, []string{"cancel", "--topic", "x", "--state", "delivering"}, "1 task was not cancelled:\n  order-0: ", "is being delivered")
	for _, args := range [][]string{
		{"cancel"}, {"cancel", "a", "--topic", "x"}, {"cancel", "a", "--yes"}, {"fire", "a", "--dry-run"},
		{"reschedule", "--topic", "x"}, {"reschedule", "a", "--shift", "1h"}, {"reschedule", "--topic", "x", "--shift", "1h", "--delay", "1h"},
		{"dead", "delete", "x", "--all", "--reason", "buried"}, {"dead", "delete", "x", "--yes"}, {"dead", "delete", "x", "a", "--error", "b"},
		{"dead", "requeue", "x", "--reason", "buried", "--delay=-1h"},
	} {
		code, _, errs := s.run(args...)
		if code != exitUsage {
			t.Errorf("%v: exit %d, %s", args, code, errs)
		}
	}
	s.fails(exitUsage, []string{"reschedule", "--topic", "x", "--shift", "0"}, "shift: must not be zero")
	s.fails(exitUsage, []string{"dead", "requeue", "x", "--all", "--id-prefix", "q"}, "and only one of these")
	code, _, errs := s.run("cancel", "--topic", "x", "--cursor", "xxx")
	if code != exitUsage || !strings.Contains(errs, "0 tasks were cancelled") || strings.Contains(errs, "to go on") {
		t.Errorf("got %d, %q", code, errs)
	}
}

func TestActingOnTheDead(t *testing.T) {
	s := newShell(t)
	s.ready("order-0", "order-1", "order-2")
	for range 3 {
		d := s.lines("reserve", "x", "--max", "1")
		s.ok("bury", d[0]["receipt"].(string), "--reason", "no "+d[0]["id"].(string))
	}
	s.prints([]string{"dead", "requeue", "x", "--error", "order-1", "--due-at", "2031-01-31T12:00:00Z"}, "1 task is requeued\n")
	if got := s.object("get", "order-1"); got["state"] != "pending" || got["due_at"] != "2031-01-31T12:00:00.000Z" {
		t.Errorf("got %v", got)
	}
	s.prints([]string{"dead", "delete", "x", "--reason", "exhausted"}, "0 tasks are deleted\n")
	answers := s.lines("dead", "delete", "x", "--all", "--yes")
	if len(answers) != 1 || answers[0]["done"] != 2.0 {
		t.Errorf("got %v", answers)
	}
	s.prints([]string{"dead", "delete", "x", "--reason", "buried", "--dry-run"}, "0 tasks would be deleted\n")
}

// The dead of a group are listed, requeued and deleted, and those whose errors are alike.
func TestActingOnTheDeadOfAGroup(t *testing.T) {
	s := newShell(t)
	s.ok("topics", "set", "x", "--keep-finished", "1h")
	for i, group := range []string{"campaign-3", "campaign-3", "campaign-4"} {
		s.ok("schedule", "x", "--id", fmt.Sprint("order-", i), "--group", group)
	}
	s.until(func() bool { return len(s.lines("list", "--topic", "x", "--state", "ready")) == 3 })
	for i, d := range s.lines("reserve", "x", "--max", "3") {
		s.ok("bury", d["receipt"].(string), "--reason", fmt.Sprint("no order ", i))
	}
	if got := s.lines("dead", "list", "x", "--group", "campaign-3"); len(got) != 2 {
		t.Errorf("listed %v", got)
	}
	s.prints([]string{"dead", "delete", "x", "--group", "campaign-3", "--error-like", "no order 77", "--dry-run"}, "2 tasks would be deleted\n")
	s.prints([]string{"dead", "delete", "x", "--group", "campaign-3", "--error-like", "no orders", "--dry-run"}, "0 tasks would be deleted\n")
	s.prints([]string{"dead", "requeue", "x", "--group", "campaign-3"}, "2 tasks are requeued\n")
	s.fails(exitNotFound, []string{"dead", "delete", "x", "--group", "campaign-5"}, `the group "campaign-5" is unknown`)
	s.prints([]string{"dead", "delete", "x", "--group", "campaign-4"}, "1 task is deleted\n")
	s.ok("cancel", "order-0")
	if got := s.lines("list", "--state", "finished", "--topic", "x", "--group", "campaign-3"); len(got) != 1 || got[0]["id"] != "order-0" {
		t.Errorf("listed %v", got)
	}
}

// One deadline is for all calls of the command.
func TestActingOnTheDeadLater(t *testing.T) {
	s := newShell(t)
	s.ready("order-0", "order-1")
	for _, d := range s.lines("reserve", "x", "--max", "2") {
		s.ok("bury", d["receipt"].(string))
	}
	s.prints([]string{"dead", "requeue", "x", "--reason", "buried", "--delay", "1h"}, "2 tasks are requeued\n")
	a, b := s.object("get", "order-0"), s.object("get", "order-1")
	if a["state"] != "pending" || b["state"] != "pending" || a["due_at"] != b["due_at"] {
		t.Errorf("got %v and %v", a, b)
	}
	var dues []string
	s = canned(t, func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			DueAt string `json:"due_at"`
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			t.Error(err)
		}
		if dues = append(dues, asked.DueAt); len(dues) > 2 {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"done":1,"next_cursor":"c%d"}`, len(dues))
	})
	code, _, errs := s.run("dead", "requeue", "x", "--reason", "buried", "--delay", "1h")
	if code != exitDenied || len(dues) != 3 || dues[0] == "" || dues[1] != dues[0] || dues[2] != dues[0] ||
		!strings.Contains(errs, "2 tasks were requeued; to go on: --cursor c2 --due-at "+dues[0]) {
		t.Errorf("got %d, %q, deadlines %v", code, errs, dues)
	}
	s.fails(exitUsage, []string{"dead", "requeue", "x", "--reason", "buried", "--delay", "1h", "--cursor", "c2"}, "give the --due-at")
}

// On a terminal the user is asked before all tasks of a topic or a group are meant. Elsewhere, and
// with --yes, the user is not asked.
func TestActingOnAllAsks(t *testing.T) {
	s := newShell(t)
	terminal := isTerminal
	defer func() { isTerminal = terminal }()
	fill := func() {
		isTerminal = terminal
		s.ready("dead-0", "dead-1")
		for _, d := range s.lines("reserve", "x", "--max", "2") {
			s.ok("bury", d["receipt"].(string))
		}
		for i := range 3 {
			s.ok("schedule", "x", "--id", fmt.Sprint("order-", i), "--delay", "1h", "--group", "g")
		}
	}
	s.ok("topics", "set", "none", "--lease", "1m")
	clear := func() {
		isTerminal = terminal
		s.ok("topics", "purge", "x")
		s.ok("dead", "delete", "x", "--all")
	}
	for _, c := range []struct {
		question, out, flagged string
		args                   []string
	}{
		{"3 tasks will be cancelled, but for those that are being delivered.", "3 tasks of the group g are cancelled\n", "3 tasks are cancelled\n",
			[]string{"cancel", "--group", "g"}},
		{"2 tasks will be requeued.", "2 dead tasks of x are requeued\n", "2 tasks are requeued\n", []string{"dead", "requeue", "x", "--all", "--delay", "1h"}},
		{"2 tasks will be deleted.", "the dead tasks of x are deleted\n", "2 tasks are deleted\n", []string{"dead", "delete", "x", "--all"}},
		{"3 tasks of x will be cancelled.", "x is purged: 3 tasks are cancelled, 0 are being delivered and stay\n", "", []string{"topics", "purge", "x"}},
		{"3 tasks of x* will be cancelled.", "x* is purged: 3 tasks are cancelled, 0 are being delivered and stay\n", "", []string{"topics", "purge", "x*"}},
		{"3 tasks of x none will be cancelled.", "x is purged: 3 tasks are cancelled, 0 are being delivered and stay\n", "", []string{"topics", "purge", "x", "none"}},
		{"3 tasks of x will be made dead, and the settings forgotten.", "x has its defaults again\n", "", []string{"topics", "delete", "x", "--force"}},
	} {
		fill()
		isTerminal = func(any) bool { return true }
		s.typed("n\n")
		if code, out, errs := s.run(c.args...); code != exitFailed || out != "" || !strings.HasPrefix(errs, c.question+" Go on? [y/N] ") {
			t.Errorf("%v, answered no: %d, %q, %q", c.args, code, out, errs)
		}
		s.typed("y\n")
		if code, out, errs := s.run(c.args...); code != exitOK || !strings.HasPrefix(out, c.out) || errs != c.question+" Go on? [y/N] " {
			t.Errorf("%v, answered yes: %d, %q, %q", c.args, code, out, errs)
		}
		clear()
		fill()
		s.prints(c.args, c.out)
		clear()
		fill()
		isTerminal = func(any) bool { return true }
		s.typed("")
		if code, out, errs := s.run(append(c.args, "--yes")...); code != exitOK || !strings.HasPrefix(out, cmp.Or(c.flagged, c.out)) || strings.Contains(errs, "Go on") {
			t.Errorf("%v --yes: %d, %q, %q", c.args, code, out, errs)
		}
		clear()
	}
	isTerminal = func(any) bool { return true }
	s.fails(exitNotFound, []string{"cancel", "--group", "g"}, "unknown or finished")
	s.prints([]string{"dead", "delete", "x", "--all"}, "no task is selected\n")
}
