package tasks_test

import (
	"context"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
)

// A follow-up stays in the shard of the dead task, adopted ones and those that are handed over too.
func TestOnDeadInAFleet(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		a, b := f.join("a", 2, tasks.Config{}), f.join("b", 1, tasks.Config{})
		for _, n := range f.nodes {
			_, err := n.SetTopic(ctx, "x", mourned("mourners"), -1)
			want(t, "SetTopic", err, nil)
		}
		die := func(n *node, id string) tasks.Task {
			t.Helper()
			before := len(b.pages(tasks.Query{Topic: "mourners"}))
			d := n.pull("x", id)[0]
			n.settle(tasks.Bury, d)
			pass(time.Second)
			page, err := b.List(ctx, tasks.Query{Topic: "mourners", Limit: 1000})
			if want(t, "List", err, nil); len(page.Tasks) != before+1 {
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
		one := a.create(tasks.Request{ID: a.idAt(0), Topic: "x"})
		next := die(b, one) // by a receiver at the other node
		if next.Node != "a" {
			t.Errorf("it is at %s", next.Node)
		}
		chosen := a.create(tasks.Request{ID: "order-42", Topic: "x"})
		die(a, chosen)
		two := a.create(tasks.Request{ID: a.idAt(1), Topic: "x"})
		b.keeps.Store(true)
		want(t, "hand-over", a.handTo(b), nil)
		pass(time.Second)
		if got := b.get(next.ID); got.Node != "b" {
			t.Errorf("handed over, it is at %s", got.Node)
		}
		a.crash()
		b.adopt(a)
		next = die(b, two)
		if next.Node != "b" {
			t.Errorf("of an adopted shard, it is at %s", next.Node)
		}
		b.check()
	})
}

// A node that has lost a shard while a task died makes no follow-up: the next owner delivers the
// task again.
func TestOnDeadOfALostShard(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		a, b := f.join("a", 1, tasks.Config{}), f.join("b", 1, tasks.Config{})
		for _, n := range f.nodes {
			_, err := n.SetTopic(ctx, "x", mourned("mourners"), -1)
			want(t, "SetTopic", err, nil)
		}
		id := a.create(tasks.Request{ID: a.idAt(0), Topic: "x"})
		d := a.pullOwn("x", id)[0]
		a.member.hold("Apply")
		go func() { _, _ = a.Settle(context.Background(), tasks.Verdict{Verb: tasks.Bury}, []string{d.Receipt()}) }()
		pass(time.Second)
		b.adopt(a)
		a.member.heal()
		pass(time.Minute)
		if list := b.pages(tasks.Query{Topic: "mourners"}); len(list) != 0 {
			t.Errorf("followed by %q", list)
		}
		b.settle(tasks.Bury, b.pull("x", id)[0])
		pass(time.Second)
		if list := b.pages(tasks.Query{Topic: "mourners"}); len(list) != 1 {
			t.Errorf("followed by %q", list)
		}
		b.check()
		a.check()
	})
}
