package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// Tests of a Redis that loses dead tasks, and finished ones that are kept, whose records memory
// has: they are written again. Each runs for one node and for two.

// endings are tasks of topic x that have ended: dead ones, and finished ones if x keeps them.
type endings struct {
	*redisFleet
	finished map[string]Outcome
	dead     []string
	wanted   map[string]string // as node.all tells
}

// prepareEndings has topic x keep what is finished, and follow what dies.
func (g *redisFleet) prepareEndings() *endings {
	g.t.Helper()
	set := TopicSettings{KeepFinished: time.Hour}
	set.OnDead.Topic = "mourners"
	_, err := g.next().SetTopic(g.t.Context(), "x", set, -1)
	rig.Want(g.t, "SetTopic", err, nil)
	g.waitFor("the setting is known", func(n *redisNode) bool {
		got, err := n.Topic("x")
		return err == nil && got.Settings.KeepFinished == time.Hour && got.Settings.OnDead.Topic == "mourners"
	})
	return &endings{redisFleet: g, finished: map[string]Outcome{}}
}

// end schedules some tasks, and ends them.
func (e *endings) end() {
	e.t.Helper()
	for i := range 6 {
		id := fmt.Sprint("order-", i)
		e.schedule("x", id)
		switch i % 3 {
		case 0:
			e.settle(Ack, e.pull(id))
			e.finished[id] = OutcomeDelivered
		case 1:
			e.cancel(id)
			e.finished[id] = OutcomeCancelled
		case 2:
			e.settle(Bury, e.pull(id))
			e.dead = append(e.dead, id)
		}
	}
	e.wanted = e.nodes[0].all()
}

// check wants each node to know of all that has ended.
func (e *endings) check() {
	t, ctx := e.t, e.t.Context()
	t.Helper()
	for _, n := range e.nodes {
		if diff := cmp.Diff(e.wanted, n.all()); diff != "" {
			t.Errorf("what %s tells (-want +got):\n%s", n.name, diff)
		}
		for id, outcome := range e.finished {
			payload := []byte(`"` + id + `"`)
			var got Task
			err := n.answered("Schedule "+id, func() (err error) {
				got, err = n.Schedule(ctx, Request{ID: id, Topic: "x", Delay: time.Hour, Payload: payload})
				return err
			})
			if err != nil || !got.Repeated || got.State != Finished || got.Outcome != outcome || !bytes.Equal(got.Payload, payload) {
				t.Errorf("Schedule of %s at %s = %+v, %v", id, n.name, got, err)
			}
			_, err = n.Schedule(ctx, Request{ID: id, Topic: "x", Delay: time.Hour})
			rig.Want(t, "Schedule of another "+id, err, ErrExists)
		}
		for _, id := range e.dead {
			got, err := n.Get(ctx, id)
			if err != nil || got.State != Dead || got.LastError != "buried" || got.Reason != "buried" {
				t.Errorf("Get of %s at %s = %+v, %v", id, n.name, got, err)
			}
		}
		_, exported := exportAll(t, n, ExportQuery{Topics: []string{"x"}}, nil)
		if len(exported) != len(e.finished)+len(e.dead) {
			t.Errorf("%s exports %d tasks", n.name, len(exported))
		}
	}
}

// checkAfter is check after a loss, and once more in the next processes. Then the dead are
// requeued, and delivered with their payloads.
func (e *endings) checkAfter() {
	t := e.t
	t.Helper()
	e.settled()
	e.check()
	for _, n := range e.nodes {
		if topic, err := n.Topic("x"); err != nil || topic.Counts.Lost != 0 {
			t.Errorf("%s has lost %d, %v", n.name, topic.Counts.Lost, err)
		}
	}
	e.closeAll()
	e.begin()
	e.check()
	came, err := rig.Requeued(e.next().Admin().Requeue(t.Context(), "x", Requeue{IDs: e.dead}))
	if err != nil || came != len(e.dead) {
		t.Errorf("requeued %d, %v", came, err)
	}
	e.wantDelivered("x", e.dead...)
	for _, id := range e.dead {
		got, err := e.next().Get(t.Context(), id)
		if err != nil || got.Outcome != OutcomeDelivered || string(got.Payload) != `"`+id+`"` {
			t.Errorf("Get of %s = %+v, %v", id, got, err)
		}
	}
	followed := map[string]bool{}
	for len(followed) < len(e.dead) {
		ds, err := e.next().Reserve(t.Context(), "mourners", 10, 10*time.Second, 0)
		if err != nil || len(ds) == 0 {
			t.Fatalf("only %v are followed: %v", followed, err)
		}
		for _, d := range ds {
			followed[d.Headers["lapse-dead-id"]] = true
			e.settle(Ack, d)
		}
	}
	if got := slices.Sorted(maps.Keys(followed)); !slices.Equal(got, e.dead) {
		t.Errorf("followed are %v", got)
	}
}

// Redis loses everything. The nodes end in order as soon as they have noticed: what has ended is
// written again before.
func TestEmptyRedisLosesNothingThatHasEnded(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		e := g.prepareEndings()
		e.end()
		server.Do("flushall")
		e.waitFor("the loss is noticed", func(n *redisNode) bool { return n.Stats().Rewinds == 4 })
		e.closeAll()
		e.begin()
		e.checkAfter()
	})
}

// The ledger has lost the dead, and refuses what their restoration asks it. The lists wait, instead
// of telling a part as all, and the restoration goes on when it can.
func TestRestorationGoesOnAfterRefusals(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		e := g.prepareEndings()
		e.end()
		e.loseDead(server, false, append(slices.Collect(maps.Keys(e.finished)), e.dead...)...)
		server.Do("acl", "setuser", "default", "-hexists")
		for _, n := range e.nodes {
			for shard := range 4 { // the first of each are its own
				rig.Engine(n.Scheduler).Rewound(rig.Engine(n.Scheduler).Ledger.(recovery.Rewinder), shard)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		for _, n := range e.nodes {
			if page, err := n.Admin().DeadTasks(ctx, "x", 0, ""); err == nil {
				t.Errorf("%s lists %d of %d dead tasks", n.name, len(page.Tasks), len(e.dead))
			}
			if !slices.ContainsFunc(n.Readiness().Waiting, func(w Waiting) bool { return strings.HasPrefix(w.What, "restoration of shard ") }) {
				t.Errorf("%s does not say what it waits for: %+v", n.name, n.Readiness().Waiting)
			}
		}
		server.Do("acl", "setuser", "default", "+hexists")
		e.check()
	})
}

// A failover forgets that tasks were accepted, and all that became of them.
func TestFailoverLosesNothingThatHasEnded(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		servers := redistest.StartSentinel(t)
		g := newRedisFleet(t, servers.URL(), names...)
		e := g.prepareEndings()
		servers.Master.Do("wait", 1, 5000)
		servers.ShutReplicaOut()
		for _, n := range e.nodes {
			for shard := range 4 {
				// each is to lose a write
				n.schedule("y", rig.Engine(n.Scheduler).Fleet.ShardID(shard).NewID())
			}
		}
		e.end()
		servers.FailOver()
		e.waitFor("everything is made good", func(n *redisNode) bool { return n.Stats().Rewinds == 4 && !rig.Engine(n.Scheduler).Restoring() })
		e.checkAfter()
	})
}

// A caller who names a task that has ended and that Redis has lost, before any node has noticed,
// hears what has become of it.
func TestLostEndingsAreWrittenForCallers(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		e := g.prepareEndings()
		e.end()
		ids := append(slices.Collect(maps.Keys(e.finished)), e.dead...)
		for _, index := range []bool{true, false} {
			e.loseDead(server, index, ids...)
			for i, id := range ids {
				n := e.next()
				switch _, dead := e.finished[id]; {
				case i%2 == 0:
					n.wantGet(id, nil)
				case !dead:
					_, err := n.Schedule(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour})
					rig.Want(t, "Schedule "+id, err, ErrDead)
				default:
					results, err := n.ScheduleBatch(t.Context(), []Request{{ID: id, Topic: "x", Delay: time.Hour, Payload: []byte(`"` + id + `"`)}})
					if err != nil || results[0].Err != nil || !results[0].Repeated {
						t.Errorf("ScheduleBatch of %s = %+v, %v", id, results, err)
					}
				}
			}
			g.nodes[0].waitFor("the index has each once", func() bool { return g.indexed(server) == len(ids) })
			e.check()
		}
	})
}

// Memory keeps records of so many bytes. What it has lost of older ones is told: finished tasks are
// known, without their payloads, and dead ones are counted by topic.
func TestLostEndingsBeyondMemory(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.keepFinished("x")
		for _, n := range g.nodes {
			rig.Mutex(rig.Engine(n.Scheduler)).Lock()
			// a block of 16 KiB of each kind
			rig.Engine(n.Scheduler).Dead.Burials = store.NewBurials(1)
			rig.Mutex(rig.Engine(n.Scheduler)).Unlock()
		}
		const count = 12
		request := func(topic string, i int) Request {
			payload := bytes.Repeat([]byte("p"), 3<<10)
			return Request{ID: fmt.Sprint(topic, "-", i), Topic: topic, Delay: time.Hour, Payload: payload}
		}
		for i := range count {
			_, err := g.nodes[0].Schedule(t.Context(), request("x", i))
			rig.Want(t, "Schedule", err, nil)
			rig.Want(t, "Cancel", g.next().Cancel(t.Context(), fmt.Sprint("x-", i)), nil)
			_, err = g.nodes[0].Schedule(t.Context(), Request{ID: fmt.Sprint("y-", i), Topic: "y", Payload: request("y", i).Payload})
			rig.Want(t, "Schedule", err, nil)
			ds, err := g.next().Reserve(t.Context(), "y", 1, 10*time.Second, 0)
			if err != nil || len(ds) != 1 {
				t.Fatalf("reserved %v, %v", ds, err)
			}
			g.settle(Bury, ds[0])
		}
		server.Do("flushall")
		g.waitFor("everything is made good", func(n *redisNode) bool { return n.Stats().Rewinds == 4 && !rig.Engine(n.Scheduler).Restoring() })
		g.settled()
		brief := 0
		for i := range count {
			got, err := g.next().Schedule(t.Context(), request("x", i))
			if err != nil || !got.Repeated || got.Outcome != OutcomeCancelled {
				t.Errorf("Schedule of %d = %+v, %v", i, got, err)
			}
			if len(got.Payload) == 0 && got.LastError != "" {
				brief++
			}
			other := request("x", i)
			other.Payload = nil
			_, err = g.next().Schedule(t.Context(), other)
			rig.Want(t, "Schedule of another", err, ErrExists)
		}
		dead, lost := 0, int64(0)
		for i := range count {
			_, err := g.next().Get(t.Context(), fmt.Sprint("y-", i))
			if err == nil {
				dead++
			} else if !errors.Is(err, ErrNotFound) {
				t.Errorf("Get of y-%d: %v", i, err)
			}
		}
		for _, n := range g.nodes {
			topic, err := n.Topic("y")
			rig.Want(t, "Topic", err, nil)
			lost += topic.Counts.Lost
		}
		if brief == 0 || brief == count || dead == 0 || lost == 0 || dead+int(lost) != count {
			t.Errorf("%d are brief, %d are dead, %d are lost", brief, dead, lost)
		}
	})
}
