package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// must schedules a task that has to be accepted.
func (n *node) must(req Request) Task {
	n.t.Helper()
	task, err := n.Schedule(n.t.Context(), req)
	if err != nil {
		n.t.Fatalf("node %s: Schedule(%q): %v", n.name, req.ID, err)
	}
	return task
}

// reserve reserves in the background.
func (n *node) reserve(ctx context.Context, topic string, limit int, wait, lease time.Duration) <-chan []Delivery {
	got := make(chan []Delivery, 1)
	go func() {
		ds, err := n.Reserve(ctx, topic, limit, wait, lease)
		if err != nil {
			n.t.Errorf("node %s: Reserve(%q): %v", n.name, topic, err)
		}
		got <- ds
	}()
	return got
}

// pull reserves what is ready anywhere, and wants just these ids.
func (n *node) pull(topic string, want ...string) []Delivery {
	n.t.Helper()
	ds, err := n.Reserve(n.t.Context(), topic, MaxReserve, 0, 0)
	if err != nil {
		n.t.Fatalf("node %s: Reserve(%q): %v", n.name, topic, err)
	}
	n.want(ds, want...)
	return ds
}

func (n *node) want(ds []Delivery, want ...string) {
	n.t.Helper()
	got := make(map[string]bool, len(ds))
	for i := range ds {
		got[ds[i].ID] = true
	}
	ok := len(ds) == len(want)
	for _, id := range want {
		ok = ok && got[id]
	}
	if !ok {
		n.t.Fatalf("node %s has reserved %v; want %q", n.name, got, want)
	}
}

// settle settles a delivery at the node that has its task.
func (n *node) settle(v Verb, d Delivery) {
	n.t.Helper()
	answers, err := n.Settle(n.t.Context(), Verdict{Verb: v}, []string{d.Receipt()})
	if err == nil {
		err = answers[0].Err
	}
	if err != nil {
		n.t.Fatalf("node %s: settling %s: %v", n.name, d.ID, err)
	}
}

// get returns a task that has to be known.
func (n *node) get(id string) Task {
	n.t.Helper()
	task, err := n.Get(n.t.Context(), id)
	if err != nil {
		n.t.Fatalf("Get(%q) at %s: %v", id, n.name, err)
	}
	return task
}

// adopt has a node adopt what another node holds, and waits until it is in memory.
func (n *node) adopt(from *node) {
	n.t.Helper()
	if n.member.AdoptFrom(from.member.Member) == 0 {
		n.t.Fatal("nothing was adopted")
	}
	pass(100 * time.Millisecond)
}

// create schedules a task that has to be accepted, and returns its id.
func (n *node) create(r Request) string {
	n.t.Helper()
	return n.must(r).ID
}

// createOwned creates a task in the shard that its id names, if this node owns it. It does not ask
// other nodes, and returns ErrUnavailable if another node owns the shard.
func (n *node) createOwned(r Request) error {
	ctx, cancel := n.Engine().Within(n.t.Context())
	defer cancel()
	p, err := n.Engine().PlanFor(ctx, &r)
	if err != nil {
		return err
	}
	p.ShardID, _ = recovery.ShardIDOf(p.ID)
	_, err = n.Engine().Create(ctx, &p)
	if elsewhere, ok := errors.AsType[*engine.Elsewhere](err); ok {
		return fmt.Errorf("%w: %w", ErrUnavailable, elsewhere)
	}
	return err
}

// shardID names one of a node's own shards.
func (n *node) shardID(shard int) recovery.ShardID {
	return recovery.NewShardID(n.Engine().NodeNumber, shard)
}

// idAt makes an id that names a shard of a node's own.
func (n *node) idAt(shard int) string { return n.shardID(shard).NewID() }

// pullOwn is pull of tasks that this node owns.
func (n *node) pullOwn(topic string, want ...string) []Delivery {
	n.t.Helper()
	ds := n.pull(topic, want...)
	for i := range ds {
		if ds[i].Node != n.name {
			n.t.Fatalf("%s reserved %s, which is at %s", n.name, ds[i].ID, ds[i].Node)
		}
	}
	return ds
}

// ack acknowledges a delivery whose task this node owns.
func (n *node) ack(d Delivery) Settled {
	n.t.Helper()
	ctx, cancel := n.Engine().Within(n.t.Context())
	defer cancel()
	ack := Verdict{Verb: Ack}
	some, err := n.Engine().CheckVerdict(&ack, []string{d.Receipt()})
	if err == nil {
		err = n.Engine().SettleLocal(ctx, &ack, []*engine.Settling{&some[0]})
	}
	if err != nil {
		n.t.Fatal("SettleLocal:", err)
	}
	return some[0].Answer
}

// check wants memory to be consistent, and to be what the ledger has.
func (n *node) check() {
	n.t.Helper()
	if err := consistent(n.Engine(), n.member); err != nil {
		n.t.Fatalf("%s is inconsistent: %v", n.name, err)
	}
}

// wantEmpty wants a node to know nothing of any task.
func (n *node) wantEmpty() {
	n.t.Helper()
	Mutex(n.Engine()).Lock()
	used, graves, open, arriving := n.Engine().Store.Len(), len(n.Engine().Dead.IDs), len(n.Engine().Dispatch.Leases), n.Engine().Writes.Arriving
	detached, pending := len(n.Engine().Detached.Shards), len(n.Engine().Detached.Verdicts)
	var held int
	for _, h := range n.Engine().Shards.List {
		if h != nil {
			held++
		}
	}
	Mutex(n.Engine()).Unlock()
	if used+graves+open+arriving+held+detached+pending != 0 {
		n.t.Fatalf("%s still has %d tasks, %d of the dead, %d open deliveries, %d arriving, %d shards, %d detached, %d pending verdicts",
			n.name, used, graves, open, arriving, held, detached, pending)
	}
	n.check()
}

// each calls test for every task's shard and every node where something is asked, with a
// task that was created there: under an id made by Lapse, or one that its caller chose.
func (f *fleet) each(test func(what string, owner, asked *node, task Task)) {
	f.t.Helper()
	for i, owner := range f.nodes {
		for k, asked := range f.nodes {
			for _, id := range []string{"", fmt.Sprintf("order-%d-%d-%d", i, k, time.Now().UnixNano())} {
				task := owner.must(Request{ID: id, Topic: "t", Delay: time.Hour, Payload: []byte(`{"n":1}`)})
				test(fmt.Sprintf("%s of %s at %s", task.ID, owner.name, asked.name), owner, asked, task)
			}
		}
	}
}
