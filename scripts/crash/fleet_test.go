//go:build fault

package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// failoverAfter is short, so that a node's death is noticed within a test.
const failoverAfter = 1500 * time.Millisecond

// patienceOfJudge is for how long messages and writes may be under way, and nodes may not have
// noticed that they were left out.
const patienceOfJudge = 2*failoverAfter + slack

// A fleet is several servers on one Redis.
type fleet struct {
	t       *testing.T
	history *History
	hooks   *hooks // receives the tasks that are not pulled
	nodes   []*node
	numbers atomic.Int64 // the last number given to a task
	busy    atomic.Int64 // requests that were answered 503
	done    atomic.Int64 // requests that were answered 2xx
}

// A node is one server of a fleet.
type node struct {
	*server
	proxies []*redistest.Proxy // between it and Redis; none: it cannot be cut off
}

// An entry is how one node reaches Redis.
type entry struct {
	url     string
	proxies []*redistest.Proxy
	program string // of another version that the node begins with; empty: the program under test
}

// proxied lets a node reach a Redis through a proxy of its own.
func proxied(t *testing.T, redis *redistest.Server) entry {
	p := redistest.NewProxy(t, redis.Addr)
	return entry{url: p.URL(), proxies: []*redistest.Proxy{p}}
}

// newFleet starts a node for each entry. They are named a, b, c.
func newFleet(t *testing.T, entries []entry, flags ...string) *fleet {
	f := &fleet{t: t, history: NewHistory()}
	f.hooks = newHooks(f)
	logs := t.ArtifactDir()
	for i, e := range entries {
		s := newServer(t)
		s.node, s.url, s.program = string(rune('a'+i)), e.url, e.program
		s.patience = 6 * time.Second
		s.log = filepath.Join(logs, s.node+".log")
		s.flags = append([]string{
			"--failover-after", failoverAfter.String(), "--webhook-secret-file", f.hooks.secretFile(s.node), "--sweep-every", "500ms",
		}, flags...)
		f.nodes = append(f.nodes, &node{s, e.proxies})
	}
	// The first one may have to make what all share.
	for _, n := range f.nodes {
		n.start().ready(t)
	}
	f.hooks.setUp(f.nodes[0].latest())
	return f
}

var flagNames = regexp.MustCompile(`--[a-z-]+`)

// flagsOfServe returns the flags that the binary has.
var flagsOfServe = sync.OnceValue(func() map[string]bool {
	help, _ := exec.Command(binary, "serve", "--help").Output() // without it, it knows none
	names := map[string]bool{}
	for _, name := range flagNames.FindAllString(string(help), -1) {
		names[name] = true
	}
	return names
})

// need skips a test if the binary lacks a flag.
func need(t *testing.T, flags ...string) {
	for _, flag := range flags {
		if !flagsOfServe()[flag] {
			t.Skipf("this binary has no %s", flag)
		}
	}
}

// pick returns the latest run of a live node, preferably not the given one; nil once ctx is over.
func (f *fleet) pick(ctx context.Context, rng *rand.Rand, not *run) *run {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var alive []*run
		for _, n := range f.nodes {
			if r := n.latest(); r != nil && !r.ended() {
				alive = append(alive, r)
			}
		}
		if others := slices.DeleteFunc(slices.Clone(alive), func(r *run) bool { return not != nil && r.node == not.node }); len(others) > 0 {
			alive = others
		}
		if ctx.Err() != nil {
			return nil
		}
		if len(alive) > 0 {
			return alive[rng.IntN(len(alive))]
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (r *run) ended() bool {
	select {
	case <-r.Exited:
		return true
	default:
		return false
	}
}

// An answer is the answer of a node to a request.
type answer struct {
	Span
	outcome Outcome
	again   bool // it may be repeated: no answer, or 503
	status  int
	body    []byte
}

// ask sends a request and checks that the answer is one that any node may give.
func (f *fleet) ask(r *run, method, path string, body []byte) answer {
	a := answer{Span: Span{Node: r.node, Run: r.n, Start: time.Now()}}
	resp, err := r.send(method, path, body)
	a.End = time.Now()
	if err != nil {
		a.outcome, a.again = Unknown, true
		return a
	}
	a.status, a.body = resp.status, resp.body
	a.outcome = f.judge(method+" "+path, resp.status, resp.body)
	a.again = a.status == http.StatusServiceUnavailable
	switch {
	case a.outcome == Done:
		f.done.Add(1)
	case a.again:
		f.busy.Add(1)
		if resp.header.Get("Retry-After") == "" {
			f.t.Errorf("%s answered 503 by %s without Retry-After: %s", path, r.node, resp.body)
		}
	}
	return a
}

// judge returns what an answer, or a problem in one, means. It fails the test if no node may
// give that answer.
func (f *fleet) judge(what string, status int, body []byte) Outcome {
	outcome, ok := OutcomeOf(status, body)
	if !ok {
		f.t.Errorf("%s answered %d: %.300s", what, status, body)
	}
	return outcome
}

func (a answer) decode(t *testing.T, into any) {
	if err := json.Unmarshal(a.body, into); err != nil {
		t.Errorf("%v: %.300s", err, a.body)
	}
}

// term asks the process to stop, and waits until it has.
func (n *node) term() {
	n.t.Helper()
	r := n.latest()
	r.Signal(syscall.SIGTERM)
	select {
	case <-r.Exited:
	case <-time.After(30 * time.Second):
		n.t.Errorf("%s has not stopped in 30 s", n.node)
		r.Kill()
		return
	}
	r.http.CloseIdleConnections()
	if code := r.Cmd.ProcessState.ExitCode(); code != 0 {
		n.t.Errorf("%s has stopped with %v\n%s", n.node, r.Cmd.ProcessState, tail(r.stderr.Bytes()))
	}
}

// drained waits until nothing is owed any more, and every node reports for all nodes that no task
// is left.
func (f *fleet) drained(limit time.Duration) {
	f.t.Helper()
	over := time.After(limit)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		left := ""
		if f.history.Settled() {
			for _, n := range f.nodes {
				for _, topic := range topics {
					var list struct{ Tasks []json.RawMessage }
					status, _, err := n.latest().call(http.MethodGet, "/v1/tasks?limit=3&topic="+topic, nil, &list)
					if outcome(status, err) != Done || len(list.Tasks) > 0 {
						left += fmt.Sprintf("; %s: %d, %v, %s", n.node, status, err, list.Tasks)
					}
				}
			}
			if left == "" {
				return
			}
		}
		select {
		case <-tick.C:
		case <-over:
			f.t.Errorf("after %s, %d tasks are owed%s", limit, f.history.Owed(), left)
			return
		}
	}
}

// verdict judges, and logs the result.
func (f *fleet) verdict(deliver bool) Verdict {
	f.t.Helper()
	v := Bench{Deliver: deliver, Patience: patienceOfJudge, FailoverAfter: failoverAfter}.Judge(f.history)
	f.t.Logf("%d requests were done, %d answered 503; %v", f.done.Load(), f.busy.Load(), v)
	if len(v.Faults) > 0 {
		f.t.Errorf("%d promises were broken", len(v.Faults))
		var b strings.Builder
		for _, fault := range f.history.Faults() {
			fmt.Fprintln(&b, fault)
		}
		f.t.Logf("what was done to the nodes:\n%s", &b)
		f.keep(v)
	}
	return v
}

// guiltyShown is how many histories of tasks with a fault are logged.
const guiltyShown = 3

// keep writes the history of each task with a fault beside the logs, and logs the first ones.
func (f *fleet) keep(v Verdict) {
	file, err := os.Create(filepath.Join(f.t.ArtifactDir(), "guilty.txt"))
	if err != nil {
		f.t.Error(err)
		return
	}
	defer file.Close()
	for i, fault := range v.Faults {
		var n int
		if _, err := fmt.Sscanf(fault, "task %d:", &n); err != nil {
			f.t.Error(err)
		}
		fmt.Fprintf(file, "%s\n%v\n", fault, f.history.tasks[n])
		if i < guiltyShown {
			f.t.Logf("%s\n%v", fault, f.history.tasks[n])
		}
	}
}
