package tasks_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// missSpool has a node spool a task, crash, and start with another spool, or without one.
func missSpool(b *node, other recovery.Ledger) (task Task, own recovery.Ledger) {
	b.t.Helper()
	own = b.cfg.Spool
	task = b.spoolOne()
	b.crash()
	b.cfg.Spool = other
	b.restart()
	pass(5 * time.Second)
	return task, own
}

// A node that starts while Redis does not answer waits until it does, also with the name of its
// spool.
func TestSpoolIsNamedOnceRedisAnswers(t *testing.T) {
	spooling(t, func(t *testing.T, f *fleet, a, b *node) {
		task, own := missSpool(b, memledger.New())
		b.stop()
		b.cfg.Spool = own
		away := errors.New("i/o timeout")
		f.before = func(m *faultyMember) { m.fail("OpenSpool", away, away, away) }
		b.restart()
		pass(10 * time.Second)
		for _, n := range []*node{a, b} {
			_, err := n.Get(t.Context(), task.ID)
			want(t, "Get, with the spool", err, nil)
		}
	})
}

// A node was started without the spool that has a task: no node says that the task does not exist,
// takes its id, or lists all tasks, until the node has its spool again, or that is given up.
func TestMissingSpool(t *testing.T) {
	for name, other := range map[string]recovery.Ledger{"another spool": memledger.New(), "no spool": nil} {
		t.Run(name, func(t *testing.T) {
			spooling(t, func(t *testing.T, _ *fleet, a, b *node) {
				task, own := missSpool(b, other)
				for _, n := range []*node{a, b} {
					_, err := n.Get(t.Context(), task.ID)
					want(t, "Get", err, ErrNodeAway)
					want(t, "Cancel", n.Cancel(t.Context(), task.ID), ErrNodeAway)
					_, err = n.Schedule(t.Context(), Request{ID: task.ID, Topic: "x", Delay: time.Hour})
					want(t, "Schedule", err, ErrNodeAway)
					results, err := n.ScheduleBatch(t.Context(), []Request{{ID: task.ID, Topic: "x", Delay: time.Hour}})
					want(t, "ScheduleBatch", err, nil)
					want(t, "ScheduleBatch", results[0].Err, ErrNodeAway)
					_, err = n.List(t.Context(), Query{})
					want(t, "List", err, ErrNodeAway)
					_, err = n.Get(t.Context(), "chosen")
					want(t, "Get of a chosen id", err, ErrNotFound)
					_, err = n.Get(t.Context(), a.shardID(0).NewID())
					want(t, "Get of an id of another node", err, ErrNotFound)
				}
				if st := b.Stats().Spool; st.Missing != 1 || a.Stats().Spool.Missing != 0 {
					t.Errorf("spool: %+v", st)
				}
				b.stop() // in order, so that the other spool is known to be empty
				b.cfg.Spool = own
				b.restart()
				pass(5 * time.Second)
				for _, n := range []*node{a, b} {
					_, err := n.Get(t.Context(), task.ID)
					want(t, "Get, with the spool", err, nil)
				}
			})
		})
	}
}

// A node whose spool is missing says so to a node that takes it for one that can be asked.
func TestMissingSpoolIsTold(t *testing.T) {
	spooling(t, func(t *testing.T, _ *fleet, a, b *node) {
		task, _ := missSpool(b, memledger.New())
		asked := cluster.HasQuery{IDs: []string{task.ID}}
		_, err := cluster.Call(t.Context(), a.Cluster(), "b", cluster.HasMethod, asked)
		want(t, "has", err, ErrNodeAway)
		asked.IDs = []string{"chosen", a.shardID(0).NewID()}
		has, err := cluster.Call(t.Context(), a.Cluster(), "b", cluster.HasMethod, asked)
		if err != nil || len(has.Has) != 2 || has.Has[0] || has.Has[1] {
			t.Errorf("has: %+v, %v", has, err)
		}
	})
}

// What is given up counts as not found, from any node.
func TestGiveUpSpools(t *testing.T) {
	spooling(t, func(t *testing.T, _ *fleet, a, b *node) {
		task, _ := missSpool(b, memledger.New())
		want(t, "GiveUpSpools", a.GiveUpSpools(t.Context(), "b"), nil)
		want(t, "GiveUpSpools, again", a.GiveUpSpools(t.Context(), "b"), nil)
		want(t, "GiveUpSpools of no node", a.GiveUpSpools(t.Context(), "no"), ErrNoNode)
		for _, n := range []*node{a, b} {
			_, err := n.Get(t.Context(), task.ID)
			want(t, "Get", err, ErrNotFound)
			_, err = n.List(t.Context(), Query{})
			want(t, "List", err, nil)
		}
	})
}

// The same holds at a node without others, also if nothing is known to be in the spool.
func TestMissingSpoolOfALoneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 0)
		a := f.join("a", fleetShards, Config{Spool: memledger.New()})
		id, own := a.shardID(0).NewID(), a.cfg.Spool
		a.crash()
		a.cfg.Spool = memledger.New()
		a.restart()
		pass(time.Second)
		_, err := a.Get(t.Context(), id)
		want(t, "Get", err, ErrNodeAway)
		want(t, "Cancel", a.Cancel(t.Context(), id), ErrNodeAway)
		_, err = a.Schedule(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour})
		want(t, "Schedule", err, ErrNodeAway)
		_, err = a.List(t.Context(), Query{})
		want(t, "List", err, ErrNodeAway)
		_, err = a.Get(t.Context(), "chosen")
		want(t, "Get of a chosen id", err, ErrNotFound)
		a.stop()
		a.cfg.Spool = own
		a.restart()
		pass(time.Second)
		_, err = a.Get(t.Context(), id)
		want(t, "Get, with the spool", err, ErrNotFound)
	})
}
