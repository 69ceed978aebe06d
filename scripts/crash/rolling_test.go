//go:build fault

package crash

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// TestRollingRestart restarts three nodes one after the other under load, each of them after it has
// handed its tasks over. Nothing is lost, nothing is delivered twice within its lease, nothing is
// late by more than a second, and the only server error that a caller gets is 503.
func TestRollingRestart(t *testing.T) { roll(t, "") }

// TestRollingUpgrade starts three nodes of the version that LAPSE_FROM names, and restarts them one
// after the other with the program under test, with the promises of TestRollingRestart: the nodes
// of both versions understand one another, and read what the others have stored.
func TestRollingUpgrade(t *testing.T) {
	from := os.Getenv("LAPSE_FROM")
	if from == "" {
		t.Skip("LAPSE_FROM names no binary of an earlier version; see make upgrade")
	}
	roll(t, from)
}

// roll restarts nodes, which begin with the program of another version if from names one.
func roll(t *testing.T, from string) {
	need(t, "--handover")
	redis := redistest.Start(t, "appendonly yes", "appendfsync always")
	f := newFleet(t, entries(t, func() entry {
		e := proxied(t, redis)
		e.program = from
		return e
	}), "--handover")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const ahead = 6 * time.Second
	l := f.work(t, seed, size(t, "LAPSE_FLEET_RATE", 40), ahead, true)

	quiet := time.Now().Add(ahead)
	<-time.After(time.Until(quiet)) // a delay measured now has other causes than a restart
	for _, n := range f.nodes {
		n.program = ""
		over := f.inject(n, HandedOver, nil)
		over()
		<-time.After(time.Second) // under load
	}
	rolled := time.Now()
	l.stopCalling()
	f.drained(ahead + time.Minute)
	l.stopTaking()

	before := f.lateness(time.Time{}, quiet.Add(-time.Second))
	during := f.lateness(quiet, rolled)
	for _, fault := range f.history.Faults() {
		t.Logf("%s, for %s", fault, fault.End.Sub(fault.Start).Round(time.Millisecond))
	}
	t.Logf("late before it %v; during it %v", before, during)
	v := f.verdict(false)
	if during.n == 0 || v.Accepted == 0 {
		t.Error("there was no load")
	}
	if limit := time.Second + slack; during.most > before.most+limit {
		t.Errorf("the restarts have held deliveries up")
	}
	if during.most > time.Second {
		t.Logf("the latest of them:\n%v", f.latest(quiet, rolled))
	}
}

// latest is the task whose first attempt was the latest of all that fell due in an interval.
func (f *fleet) latest(from, to time.Time) *Task {
	var worst *Task
	most := time.Duration(0)
	for _, task := range f.history.tasks {
		if a, ok := task.first(); ok && a.due.After(from) && a.due.Before(to) && a.end.Sub(a.due) > most {
			worst, most = task, a.end.Sub(a.due)
		}
	}
	return worst
}

// lateness is that of first attempts at tasks that fell due in an interval.
func (f *fleet) lateness(from, to time.Time) delays {
	f.history.mu.Lock()
	defer f.history.mu.Unlock()
	var all []arrival
	for _, task := range f.history.tasks {
		if a, ok := task.first(); ok {
			all = append(all, a)
		}
	}
	return lateness(all, from, to)
}

// first is the first attempt at a task, if there was one. If a task was scheduled after its
// deadline, it is late from the answer on.
func (t *Task) first() (arrival, bool) {
	if len(t.Deliveries) == 0 || len(t.Changes) == 0 {
		return arrival{}, false
	}
	due := t.Changes[0].Due
	if asked := t.Changes[0].End; due.Before(asked) {
		due = asked
	}
	d := slices.MinFunc(t.Deliveries, func(a, b *Delivery) int { return a.End.Compare(b.End) })
	return arrival{due, d.End}, true
}

// TestAdoption kills one node of three, and measures how long its tasks have to wait until another
// one delivers them.
func TestAdoption(t *testing.T) {

	redis := redistest.Start(t, "appendonly yes", "appendfsync always")
	f := newFleet(t, entries(t, func() entry { return proxied(t, redis) }))
	dead := f.nodes[0]
	number := size(t, "LAPSE_FLEET_TASKS", 9000)
	began := time.Now()
	const life, most = 2 * time.Second, 4 * failoverAfter
	orders := make([]order, number)
	for i := range orders {
		orders[i] = order{n: int(f.numbers.Add(1)), due: began.Add(rand.N(life + most)).Truncate(time.Millisecond)}
		if i%2 == 0 {
			orders[i].id = fmt.Sprintf("adopted-%d", orders[i].n)
		}
	}
	for some := range slices.Chunk(orders, 5000) {
		a := f.ask(dead.latest(), "POST", "/v1/tasks/batch", batchBody(some))
		if a.outcome != Done || !strings.Contains(string(a.body), `"errors":[]`) {
			t.Fatalf("a batch was answered %d %.300s", a.status, a.body)
		}
		for _, o := range some {
			f.history.Change(o.n, Change{Span: a.Span, Kind: Create, Outcome: Done, Due: o.due})
		}
	}
	taking := rig.NewWorkers(t)
	for _, n := range f.nodes[1:] {
		w := &fleetReceiver{fleet: f, home: n, rng: rand.New(rand.NewPCG(7, 7)), careful: true}
		taking.Go(func() { w.work(taking.Ctx) })
	}
	<-time.After(time.Until(began.Add(life))) // at work
	over := f.history.Begin(Killed, dead.node)
	killed := time.Now()
	dead.kill()
	f.history.settledBy(t, time.Minute)
	over()
	dead.start().ready(t)
	f.drained(time.Minute)
	taking.Stop()

	first, last, after := time.Duration(0), time.Duration(0), 0
	for _, task := range f.history.tasks {
		for _, d := range task.Deliveries {
			if wait := d.End.Sub(killed); d.Owner != dead.node && wait > 0 {
				after++
				last = max(last, wait)
				if first == 0 || wait < first {
					first = wait
				}
			}
		}
	}
	t.Logf("the first of %d was delivered by another node %s after kill -9, with failover_after %s; the last after %s",
		after, first.Round(time.Millisecond), failoverAfter, last.Round(time.Millisecond))
	f.verdict(false)
	if limit := failoverAfter + 2*time.Second + slack; after == 0 || first > limit {
		t.Errorf("adoption took longer than %s", limit)
	}
}

// settledBy waits until nothing is owed any more.
func (h *History) settledBy(t *testing.T, limit time.Duration) {
	t.Helper()
	every(t, 100*time.Millisecond, limit, h.Settled)
}

// TestTwins: a second process of one name on what appears to be another machine, since it cannot
// see the first one's processes. While the first one lives, the second is refused. When the first
// is stopped for too long, the second gets the name, and the first one learns so.
func TestTwins(t *testing.T) {
	t.Parallel()
	wrap := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if out, err := exec.Command(wrap[0], append(wrap[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no namespace of process ids can be made here: %v %s", err, out)
	}
	redis := redistest.Start(t, "appendonly yes", "appendfsync always")
	f := newFleet(t, []entry{proxied(t, redis)})
	first := f.nodes[0]
	if status, _, err := first.latest().call("POST", "/v1/tasks", []byte(`{"id":"kept","topic":"crash","delay":"1h"}`), nil); outcome(status, err) != Done {
		t.Fatalf("answered %d, %v", status, err)
	}
	twin := newServer(t)
	twin.node, twin.url, twin.flags, twin.patience, twin.wrap = first.node, first.url, first.flags, first.patience, wrap

	began := time.Now()
	refused := twin.command()
	out, err := refused.CombinedOutput()
	if code := refused.ProcessState.ExitCode(); err == nil || code != 3 || !strings.Contains(string(out), "--node") {
		t.Errorf("the second process ended with %d, want 3:\n%s", code, out)
	}
	t.Logf("refused after %s: %s", time.Since(began).Round(time.Millisecond), out)
	if first.latest().ended() {
		t.Fatal("the first process has ended by that")
	}

	// It is stopped for longer than any process waits.
	first.latest().Signal(syscall.SIGSTOP)
	began = time.Now()
	r := twin.start()
	r.ready(t)
	t.Logf("the second process has the name %s after the first one stood still", time.Since(began).Round(time.Millisecond))
	first.latest().Signal(syscall.SIGCONT)
	select {
	case <-first.latest().Exited:
		if code := first.latest().Cmd.ProcessState.ExitCode(); code != 3 {
			t.Errorf("the first process ended with %d, want 3", code)
		}
	case <-time.After(failoverAfter + 10*time.Second):
		t.Error("the first process goes on, without its name")
	}
	if status, _, err := r.call("GET", "/v1/tasks/kept", nil, nil); outcome(status, err) != Done {
		t.Errorf("the task is gone: %d, %v", status, err)
	}
}
