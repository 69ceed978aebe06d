package rig

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// Must schedules a task that has to be accepted.
func (n *Node) Must(req tasks.Request) tasks.Task {
	n.T.Helper()
	task, err := n.Schedule(n.T.Context(), req)
	if err != nil {
		n.T.Fatalf("node %s: Schedule(%q): %v", n.Name, req.ID, err)
	}
	return task
}

// StartReserve reserves in the background.
func (n *Node) StartReserve(ctx context.Context, topic string, limit int, wait, lease time.Duration) <-chan []tasks.Delivery {
	got := make(chan []tasks.Delivery, 1)
	go func() {
		ds, err := n.Reserve(ctx, topic, limit, wait, lease)
		if err != nil {
			n.T.Errorf("node %s: Reserve(%q): %v", n.Name, topic, err)
		}
		got <- ds
	}()
	return got
}

// Pull reserves what is ready anywhere, and wants just these ids.
func (n *Node) Pull(topic string, want ...string) []tasks.Delivery {
	n.T.Helper()
	ds, err := n.Reserve(n.T.Context(), topic, tasks.MaxReserve, 0, 0)
	if err != nil {
		n.T.Fatalf("node %s: Reserve(%q): %v", n.Name, topic, err)
	}
	n.Want(ds, want...)
	return ds
}

// Want fails the test unless just these ids were reserved, in any order.
func (n *Node) Want(ds []tasks.Delivery, want ...string) {
	n.T.Helper()
	got := make(map[string]bool, len(ds))
	for i := range ds {
		got[ds[i].ID] = true
	}
	ok := len(ds) == len(want)
	for _, id := range want {
		ok = ok && got[id]
	}
	if !ok {
		n.T.Fatalf("node %s has reserved %v; want %q", n.Name, got, want)
	}
}

// SettleOne settles a delivery at the node that has its task.
func (n *Node) SettleOne(v tasks.Verb, d tasks.Delivery) {
	n.T.Helper()
	answers, err := n.Settle(n.T.Context(), tasks.Verdict{Verb: v}, []string{d.Receipt()})
	if err == nil {
		err = answers[0].Err
	}
	if err != nil {
		n.T.Fatalf("node %s: settling %s: %v", n.Name, d.ID, err)
	}
}

// MustGet returns a task that has to be known.
func (n *Node) MustGet(id string) tasks.Task {
	n.T.Helper()
	task, err := n.Get(n.T.Context(), id)
	if err != nil {
		n.T.Fatalf("Get(%q) at %s: %v", id, n.Name, err)
	}
	return task
}

// Adopt has a node adopt what another node holds, and waits until it is in memory.
func (n *Node) Adopt(from *Node) {
	n.T.Helper()
	if n.Member.AdoptFrom(from.Member.Member) == 0 {
		n.T.Fatal("nothing was adopted")
	}
	Pass(100 * time.Millisecond)
}

// Create schedules a task that has to be accepted, and returns its id.
func (n *Node) Create(r tasks.Request) string {
	n.T.Helper()
	return n.Must(r).ID
}

// CreateOwned creates a task in the shard that its id names, if this node owns it. It does not ask
// other nodes, and returns ErrUnavailable if another node owns the shard.
func (n *Node) CreateOwned(r tasks.Request) error {
	ctx, cancel := n.Engine().Within(n.T.Context())
	defer cancel()
	p, err := n.Engine().PlanFor(ctx, &r)
	if err != nil {
		return err
	}
	p.ShardID, _ = recovery.ShardIDOf(p.ID)
	_, err = n.Engine().Create(ctx, &p)
	if elsewhere, ok := errors.AsType[*engine.Elsewhere](err); ok {
		return fmt.Errorf("%w: %w", tasks.ErrUnavailable, elsewhere)
	}
	return err
}

// ShardID names one of a node's own shards.
func (n *Node) ShardID(shard int) recovery.ShardID {
	return recovery.NewShardID(n.Engine().NodeNumber, shard)
}

// IDAt makes an id that names a shard of a node's own.
func (n *Node) IDAt(shard int) string { return n.ShardID(shard).NewID() }

// PullOwn is Pull of tasks that this node owns.
func (n *Node) PullOwn(topic string, want ...string) []tasks.Delivery {
	n.T.Helper()
	ds := n.Pull(topic, want...)
	for i := range ds {
		if ds[i].Node != n.Name {
			n.T.Fatalf("%s reserved %s, which is at %s", n.Name, ds[i].ID, ds[i].Node)
		}
	}
	return ds
}

// Ack acknowledges a delivery whose task this node owns.
func (n *Node) Ack(d tasks.Delivery) tasks.Settled {
	n.T.Helper()
	ctx, cancel := n.Engine().Within(n.T.Context())
	defer cancel()
	ack := tasks.Verdict{Verb: tasks.Ack}
	some, err := n.Engine().CheckVerdict(&ack, []string{d.Receipt()})
	if err == nil {
		err = n.Engine().SettleLocal(ctx, &ack, []*engine.Settling{&some[0]})
	}
	if err != nil {
		n.T.Fatal("SettleLocal:", err)
	}
	return some[0].Answer
}

// Check wants memory to be consistent, and to be what the ledger has.
func (n *Node) Check() {
	n.T.Helper()
	if err := consistent(n.Engine(), n.Member); err != nil {
		n.T.Fatalf("%s is inconsistent: %v", n.Name, err)
	}
}

// WantEmpty wants a node to know nothing of any task.
func (n *Node) WantEmpty() {
	n.T.Helper()
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
		n.T.Fatalf("%s still has %d tasks, %d of the dead, %d open deliveries, %d arriving, %d shards, %d detached, %d pending verdicts",
			n.Name, used, graves, open, arriving, held, detached, pending)
	}
	n.Check()
}

// Each calls test for every task's shard and every node where something is asked, with a
// task that was created there: under an id made by Lapse, or one that its caller chose.
func (f *Fleet) Each(test func(what string, owner, asked *Node, task tasks.Task)) {
	f.T.Helper()
	for i, owner := range f.Nodes {
		for k, asked := range f.Nodes {
			for _, id := range []string{"", fmt.Sprintf("order-%d-%d-%d", i, k, time.Now().UnixNano())} {
				task := owner.Must(tasks.Request{ID: id, Topic: "t", Delay: time.Hour, Payload: []byte(`{"n":1}`)})
				test(fmt.Sprintf("%s of %s at %s", task.ID, owner.Name, asked.Name), owner, asked, task)
			}
		}
	}
}

// Pages reads all pages of a query.
func (n *Node) Pages(q tasks.Query) (all []string) {
	n.T.Helper()
	for range MostPages {
		page, err := n.List(n.T.Context(), q)
		if err != nil {
			n.T.Fatalf("List(%+v) at %s: %v", q, n.Name, err)
		}
		all = append(all, IDsOf(page.Tasks)...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all
		}
	}
	n.T.Fatalf("List(%+v) at %s does not end", q, n.Name)
	return nil
}

// HandTo hands the first of a node's own shards over, with as many calls as that takes.
func (n *Node) HandTo(to *Node) error {
	for {
		err := to.Cluster().AcceptOffer(n.T.Context(), n.ShardID(0), n.Engine().Config.Node)
		if !errors.Is(err, engine.ErrHandingOver) {
			return err
		}
	}
}

// Stale wants a receipt to be refused as stale.
func (n *Node) Stale(what string, d tasks.Delivery) {
	n.T.Helper()
	for _, v := range []tasks.Verb{tasks.Ack, tasks.Release, tasks.Extend, tasks.Bury, tasks.Return} {
		answers, err := n.Settle(n.T.Context(), tasks.Verdict{Verb: v}, []string{d.Receipt()})
		Want(n.T, what, err, nil)
		Want(n.T, fmt.Sprint(what, ": verb ", v, " at ", n.Name), answers[0].Err, tasks.ErrStale)
	}
}
