package cluster_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// missSpool has a node spool a task, crash, and start with another spool, or without one.
func missSpool(b *rig.Node, other recovery.Ledger) (task Task, own recovery.Ledger) {
	b.T.Helper()
	own = b.Cfg.Spool
	task = spoolOne(b)
	b.Crash()
	b.Cfg.Spool = other
	b.Restart()
	rig.Pass(5 * time.Second)
	return task, own
}

// A node that starts while Redis does not answer waits until it does, also with the name of its
// spool.
func TestSpoolIsNamedOnceRedisAnswers(t *testing.T) {
	spooling(t, func(t *testing.T, f *rig.Fleet, a, b *rig.Node) {
		task, own := missSpool(b, memledger.New())
		b.Stop()
		b.Cfg.Spool = own
		away := errors.New("i/o timeout")
		f.Before = func(m *rig.FaultyMember) { m.Fail("OpenSpool", away, away, away) }
		b.Restart()
		rig.Pass(10 * time.Second)
		for _, n := range []*rig.Node{a, b} {
			_, err := n.Get(t.Context(), task.ID)
			rig.Want(t, "Get, with the spool", err, nil)
		}
	})
}

// A node was started without the spool that has a task: no node says that the task does not exist,
// takes its id, or lists all tasks, until the node has its spool again, or that is given up.
func TestMissingSpool(t *testing.T) {
	for name, other := range map[string]recovery.Ledger{"another spool": memledger.New(), "no spool": nil} {
		t.Run(name, func(t *testing.T) {
			spooling(t, func(t *testing.T, _ *rig.Fleet, a, b *rig.Node) {
				task, own := missSpool(b, other)
				for _, n := range []*rig.Node{a, b} {
					_, err := n.Get(t.Context(), task.ID)
					rig.Want(t, "Get", err, ErrNodeAway)
					rig.Want(t, "Cancel", n.Cancel(t.Context(), task.ID), ErrNodeAway)
					_, err = n.Schedule(t.Context(), Request{ID: task.ID, Topic: "x", Delay: time.Hour})
					rig.Want(t, "Schedule", err, ErrNodeAway)
					results, err := n.ScheduleBatch(t.Context(), []Request{{ID: task.ID, Topic: "x", Delay: time.Hour}})
					rig.Want(t, "ScheduleBatch", err, nil)
					rig.Want(t, "ScheduleBatch", results[0].Err, ErrNodeAway)
					_, err = n.List(t.Context(), Query{})
					rig.Want(t, "List", err, ErrNodeAway)
					_, err = n.Get(t.Context(), "chosen")
					rig.Want(t, "Get of a chosen id", err, ErrNotFound)
					_, err = n.Get(t.Context(), a.ShardID(0).NewID())
					rig.Want(t, "Get of an id of another node", err, ErrNotFound)
				}
				if st := b.Stats().Spool; st.Missing != 1 || a.Stats().Spool.Missing != 0 {
					t.Errorf("spool: %+v", st)
				}
				b.Stop() // in order, so that the other spool is known to be empty
				b.Cfg.Spool = own
				b.Restart()
				rig.Pass(5 * time.Second)
				for _, n := range []*rig.Node{a, b} {
					_, err := n.Get(t.Context(), task.ID)
					rig.Want(t, "Get, with the spool", err, nil)
				}
			})
		})
	}
}

// A node whose spool is missing says so to a node that takes it for one that can be asked.
func TestMissingSpoolIsTold(t *testing.T) {
	spooling(t, func(t *testing.T, _ *rig.Fleet, a, b *rig.Node) {
		task, _ := missSpool(b, memledger.New())
		asked := cluster.HasQuery{IDs: []string{task.ID}}
		_, err := cluster.Call(t.Context(), a.Cluster(), "b", cluster.HasMethod, asked)
		rig.Want(t, "has", err, ErrNodeAway)
		asked.IDs = []string{"chosen", a.ShardID(0).NewID()}
		has, err := cluster.Call(t.Context(), a.Cluster(), "b", cluster.HasMethod, asked)
		if err != nil || len(has.Has) != 2 || has.Has[0] || has.Has[1] {
			t.Errorf("has: %+v, %v", has, err)
		}
	})
}

// What is given up counts as not found, from any node.
func TestGiveUpSpools(t *testing.T) {
	spooling(t, func(t *testing.T, _ *rig.Fleet, a, b *rig.Node) {
		task, _ := missSpool(b, memledger.New())
		rig.Want(t, "GiveUpSpools", a.Admin().GiveUpSpools(t.Context(), "b"), nil)
		rig.Want(t, "GiveUpSpools, again", a.Admin().GiveUpSpools(t.Context(), "b"), nil)
		rig.Want(t, "GiveUpSpools of no node", a.Admin().GiveUpSpools(t.Context(), "no"), ErrNoNode)
		for _, n := range []*rig.Node{a, b} {
			_, err := n.Get(t.Context(), task.ID)
			rig.Want(t, "Get", err, ErrNotFound)
			_, err = n.List(t.Context(), Query{})
			rig.Want(t, "List", err, nil)
		}
	})
}

// The same holds at a node without others, also if nothing is known to be in the spool.
func TestMissingSpoolOfALoneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := rig.NewFleet(t, 0)
		a := f.Join("a", rig.FleetShards, Config{Spool: memledger.New()})
		id, own := a.ShardID(0).NewID(), a.Cfg.Spool
		a.Crash()
		a.Cfg.Spool = memledger.New()
		a.Restart()
		rig.Pass(time.Second)
		_, err := a.Get(t.Context(), id)
		rig.Want(t, "Get", err, ErrNodeAway)
		rig.Want(t, "Cancel", a.Cancel(t.Context(), id), ErrNodeAway)
		_, err = a.Schedule(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour})
		rig.Want(t, "Schedule", err, ErrNodeAway)
		_, err = a.List(t.Context(), Query{})
		rig.Want(t, "List", err, ErrNodeAway)
		_, err = a.Get(t.Context(), "chosen")
		rig.Want(t, "Get of a chosen id", err, ErrNotFound)
		a.Stop()
		a.Cfg.Spool = own
		a.Restart()
		rig.Pass(time.Second)
		_, err = a.Get(t.Context(), id)
		rig.Want(t, "Get, with the spool", err, ErrNotFound)
	})
}
