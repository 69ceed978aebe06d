package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A follow-up stays in the shard of the dead task, adopted ones and those that are handed over too.
func TestOnDeadInAFleet(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Join("a", 2, tasks.Config{}), f.Join("b", 1, tasks.Config{})
		for _, n := range f.Nodes {
			_, err := n.SetTopic(ctx, "x", mourned("mourners"), -1)
			rig.Want(t, "SetTopic", err, nil)
		}
		die := func(n *rig.Node, id string) tasks.Task {
			t.Helper()
			before := len(b.Pages(tasks.Query{Topic: "mourners"}))
			d := n.Pull("x", id)[0]
			n.SettleOne(tasks.Bury, d)
			rig.Pass(time.Second)
			page, err := b.List(ctx, tasks.Query{Topic: "mourners", Limit: 1000})
			if rig.Want(t, "List", err, nil); len(page.Tasks) != before+1 {
				t.Fatalf("there are %d follow-ups after %d", len(page.Tasks), before)
			}
			for _, next := range page.Tasks {
				if next.Headers["lapse-dead-id"] == id {
					if f, of := recovery.ShardIDOf(next.ID); !of || f == 0 {
						t.Errorf("the id %s names no shard", next.ID)
					}
					return next
				}
			}
			t.Fatalf("%s is not followed", id)
			return tasks.Task{}
		}
		one := a.Create(tasks.Request{ID: a.IDAt(0), Topic: "x"})
		next := die(b, one) // by a receiver at the other node
		if next.Node != "a" {
			t.Errorf("it is at %s", next.Node)
		}
		chosen := a.Create(tasks.Request{ID: "order-42", Topic: "x"})
		die(a, chosen)
		two := a.Create(tasks.Request{ID: a.IDAt(1), Topic: "x"})
		b.Keeps.Store(true)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(time.Second)
		if got := b.MustGet(next.ID); got.Node != "b" {
			t.Errorf("handed over, it is at %s", got.Node)
		}
		a.Crash()
		b.Adopt(a)
		next = die(b, two)
		if next.Node != "b" {
			t.Errorf("of an adopted shard, it is at %s", next.Node)
		}
		b.Check()
	})
}

// A node that has lost a shard while a task died makes no follow-up: the next owner delivers the
// task again.
func TestOnDeadOfALostShard(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Join("a", 1, tasks.Config{}), f.Join("b", 1, tasks.Config{})
		for _, n := range f.Nodes {
			_, err := n.SetTopic(ctx, "x", mourned("mourners"), -1)
			rig.Want(t, "SetTopic", err, nil)
		}
		id := a.Create(tasks.Request{ID: a.IDAt(0), Topic: "x"})
		d := a.PullOwn("x", id)[0]
		a.Member.Hold("Apply")
		go func() { _, _ = a.Settle(context.Background(), tasks.Verdict{Verb: tasks.Bury}, []string{d.Receipt()}) }()
		rig.Pass(time.Second)
		b.Adopt(a)
		a.Member.Heal()
		rig.Pass(time.Minute)
		if list := b.Pages(tasks.Query{Topic: "mourners"}); len(list) != 0 {
			t.Errorf("followed by %q", list)
		}
		b.SettleOne(tasks.Bury, b.Pull("x", id)[0])
		rig.Pass(time.Second)
		if list := b.Pages(tasks.Query{Topic: "mourners"}); len(list) != 1 {
			t.Errorf("followed by %q", list)
		}
		b.Check()
		a.Check()
	})
}
