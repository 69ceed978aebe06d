package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// allow has a node deliver a topic by c, and lets its tasks choose.
func allow(n *rig.Node, topic string, c *rig.Courier) {
	n.T.Helper()
	rig.Want(n.T, "Deliver", n.Deliver(topic, &rig.Round{Courier: c, To: "rome"}), nil)
	_, err := n.SetTopic(n.T.Context(), topic, tasks.TopicSettings{TaskDelivery: true}, -1)
	rig.Want(n.T, "SetTopic", err, nil)
}

// A target goes with its task to whichever node has it: with calls of all kinds, in a batch, with
// its shard, and to the node that delivers it in a backlog.
func TestTargetAtAllNodes(t *testing.T) {
	t.Parallel()
	c := &rig.Courier{}
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Nodes[0], f.Nodes[1]
		allow(a, "x", c)
		allow(b, "x", c)
		var ids []string
		for i := range 4 {
			ids = append(ids, a.IDAt(i%2), b.IDAt(i%2))
		}
		batch := []tasks.Request{{ID: ids[2], Topic: "x", Delay: time.Hour, Target: rig.Own("oslo")}, {ID: ids[3], Topic: "x", Delay: time.Hour}}
		for _, n := range f.Nodes[:1] {
			got, err := n.Schedule(ctx, tasks.Request{ID: ids[0], Topic: "x", Delay: time.Hour, Target: rig.Own("oslo")})
			if rig.Want(t, "Schedule", err, nil); got.Target == nil || got.Target.Receiver != "city of oslo" {
				t.Errorf("scheduled: %+v", got.Target)
			}
			got, err = n.Schedule(ctx, tasks.Request{ID: ids[1], Topic: "x", Delay: time.Hour, Target: rig.Own("oslo")})
			if rig.Want(t, "Schedule", err, nil); got.Target == nil || got.Target.Receiver != "city of oslo" {
				t.Errorf("scheduled at the other node: %+v", got.Target)
			}
			results, err := n.ScheduleBatch(ctx, append(slices.Clone(batch), tasks.Request{ID: ids[4], Topic: "x", Target: rig.Own("nowhere")}))
			rig.Want(t, "ScheduleBatch", err, nil)
			rig.Want(t, "a result", results[0].Err, nil)
			rig.Want(t, "a result", results[1].Err, nil)
			wantFaults(t, "a bad one", results[2].Err, "delivery.to")
		}
		for _, id := range ids[:2] {
			_, err := b.Replace(ctx, tasks.Request{ID: id, Topic: "x", Delay: time.Hour, Target: rig.Own("bern")})
			rig.Want(t, "Replace", err, nil)
			_, err = a.Replace(ctx, tasks.Request{ID: id, Topic: "x", Delay: time.Hour, Target: rig.Own("nowhere")})
			wantFaults(t, "Replace", err, "delivery.to")
		}
		_, err := a.Reschedule(ctx, ids[1], tasks.Move{Target: rig.Own("lima")})
		rig.Want(t, "Reschedule", err, nil)
		_, err = b.Reschedule(ctx, ids[2], tasks.Move{Target: &tasks.Target{}})
		rig.Want(t, "Reschedule", err, nil)
		_, err = b.Reschedule(ctx, ids[2], tasks.Move{Target: rig.Own("nowhere")})
		wantFaults(t, "Reschedule", err, "delivery.to")
		for id, where := range map[string]string{ids[0]: "city of bern", ids[1]: "city of lima"} {
			for _, n := range f.Nodes {
				if got := n.MustGet(id).Target; got == nil || got.Receiver != where {
					t.Errorf("at %s: %+v; want %s", n.Name, got, where)
				}
			}
		}
		b.Keeps.Store(true)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		a.Crash()
		rig.Pass(time.Minute)
		b.Adopt(a)
		if got := b.MustGet(ids[0]).Target; got == nil || got.Receiver != "city of bern" {
			t.Errorf("adopted: %+v", got)
		}
		rig.Pass(time.Hour)
		c.Want(t, "delivered", slices.Sorted(slices.Values([]string{
			ids[0] + " to bern", ids[1] + " to lima", ids[2] + " to rome", ids[3] + " to rome",
		}))...)
		b.Check()
	})
}

// A node that helps in a backlog delivers to the targets of tasks.
func TestTargetOffloaded(t *testing.T) {
	at := map[string]*rig.Courier{}
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		ctx := t.Context()
		a, b := f.Nodes[0], f.Nodes[1]
		for _, n := range f.Nodes {
			c := &rig.Courier{Fail: func(*tasks.Delivery, string) error { time.Sleep(100 * time.Millisecond); return nil }}
			at[n.Name] = c
			allow(n, "x", c)
		}
		const count = 2000
		reqs := make([]tasks.Request, count)
		for i := range reqs {
			reqs[i] = tasks.Request{ID: fmt.Sprintf("x-%04d", i), Topic: "x", Target: rig.Own(fmt.Sprint("oslo", i))}
		}
		_, err := a.ScheduleBatch(ctx, reqs)
		rig.Want(t, "ScheduleBatch", err, nil)
		rig.Pass(200 * time.Millisecond)
		for a.Stats().Total.Delivered+b.Stats().Total.Delivered < count {
			rig.Pass(100 * time.Millisecond)
		}
		byA, byB := at["a"].SentTo(), at["b"].SentTo()
		if len(byB) < count/4 || len(byA)+len(byB) != count {
			t.Errorf("%d and %d deliveries", len(byA), len(byB))
		}
		for _, sent := range slices.Concat(byA, byB) {
			var id, where int
			if n, _ := fmt.Sscanf(sent, "x-%d to oslo%d", &id, &where); n != 2 || id != where {
				t.Fatalf("sent: %s", sent)
			}
		}
	}, tasks.Config{SweepBacklog: 100}, tasks.Config{})
}

// A spooled task has its target, in the spool and in the ledger.
func TestTargetSpooled(t *testing.T) {
	c := &rig.Courier{}
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		rig.Want(t, "Deliver", r.Deliver("x", &rig.Round{Courier: c, To: "rome"}), nil)
		r.MustSetTopic("x", tasks.TopicSettings{TaskDelivery: true})
		r.Away()
		one := r.Must(tasks.Request{Topic: "x", Delay: time.Hour, Target: rig.Own("oslo")})
		two := r.Must(tasks.Request{Topic: "x", Delay: time.Minute, Target: rig.Own("bern")})
		if !one.Spooled || !two.Spooled {
			t.Fatal("they are not spooled")
		}
		rig.Pass(time.Minute)
		c.Want(t, "out of the spool", two.ID+" to bern")
		r.CrashBoth()
		rig.Want(t, "Deliver", r.Deliver("x", &rig.Round{Courier: c, To: "rome"}), nil)
		r.WantSpool(0, 1)
		if got := r.MustGet(one.ID).Target; got == nil || got.Receiver != "city of oslo" {
			t.Errorf("moved: %+v", got)
		}
		rig.Pass(time.Hour)
		c.Want(t, "in the end", one.ID+" to oslo")
	})
}
