package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// Tests of a Redis that has lost dead tasks. Those whose records memory has are dead again, others
// are forgotten: their ids are free, at once for a caller who names one, and memory counts what the
// ledger has. Each runs for one node and for two.

// bury schedules tasks of topic x and buries them.
func (g *redisFleet) bury(ids ...string) {
	g.t.Helper()
	g.schedule("x", ids...)
	for _, id := range ids {
		g.settle(Bury, g.pull(id))
	}
}

// loseDead deletes dead tasks in Redis, past the ledger; with index as well from its index.
func (g *redisFleet) loseDead(server redisServer, index bool, ids ...string) {
	g.t.Helper()
	for _, n := range g.nodes {
		for shard := range 4 {
			key := fmt.Sprintf("lapse:{%s/%d}:dead", n.name, shard)
			for _, id := range ids {
				if server.Do("hdel", key, id) != int64(1) || !index {
					continue
				}
				for _, member := range server.Do("zrange", key+"index", 0, -1).([]any) {
					if strings.HasSuffix(member.(string), id) {
						server.Do("zrem", key+"index", member)
					}
				}
			}
		}
	}
}

// forgetRecords has the memory of all nodes forget the records of the dead. Before a loss: a node
// that still has a record and notices the loss in time makes it good.
func (g *redisFleet) forgetRecords() {
	for _, n := range g.nodes {
		rig.Mutex(rig.Engine(n.Scheduler)).Lock()
		rig.Engine(n.Scheduler).Dead.Burials = store.NewBurials(1 << 20)
		rig.Mutex(rig.Engine(n.Scheduler)).Unlock()
	}
}

// indexed is how many members the indexes of the dead in Redis have.
func (g *redisFleet) indexed(server redisServer) (count int) {
	for _, n := range g.nodes {
		for shard := range 4 {
			count += int(server.Do("zcard", fmt.Sprintf("lapse:{%s/%d}:deadindex", n.name, shard)).(int64))
		}
	}
	return count
}

// dead is how many tasks are dead, as all nodes count them.
func (g *redisFleet) dead() (count int) {
	for _, n := range g.nodes {
		count += int(n.Stats().Total.Dead)
	}
	return count
}

// wantDead waits until just so many tasks are dead, in memory and in the ledger's index.
func (g *redisFleet) wantDead(server redisServer, count int) {
	g.t.Helper()
	g.nodes[0].waitFor(fmt.Sprint(count, " tasks are counted as dead"), func() bool { return g.dead() == count })
	g.nodes[0].waitFor(fmt.Sprint(count, " tasks are in the index"), func() bool { return g.indexed(server) == count })
}

// A caller who names a dead task that Redis has lost, and of which memory has no record, hears that
// there is none, and may create one.
func TestLostDeadTask(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.bury("kept")
		create := func(id string) error {
			_, err := g.next().Schedule(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour})
			return err
		}
		for id, act := range map[string]func(id string) error{
			"created": create,
			"got": func(id string) error {
				_, err := g.next().Get(t.Context(), id)
				rig.Want(t, "Get", err, ErrNotFound)
				return create(id)
			},
			"cancelled": func(id string) error {
				rig.Want(t, "Cancel", g.next().Cancel(t.Context(), id), ErrNotFound)
				return create(id)
			},
			"moved": func(id string) error {
				_, err := g.next().Reschedule(t.Context(), id, Move{Delay: rig.Ptr(time.Hour)})
				rig.Want(t, "Reschedule", err, ErrNotFound)
				return create(id)
			},
			"requeued": func(id string) error {
				r, err := g.next().Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{id}})
				rig.Want(t, "Requeue", err, nil)
				if r.Requeued != 0 || !slices.Equal(r.Unknown, []string{id}) {
					t.Errorf("Requeue = %+v", r)
				}
				return create(id)
			},
			"deleted": func(id string) error {
				_, err := g.next().Admin().DeleteDead(t.Context(), "x", []string{id})
				rig.Want(t, "DeleteDead", err, nil)
				return create(id)
			},
			"replaced": func(id string) error {
				task, err := g.next().Replace(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour})
				if task.Repeated {
					t.Error("there was nothing to replace")
				}
				return err
			},
			"superseded": func(id string) error {
				task, err := g.next().Replace(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour, Supersede: true})
				if task.Repeated {
					t.Error("there was nothing to supersede")
				}
				return err
			},
			"superseded-in-a-batch": func(id string) error {
				results, err := g.next().ReplaceBatch(t.Context(), []Request{
					{ID: id, Topic: "x", Delay: time.Hour, Supersede: true}, {ID: "kept", Topic: "x", Delay: time.Hour},
				})
				rig.Want(t, "ReplaceBatch", err, nil)
				rig.Want(t, "of what is dead", results[1].Err, ErrDead)
				return results[0].Err
			},
			"batched": func(id string) error {
				results, err := g.next().ScheduleBatch(t.Context(), []Request{
					{ID: id, Topic: "x", Delay: time.Hour}, {ID: "kept", Topic: "x", Delay: time.Hour},
				})
				rig.Want(t, "ScheduleBatch", err, nil)
				rig.Want(t, "of what is dead", results[1].Err, ErrDead)
				return results[0].Err
			},
		} {
			for _, index := range []bool{true, false} {
				name := fmt.Sprint(id, "-", index)
				g.bury(name)
				g.forgetRecords()
				g.loseDead(server, index, name)
				rig.Want(t, name, act(name), nil)
				for _, n := range g.nodes {
					task, err := n.Get(t.Context(), name)
					if err != nil || task.State != Pending {
						t.Errorf("%s at %s is %v, %v", name, n.name, task.State, err)
					}
				}
			}
		}
		rig.Want(t, "creating what is dead", create("kept"), ErrDead)
		g.wantDead(server, 1)
	})
}

// After a call about all dead tasks of a topic, memory counts what the ledger has.
func TestLostDeadTasksOfATopic(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		var ids []string
		for i := range 10 {
			ids = append(ids, fmt.Sprint("lost-", i))
		}
		for what, act := range map[string]func() (int, error){
			"DeleteDead": func() (int, error) { return g.next().Admin().DeleteDead(t.Context(), "x", nil) },
			"Requeue": func() (int, error) {
				return rig.Requeued(g.next().Admin().Requeue(t.Context(), "x", Requeue{Delay: time.Hour}))
			},
		} {
			for _, index := range []bool{true, false} {
				kept := fmt.Sprint("kept-", what, "-", index)
				g.bury(append(ids, kept)...)
				g.forgetRecords()
				g.loseDead(server, index, ids...)
				done, err := act()
				if err != nil || done != 1 {
					t.Errorf("%s = %d, %v", what, done, err)
				}
				g.wantDead(server, 0)
				g.schedule("x", ids...)
				for _, id := range ids {
					g.cancel(id)
				}
			}
		}
		g.bury(append(ids, "kept")...)
		g.forgetRecords()
		g.loseDead(server, true, ids...)
		page, err := g.next().Admin().DeadTasks(t.Context(), "x", 0, "")
		if err != nil || len(page.Tasks) != 1 {
			t.Errorf("DeadTasks = %+v, %v", page, err)
		}
		g.wantDead(server, 1)
	})
}

// Redis is put back to an older file. Who died before stays dead, and so does who died since; who
// died and was deleted or requeued does not come back, nor does one whose acknowledgement is still
// being recorded. One that was requeued and has died again is as it was then.
func TestOlderFileOfTheDead(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t, "dbfilename dump.rdb")
		g := newRedisFleet(t, server.URL(), names...)
		g.bury("deleted", "came-back", "kept", "finished", "twice")
		g.schedule("x", "buried")
		server.Do("save")
		dump := filepath.Join(server.Dir, "dump.rdb")
		older, err := os.ReadFile(dump)
		rig.Want(t, "ReadFile", err, nil)
		g.cancel("deleted")
		came, err := rig.Requeued(g.next().Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"came-back"}, Delay: time.Hour}))
		if err != nil || came != 1 {
			t.Fatalf("requeued %d, %v", came, err)
		}
		g.settle(Bury, g.pull("buried"))
		came, err = rig.Requeued(g.next().Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"twice"}, Delay: time.Hour}))
		if err != nil || came != 1 {
			t.Fatalf("requeued %d, %v", came, err)
		}
		_, err = g.next().Reschedule(t.Context(), "twice", Move{Delay: rig.Ptr(time.Hour), Payload: []byte(`"again"`)})
		rig.Want(t, "Reschedule", err, nil)
		g.settle(Bury, g.pull("twice"))
		g.bury("lost-1", "lost-2", "lost-3")
		for i := range 40 { // so that every shard loses something
			g.schedule("y", fmt.Sprint("new-", i))
		}
		wanted := g.nodes[0].all()
		delete(wanted, "dead finished")
		came, err = rig.Requeued(g.next().Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"finished"}}))
		if err != nil || came != 1 {
			t.Fatalf("requeued %d, %v", came, err)
		}
		finished := g.pull("finished")

		server.Kill()
		for _, n := range g.nodes { // one of them has it, and writes that for as long as it takes
			if _, err := n.Settle(t.Context(), Verdict{Verb: Ack}, []string{finished.Receipt()}); err != nil {
				t.Fatal("Settle:", err)
			}
		}
		rig.Want(t, "WriteFile", os.WriteFile(dump, older, 0o600), nil)
		server.Start()
		g.waitFor("the loss is noticed", func(n *redisNode) bool { return n.Stats().Rewinds == 4 })
		g.wantDead(server, 6)
		g.wantEqual(server, 4, wanted)
		g.wantGone("deleted")
		g.wantGone("finished")
		g.schedule("x", "deleted")
	})
}

// Redis has an older, pending record of a dead task, and no node has noticed yet: it is dead
// again as soon as a caller names it, and not taken for gone.
func TestLostBurial(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.schedule("x", "t")
		key := g.keyOf(server, "t")
		record := server.Do("hget", key+"tasks", "t")
		g.settle(Bury, g.pull("t"))
		g.loseDead(server, true, "t")
		server.Do("hset", key+"tasks", "t", record)
		server.Do("sadd", key+"pending", "t")
		_, err := g.next().Get(t.Context(), "t")
		rig.Want(t, "Get", err, nil)
		g.waitFor("it is dead again", func(n *redisNode) bool {
			task, err := n.Get(t.Context(), "t")
			return err == nil && task.State == Dead
		})
		g.wantDead(server, 1)
	})
}

// Two comparisons that find the same lost burial bury the task once: the index in Redis would
// have it twice.
func TestLostBurialIsWrittenOnce(t *testing.T) {
	server := redistest.Start(t)
	late := &lateAnswers{}
	n := &redisNode{t: t, url: server.URL(), name: "a", wrap: func(l *redisledger.Ledger) recovery.Ledger {
		late.Ledger = l
		return late
	}}
	n.open()
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	g := &redisFleet{t: t, nodes: []*redisNode{n}}
	g.schedule("x", "t")
	key := g.keyOf(server, "t")
	record := server.Do("hget", key+"tasks", "t")
	g.settle(Bury, g.pull("t"))
	g.loseDead(server, true, "t")
	server.Do("hset", key+"tasks", "t", record)
	server.Do("sadd", key+"pending", "t")

	shard := int(key[strings.Index(key, "/")+1] - '0')
	rig.Mutex(rig.Engine(n.Scheduler)).Lock()
	h := rig.Engine(n.Scheduler).Shards.List[shard]
	rig.Mutex(rig.Engine(n.Scheduler)).Unlock()
	again := func() int {
		begun, err := (&engine.Restoration{Engine: rig.Engine(n.Scheduler), Shard: shard, Term: h}).BuryAgain([]recovery.Ref{{ID: "t"}})
		rig.Want(t, "buryAgain", err, nil)
		return begun
	}
	second := 0
	late.before.Store(func() {
		late.before.Store(func() {})
		if second = again(); second > 0 {
			n.waitFor("the task is in the index", func() bool { return g.indexed(server) == 1 && g.dead() == 1 })
		}
	})
	if begun := again() + second; begun != 1 {
		t.Errorf("%d burials were begun", begun)
	}
	g.wantDead(server, 1)
}

// lateAnswers are those of a ledger that calls before when it has read records, and answers then.
type lateAnswers struct {
	*redisledger.Ledger
	before atomic.Value // func()
}

func (l *lateAnswers) Get(ctx context.Context, shard int, refs []recovery.Ref, found func(int, recovery.Entry)) error {
	read := make(map[int]recovery.Entry)
	err := l.Ledger.Get(ctx, shard, refs, func(i int, e recovery.Entry) {
		e.ID, e.Data = bytes.Clone(e.ID), bytes.Clone(e.Data)
		read[i] = e
	})
	if before, ok := l.before.Load().(func()); ok {
		before()
	}
	for i, e := range read {
		found(i, e)
	}
	return err
}

// keyOf is what the keys of the shard begin with that has the pending record of an id.
func (g *redisFleet) keyOf(server redisServer, id string) string {
	g.t.Helper()
	for _, n := range g.nodes {
		for shard := range 4 {
			if key := fmt.Sprintf("lapse:{%s/%d}:", n.name, shard); server.Do("hexists", key+"tasks", id) == int64(1) {
				return key
			}
		}
	}
	g.t.Fatalf("no shard has a record of %s", id)
	return ""
}

// A record that cannot be read keeps its id taken for as long as it is there.
func TestLostIllegibleRecord(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		ids := []string{"created", "got", "batched", "left"}
		g.nodes[0].schedule("x", ids...)
		g.closeAll()
		keys := map[string]string{}
		for _, id := range ids {
			keys[id] = g.keyOf(server, id)
			server.Do("hset", keys[id]+"tasks", id, "\xffnonsense")
		}
		g.begin()
		for _, id := range ids {
			for _, n := range g.nodes {
				_, err := n.Schedule(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour})
				rig.Want(t, "Schedule "+id+" at "+n.name, err, ErrUnavailable)
			}
		}
		for _, id := range ids[:3] {
			server.Do("hdel", keys[id]+"tasks", id)
			server.Do("srem", keys[id]+"pending", id)
		}
		_, err := g.next().Get(t.Context(), "got")
		rig.Want(t, "Get", err, ErrNotFound)
		g.schedule("x", "created", "got")
		results, err := g.next().ScheduleBatch(t.Context(), []Request{
			{ID: "batched", Topic: "x", Delay: time.Hour}, {ID: "left", Topic: "x", Delay: time.Hour},
		})
		rig.Want(t, "ScheduleBatch", err, nil)
		rig.Want(t, "of what is gone", results[0].Err, nil)
		rig.Want(t, "of what is there", results[1].Err, ErrUnavailable)
		if unknown := g.nodes[0].Stats().UnknownRecords; unknown != 1 {
			t.Errorf("%d records cannot be read, want 1", unknown)
		}
	})
}
