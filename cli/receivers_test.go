package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
)

// ready schedules tasks of topic x that are due, and waits until all of them are ready.
func (s *shell) ready(ids ...string) {
	s.Helper()
	for _, id := range ids {
		s.ok("schedule", "x", "--id", id, "--payload", `{"id":"`+id+`"}`, "--header", "tenant=eu")
	}
	s.until(func() bool { return len(s.lines("list", "--topic", "x", "--state", "ready")) == len(ids) })
}

// until waits for something to become true.
func (s *shell) until(what func() bool) {
	s.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !what() {
		select {
		case <-ticker.C:
		case <-s.Context().Done():
			s.Fatal("it did not happen")
		}
	}
}

func TestReserveAndSettle(t *testing.T) {
	s := newShell(t)
	s.ready("a", "b", "c", "d")
	out := s.ok("reserve", "x", "--max", "1", "--lease", "24h")
	if !strings.HasPrefix(out, "ID  DUE") || !strings.Contains(out, "\na   ") || !strings.Contains(out, `in 1d       {"id":"a"}`) {
		t.Errorf("got\n%s", out)
	}
	fields := strings.Fields(out)
	s.prints([]string{"ack", fields[len(fields)-1]}, "1 delivery is acknowledged\n")
	s.prints([]string{"ack", fields[len(fields)-1]}, "1 delivery is acknowledged\n") // again
	receipts := map[string]string{}
	for _, d := range s.lines("reserve", "x", "--max", "3", "--wait", "5s") {
		receipts[d["id"].(string)] = d["receipt"].(string)
	}
	if len(receipts) != 3 {
		t.Fatalf("got %v", receipts)
	}
	s.prints([]string{"extend", receipts["b"], receipts["c"], "--lease", "2h"}, "2 deliveries are extended: the lease ends in 2h\n")
	s.fails(exitConflict, []string{"cancel", "b"}, "being delivered")
	s.fails(exitConflict, []string{"reschedule", "b", "--delay", "1h"}, "being delivered")
	s.prints([]string{"release", receipts["b"], "--delay", "1d", "--reason", "no stock"}, "1 delivery is released\n")
	s.prints([]string{"get", "b"}, "  next        in 1d (", "  last error  no stock\n")
	s.prints([]string{"return", receipts["d"]}, "1 delivery is given back\n")
	d := s.lines("reserve", "x", "--wait", "5s")[0]
	if receipts["d"] = d["receipt"].(string); fmt.Sprint(d["id"], d["attempt"]) != "d1" {
		t.Errorf("after a return: %v", d)
	}
	s.prints([]string{"bury", receipts["c"], "--reason", "poison"}, "1 delivery is buried\n")
	s.fails(exitConflict, []string{"fire", "c"}, "dead")
	if got := s.object("ack", receipts["d"]); fmt.Sprint(got["settled"]) != "1" {
		t.Errorf("got %v", got)
	}
	// Receipts that settle nothing are reported, and decide the exit code.
	s.typed(receipts["c"] + "\n" + receipts["b"] + "\n")
	s.fails(exitConflict, []string{"ack", "-"}, "c: The receipt is stale", "b: The receipt is stale")
	s.fails(exitUsage, []string{"ack", "nonsense", "--json"}, "Not a receipt")
	// No ready task is no failure.
	code, out, errs := s.run("reserve", "x")
	if code != exitOK || out != "" || errs != "nothing is ready\n" {
		t.Errorf("exit code %d: %q, %q", code, out, errs)
	}
	s.fails(exitUsage, []string{"reserve", "x", "--wait", "2m"}, "wait")
}

func TestReserveAck(t *testing.T) {
	s := newShell(t)
	s.ready("a", "b")
	if got := s.lines("reserve", "x", "--max", "2", "--ack"); len(got) != 2 {
		t.Errorf("got %v", got)
	}
	if got := s.lines("list"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// The command decides the outcome of its task.
func TestExec(t *testing.T) {
	s := newShell(t)
	s.ready("good", "bad")
	command := `read -r p; echo "$LAPSE_TASK_ID $LAPSE_TASK_TOPIC $LAPSE_TASK_ATTEMPT $LAPSE_TASK_HEADERS $p"; test "$LAPSE_TASK_ID" = good`
	code, out, errs := s.run("reserve", "x", "--max", "2", "--exec", command)
	if code != exitFailed || !strings.Contains(errs, "bad, attempt 1: exit status 1\n") || !strings.Contains(errs, "1 commands failed") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	for _, id := range []string{"good", "bad"} {
		if line := id + ` x 1 {"tenant":"eu"} {"id":"` + id + "\"}\n"; !strings.Contains(out, line) {
			t.Errorf("%q is not in\n%s", line, out)
		}
	}
	s.fails(exitNotFound, []string{"get", "good"})
	got := s.object("get", "bad")
	if got["last_error"] != "the command failed: exit status 1" || fmt.Sprint(got["attempt"]) != "1" {
		t.Errorf("got %v", got)
	}
	// The task of a command that cannot be run is released, too.
	s.ok("fire", "bad")
	s.until(func() bool { return s.object("get", "bad")["state"] == "ready" })
	code, _, errs = s.run("reserve", "x", "--exec", "/no/such/command")
	if code != exitFailed || !strings.Contains(errs, "exit status 127") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// The lease is extended as long as the command runs.
func TestExecExtends(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	extended, acked := 0, 0
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/v1/topics/x/reserve":
			if string(body) != `{"max":1,"lease":"1s"}` {
				t.Errorf("reserved with %s", body)
			}
			fmt.Fprint(w, `{"tasks":[{"id":"a","topic":"x","attempt":1,"receipt":"r"}]}`)
			return
		case "/v1/receipts/extend":
			if string(body) != `{"receipts":["r"],"lease":"1s"}` {
				t.Errorf("extended with %s", body)
			}
			if extended++; extended == 3 {
				if err := os.WriteFile(gate, nil, 0o600); err != nil {
					t.Error(err)
				}
			}
		case "/v1/receipts/ack":
			acked++
		}
		fmt.Fprint(w, `{"settled":1,"recorded":true,"errors":[]}`)
	})
	s.ok("reserve", "x", "--lease", "1s", "--exec", "while [ ! -e "+gate+" ]; do sleep 0.02; done")
	if extended < 3 || acked != 1 {
		t.Errorf("extended %d times, acknowledged %d times", extended, acked)
	}
}

// A command whose lease was lost is killed, and settles nothing.
func TestExecLosesLease(t *testing.T) {
	const stale = `{"settled":0,"recorded":false,"errors":[{"index":0,"id":"a","problem":{"type":"/problems/stale_receipt","title":"The receipt is stale","status":409}}]}`
	calls := make(chan string, 16)
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		calls <- r.URL.Path
		if strings.HasSuffix(r.URL.Path, "/reserve") {
			fmt.Fprint(w, `{"tasks":[{"id":"a","topic":"x","attempt":1,"receipt":"r"}]}`)
			return
		}
		fmt.Fprint(w, stale)
	})
	code, _, errs := s.run("reserve", "x", "--lease", "1s", "--exec", "exec sleep 600")
	if code != exitFailed || !strings.Contains(errs, "a, attempt 1: the lease was lost") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	close(calls)
	var paths []string
	for path := range calls {
		paths = append(paths, path)
	}
	if got := strings.Join(paths, " "); got != "/v1/topics/x /v1/topics/x/reserve /v1/receipts/extend" {
		t.Errorf("called %s", got)
	}
}

// A receiver goes on through an outage, and an interruption waits for commands that run.
func TestFollow(t *testing.T) {
	s := newShell(t)
	ctx, interrupt := context.WithCancel(t.Context())
	gate := filepath.Join(t.TempDir(), "gate")
	began := gate + ".began"
	var out, errs screen
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"reserve", "x", "--follow", "--max", "3", "--server", s.url, "--exec",
			"test $LAPSE_TASK_ID != last || { touch " + began + "; while [ ! -e " + gate + " ]; do sleep 0.02; done; }; echo $LAPSE_TASK_ID"}, streams{&out, &errs})
	}()
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		s.ok("schedule", "x", "--id", id)
	}
	s.until(func() bool { return len(s.lines("list")) == 0 })
	s.ok("schedule", "x", "--id", "last")
	s.until(func() bool { _, err := os.Stat(began); return err == nil })
	interrupt()
	s.until(func() bool { return strings.Contains(errs.String(), "interrupted: waiting for 1 command that runs") })
	select {
	case code := <-done:
		t.Fatalf("it did not wait for the command: exit code %d", code)
	default:
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != exitOK {
		t.Errorf("exit code %d: %s", code, &errs)
	}
	s.fails(exitNotFound, []string{"get", "last"})
	if n := strings.Count(out.String(), "\n"); n != 6 {
		t.Errorf("%d commands ran:\n%s", n, &out)
	}
}

// What arrives after an interruption is given back and not run: the attempt does not count.
func TestInterruptedReserve(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	var settled []string
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/topics/x/reserve" {
			interrupt()
			fmt.Fprint(w, `{"tasks":[{"id":"a","topic":"x","attempt":1,"receipt":"r"},{"id":"b","topic":"x","attempt":1,"receipt":"s"}]}`)
			return
		}
		if body, _ := io.ReadAll(r.Body); r.Method == http.MethodPost {
			settled = append(settled, r.URL.Path+" "+string(body))
			fmt.Fprint(w, `{"settled":2,"recorded":true,"errors":[]}`)
		}
	})
	var out, errs screen
	code := run(ctx, []string{"reserve", "x", "--max", "2", "--follow", "--server", s.url, "--exec", "echo ran"}, streams{&out, &errs})
	if got := strings.Join(settled, " "); code != exitOK || out.String() != "" || got != `/v1/receipts/return {"receipts":["r","s"]}` {
		t.Errorf("exit code %d, ran %q, settled %s: %s", code, &out, got, &errs)
	}
}

// The receiver waits through an error that may pass. Any other error ends it.
func TestFollowThroughOutage(t *testing.T) {
	asked := 0
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return
		}
		if asked++; asked <= 1 {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"type":"/problems/unauthorized","title":"A token is needed","status":401}`)
	})
	for _, how := range [][]string{{"--exec", "true"}, {}} {
		asked = 0
		code, _, errs := s.run(append([]string{"reserve", "x", "--follow"}, how...)...)
		if code != exitDenied || !strings.Contains(errs, "Bad Gateway") || !strings.Contains(errs, "A token is needed; a token is given in LAPSE_TOKEN") {
			t.Errorf("exit code %d: %s", code, errs)
		}
	}
}

func TestDescribe(t *testing.T) {
	d := &client.Delivery{Task: client.Task{ID: "a", Topic: "x", Attempt: 3, Group: "g", Due: time.UnixMilli(1500).UTC(),
		Headers: map[string]string{"k": "v\n"}}}
	want := "LAPSE_TASK_ID=a|LAPSE_TASK_TOPIC=x|LAPSE_TASK_ATTEMPT=3|LAPSE_TASK_DUE_AT=1970-01-01T00:00:01.5Z|LAPSE_TASK_GROUP=g|LAPSE_TASK_HEADERS={\"k\":\"v\\n\"}"
	if got := strings.Join(describe(d), "|"); got != want {
		t.Errorf("got %s", got)
	}
}

// With the shell, all processes that it has started are killed: none of them works on a task that
// another receiver may have.
func TestExecLosesLeaseWithChildren(t *testing.T) {
	const stale = `{"settled":0,"recorded":false,"errors":[{"index":0,"id":"a","problem":{"type":"/problems/stale_receipt","title":"The receipt is stale","status":409}}]}`
	s := canned(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/reserve") {
			fmt.Fprint(w, `{"tasks":[{"id":"a","topic":"x","attempt":1,"receipt":"r"}]}`)
			return
		}
		fmt.Fprint(w, stale)
	})
	pid := filepath.Join(t.TempDir(), "pid")
	code, _, errs := s.run("reserve", "x", "--lease", "1s", "--exec", "sh -c 'echo $$ > "+pid+"; exec sleep 60'; true")
	if code != exitFailed || !strings.Contains(errs, "a, attempt 1: the lease was lost") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	text, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) })
	if ran, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); err == nil && strings.HasPrefix(string(ran), "sleep") {
		t.Error("the shell's child goes on")
	}
}

// Exit code 0 acknowledges, also when a process left behind holds the output.
func TestExecLeavesSomethingBehind(t *testing.T) {
	s := newShell(t)
	s.ready("a")
	if code, _, errs := s.run("reserve", "x", "--exec", "sleep 7 & exit 0"); code != exitOK {
		t.Errorf("exit code %d: %s", code, errs)
	}
	s.fails(exitNotFound, []string{"get", "a"})
}
