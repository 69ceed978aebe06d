package tasks_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// allow has a node deliver a topic by c, and lets its tasks choose.
func (n *node) allow(topic string, c *courier) {
	n.t.Helper()
	want(n.t, "Deliver", n.Deliver(topic, &round{c, "rome"}), nil)
	_, err := n.SetTopic(n.t.Context(), topic, tasks.TopicSettings{TaskDelivery: true}, -1)
	want(n.t, "SetTopic", err, nil)
}

// A target goes with its task to whichever node has it: with calls of all kinds, in a batch, with
// its shard, and to the node that delivers it in a backlog.
func TestTargetAtAllNodes(t *testing.T) {
	c := &courier{}
	fleetBubble(t, 2, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		a, b := f.nodes[0], f.nodes[1]
		a.allow("x", c)
		b.allow("x", c)
		var ids []string
		for i := range 4 {
			ids = append(ids, a.idAt(i%2), b.idAt(i%2))
		}
		batch := []tasks.Request{{ID: ids[2], Topic: "x", Delay: time.Hour, Target: own("oslo")}, {ID: ids[3], Topic: "x", Delay: time.Hour}}
		for _, n := range f.nodes[:1] {
			got, err := n.Schedule(ctx, tasks.Request{ID: ids[0], Topic: "x", Delay: time.Hour, Target: own("oslo")})
			if want(t, "Schedule", err, nil); got.Target == nil || got.Target.Receiver != "city of oslo" {
				t.Errorf("scheduled: %+v", got.Target)
			}
			got, err = n.Schedule(ctx, tasks.Request{ID: ids[1], Topic: "x", Delay: time.Hour, Target: own("oslo")})
			if want(t, "Schedule", err, nil); got.Target == nil || got.Target.Receiver != "city of oslo" {
				t.Errorf("scheduled at the other node: %+v", got.Target)
			}
			results, err := n.ScheduleBatch(ctx, append(slices.Clone(batch), tasks.Request{ID: ids[4], Topic: "x", Target: own("nowhere")}))
			want(t, "ScheduleBatch", err, nil)
			want(t, "a result", results[0].Err, nil)
			want(t, "a result", results[1].Err, nil)
			wantFaults(t, "a bad one", results[2].Err, "delivery.to")
		}
		for _, id := range ids[:2] {
			_, err := b.Replace(ctx, tasks.Request{ID: id, Topic: "x", Delay: time.Hour, Target: own("bern")})
			want(t, "Replace", err, nil)
			_, err = a.Replace(ctx, tasks.Request{ID: id, Topic: "x", Delay: time.Hour, Target: own("nowhere")})
			wantFaults(t, "Replace", err, "delivery.to")
		}
		_, err := a.Reschedule(ctx, ids[1], tasks.Move{Target: own("lima")})
		want(t, "Reschedule", err, nil)
		_, err = b.Reschedule(ctx, ids[2], tasks.Move{Target: &tasks.Target{}})
		want(t, "Reschedule", err, nil)
		_, err = b.Reschedule(ctx, ids[2], tasks.Move{Target: own("nowhere")})
		wantFaults(t, "Reschedule", err, "delivery.to")
		for id, where := range map[string]string{ids[0]: "city of bern", ids[1]: "city of lima"} {
			for _, n := range f.nodes {
				if got := n.get(id).Target; got == nil || got.Receiver != where {
					t.Errorf("at %s: %+v; want %s", n.name, got, where)
				}
			}
		}
		b.keeps.Store(true)
		want(t, "hand-over", a.handTo(b), nil)
		a.crash()
		pass(time.Minute)
		b.adopt(a)
		if got := b.get(ids[0]).Target; got == nil || got.Receiver != "city of bern" {
			t.Errorf("adopted: %+v", got)
		}
		pass(time.Hour)
		c.want(t, "delivered", slices.Sorted(slices.Values([]string{
			ids[0] + " to bern", ids[1] + " to lima", ids[2] + " to rome", ids[3] + " to rome",
		}))...)
		b.check()
	})
}

// A node that helps in a backlog delivers to the targets of tasks.
func TestTargetOffloaded(t *testing.T) {
	at := map[string]*courier{}
	poolBubble(t, func(t *testing.T, f *fleet) {
		ctx := t.Context()
		a, b := f.nodes[0], f.nodes[1]
		for _, n := range f.nodes {
			c := &courier{fail: func(*tasks.Delivery, string) error { time.Sleep(100 * time.Millisecond); return nil }}
			at[n.name] = c
			n.allow("x", c)
		}
		const count = 2000
		reqs := make([]tasks.Request, count)
		for i := range reqs {
			reqs[i] = tasks.Request{ID: fmt.Sprintf("x-%04d", i), Topic: "x", Target: own(fmt.Sprint("oslo", i))}
		}
		_, err := a.ScheduleBatch(ctx, reqs)
		want(t, "ScheduleBatch", err, nil)
		pass(200 * time.Millisecond)
		for a.Stats().Total.Delivered+b.Stats().Total.Delivered < count {
			pass(100 * time.Millisecond)
		}
		byA, byB := at["a"].sentTo(), at["b"].sentTo()
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
	c := &courier{}
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		want(t, "Deliver", r.Deliver("x", &round{c, "rome"}), nil)
		r.topic("x", tasks.TopicSettings{TaskDelivery: true})
		r.away()
		one := r.must(tasks.Request{Topic: "x", Delay: time.Hour, Target: own("oslo")})
		two := r.must(tasks.Request{Topic: "x", Delay: time.Minute, Target: own("bern")})
		if !one.Spooled || !two.Spooled {
			t.Fatal("they are not spooled")
		}
		pass(time.Minute)
		c.want(t, "out of the spool", two.ID+" to bern")
		r.crashBoth()
		want(t, "Deliver", r.Deliver("x", &round{c, "rome"}), nil)
		r.wantSpool(0, 1)
		if got := r.get(one.ID).Target; got == nil || got.Receiver != "city of oslo" {
			t.Errorf("moved: %+v", got)
		}
		pass(time.Hour)
		c.want(t, "in the end", one.ID+" to oslo")
	})
}
