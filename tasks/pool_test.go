package tasks

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
)

// A poolRig is several nodes that share a ledger in memory.
type poolRig struct {
	t     *testing.T
	fleet *memfleet.Fleet
	log   *logged
	nodes []*poolNode
	sent  atomic.Int64                                         // messages between nodes
	drop  atomic.Pointer[func(from, to string, m []byte) bool] // which of them are lost
}

// A poolNode is one of them.
type poolNode struct {
	*Scheduler
	t      *testing.T
	name   string
	member *memfleet.Member
}

// poolBubble runs a test with fake time, on as many nodes as there are configurations.
func poolBubble(t *testing.T, test func(t *testing.T, f *poolRig), cfgs ...Config) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newPoolRig(t, cfgs...)
		pass(3 * time.Second) // all ids are registered by then
		test(t, f)
		for _, n := range f.nodes {
			if st := n.Stats(); st.MissedWakes != 0 || st.Rescued != 0 {
				t.Errorf("node %s: the sweep found %d topics that nobody had woken, and rescued %d tasks", n.name, st.MissedWakes, st.Rescued)
			}
		}
	})
}

func newPoolRig(t *testing.T, cfgs ...Config) *poolRig {
	t.Helper()
	f := &poolRig{t: t, fleet: memfleet.New(), log: &logged{}}
	f.fleet.Drop(func(from, to string, m []byte) bool {
		f.sent.Add(1)
		drop := f.drop.Load()
		return drop != nil && (*drop)(from, to, m)
	})
	for i, cfg := range cfgs {
		f.join(string(rune('a'+i)), cfg)
	}
	return f
}

// join adds a node.
func (f *poolRig) join(name string, cfg Config) *poolNode {
	f.t.Helper()
	cfg.Node, cfg.Log = name, slog.New(slog.NewTextHandler(f.log, nil))
	n := &poolNode{t: f.t, name: name, member: f.fleet.Join(name, 2)}
	var err error
	if n.Scheduler, err = Open(f.t.Context(), n.member, cfg); err != nil {
		f.t.Fatalf("Open %s: %v", name, err)
	}
	f.nodes = append(f.nodes, n)
	f.t.Cleanup(func() { f.lose(nil); _ = n.Close(context.Background()) })
	return n
}

// lose loses the messages that it is asked about; nil: none.
func (f *poolRig) lose(drop func(from, to string, m []byte) bool) {
	if drop == nil {
		f.drop.Store(nil)
		return
	}
	f.drop.Store(&drop)
}

// crash ends a node as kill -9 would.
func (n *poolNode) crash() {
	n.member.Crash()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = n.Close(ctx)
}

// must schedules a task that has to be accepted.
func (n *poolNode) must(req Request) Task {
	n.t.Helper()
	task, err := n.Schedule(n.t.Context(), req)
	if err != nil {
		n.t.Fatalf("node %s: Schedule(%q): %v", n.name, req.ID, err)
	}
	return task
}

// reserve reserves in the background.
func (n *poolNode) reserve(ctx context.Context, topic string, limit int, wait, lease time.Duration) <-chan []Delivery {
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
func (n *poolNode) pull(topic string, want ...string) []Delivery {
	n.t.Helper()
	ds, err := n.Reserve(n.t.Context(), topic, MaxReserve, 0, 0)
	if err != nil {
		n.t.Fatalf("node %s: Reserve(%q): %v", n.name, topic, err)
	}
	n.want(ds, want...)
	return ds
}

func (n *poolNode) want(ds []Delivery, want ...string) {
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
func (n *poolNode) settle(v Verb, d Delivery) {
	n.t.Helper()
	answers, err := n.Settle(n.t.Context(), Verdict{Verb: v}, []string{d.Receipt()})
	if err == nil {
		err = answers[0].Err
	}
	if err != nil {
		n.t.Fatalf("node %s: settling %s: %v", n.name, d.ID, err)
	}
}
