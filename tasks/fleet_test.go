package tasks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// A fleet is several nodes under test that share a ledger in memory. They talk over the relay.
type fleet struct {
	t      testing.TB
	ledger *memfleet.Fleet
	log    *logged               // of all nodes
	nodes  []*node               // in the order of their first start
	latest sync.Map              // the *node by its name, for calls that nodes make on their own
	ended  []*node               // processes that a later one of their node has replaced
	before func(m *faultyMember) // is called before a node is opened; may be nil
	spies  bool                  // nodes that are opened keep in told what they send

	sent atomic.Int64 // messages between nodes
	lost atomic.Pointer[func(from, to string, message []byte) bool]
}

// A node is one process of a fleet.
type node struct {
	*Scheduler
	t      testing.TB
	fleet  *fleet
	name   string
	shards int
	cfg    Config
	member *faultyMember
	log    *logged
	dead   bool

	told  collection[string] // verdicts of handlers that were sent to other nodes
	keeps atomic.Bool        // it refuses to release shards
	mute  atomic.Bool        // it does not answer when it is offered a shard
}

// Nodes of newFleet have so many shards each.
const fleetShards = 3

// newFleet starts so many nodes, named a, b, c and so on. They are closed with the test.
func newFleet(t testing.TB, n int) *fleet {
	t.Helper()
	f := &fleet{t: t, ledger: memfleet.New(), log: &logged{}}
	f.ledger.Drop(func(from, to string, message []byte) bool {
		f.sent.Add(1)
		lost := f.lost.Load()
		return lost != nil && (*lost)(from, to, message)
	})
	t.Cleanup(func() {
		f.lose(nil)
		for _, n := range f.nodes {
			n.member.heal()
			n.stop()
		}
	})
	for i := range n {
		f.start(string(rune('a'+i)), fleetShards, Config{})
	}
	return f
}

// fleetBubble runs a test with fake time, on a fleet of so many nodes whose directory is in
// order.
func fleetBubble(t *testing.T, n int, test func(t *testing.T, f *fleet)) {
	t.Helper()
	fakeTime(t, func(t *testing.T) {
		f := newFleet(t, n)
		if n > 0 {
			pass(3 * time.Second) // all ids are registered by then
		}
		test(t, f)
		for _, n := range f.nodes {
			wantCounted(t, n.Engine())
		}
	})
}

// poolBubble is fleetBubble with a node for each configuration. The sweeps of the nodes must not
// have anything to do.
func poolBubble(t *testing.T, test func(t *testing.T, f *fleet), cfgs ...Config) {
	t.Helper()
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		for i, cfg := range cfgs {
			f.start(string(rune('a'+i)), 2, cfg)
		}
		pass(3 * time.Second) // all ids are registered by then
		test(t, f)
		for _, n := range slices.Concat(f.nodes, f.ended) {
			if st := n.Stats(); st.MissedWakes != 0 || st.Rescued != 0 {
				t.Errorf("node %s: the sweep found %d topics that no receiver was woken for, and rescued %d tasks", n.name, st.MissedWakes, st.Rescued)
			}
		}
	})
}

// start starts a node with so many shards of its own, again or for the first time.
func (f *fleet) start(name string, shards int, cfg Config) *node {
	f.t.Helper()
	n := &node{t: f.t, fleet: f, name: name, shards: shards, cfg: cfg, log: &logged{}}
	n.cfg.Node = name
	n.cfg.Log = slog.New(slog.NewTextHandler(io.MultiWriter(n.log, f.log), nil))
	n.open()
	if i := slices.IndexFunc(f.nodes, func(o *node) bool { return o.name == name }); i >= 0 {
		f.ended, f.nodes[i] = append(f.ended, f.nodes[i]), n
	} else {
		f.nodes = append(f.nodes, n)
	}
	f.latest.Store(name, n)
	return n
}

// join is start, until all ids of the node are registered.
func (f *fleet) join(name string, shards int, cfg Config) *node {
	f.t.Helper()
	n := f.start(name, shards, cfg)
	pass(3 * time.Second)
	return n
}

// node returns the process of a node, dead or alive; nil if it was never started.
func (f *fleet) node(name string) *node {
	n, _ := f.latest.Load(name)
	known, _ := n.(*node)
	return known
}

// lose loses the messages for which lost returns true; nil: none.
func (f *fleet) lose(lost func(from, to string, message []byte) bool) {
	if lost == nil {
		f.lost.Store(nil)
		return
	}
	f.lost.Store(&lost)
}

// open starts a process of the node. The earlier one must have ended.
func (n *node) open() {
	n.t.Helper()
	f := n.fleet
	n.member, n.dead = &faultyMember{Member: f.ledger.Join(n.name, n.shards)}, false
	if f.before != nil {
		f.before(n.member)
	}
	var own *Scheduler
	opened := make(chan struct{})
	defer close(opened)
	calls := n.calls(func() *Scheduler {
		<-opened
		return own
	})
	var err error
	if own, err = OpenWith(n.t.Context(), n.member, n.cfg, Parts{Peers: calls}); err != nil {
		n.t.Fatalf("Open of %s: %v", n.name, err)
	}
	n.Scheduler = own
}

// calls are the calls of a process to its peers, as in production, but for the faults of a test.
func (n *node) calls(own func() *Scheduler) cluster.PeerCalls {
	calls := cluster.PeerCalls{
		CallRelease: func(ctx context.Context, peer string, shardID recovery.ShardID) error {
			if p := n.fleet.node(peer); p != nil && p.keeps.Load() {
				return ErrUnavailable
			}
			return callAbout(ctx, own(), peer, cluster.ReleaseMethod, shardID)
		},
		CallOfferShard: func(ctx context.Context, peer string, shardID recovery.ShardID) error {
			if p := n.fleet.node(peer); p != nil && p.mute.Load() {
				<-ctx.Done()
				return fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
			}
			return callAbout(ctx, own(), peer, cluster.OfferShardMethod, shardID)
		},
	}
	if n.fleet.spies {
		calls.Settle = func(ctx context.Context, _ recovery.ShardID, v Verdict, receipts []string) ([]Settled, error) {
			for range receipts {
				n.told.add(fmt.Sprint(v.Verb, " ", v.Reason))
			}
			return own().Settle(ctx, v, receipts)
		}
	}
	return calls
}

// callAbout calls a method of a peer whose query is about a shard.
func callAbout[Q any](ctx context.Context, s *Scheduler, peer string, m cluster.Method[Q, struct{}], shardID recovery.ShardID) error {
	var query Q
	text, err := json.Marshal(map[string]recovery.ShardID{"Home": shardID})
	if err == nil {
		err = json.Unmarshal(text, &query)
	}
	if err != nil {
		return err
	}
	_, err = cluster.Call(ctx, s.Cluster(), peer, m, query)
	return err
}

// restart starts the next process of a node that has ended.
func (n *node) restart() {
	n.t.Helper()
	n.open()
}

// stop closes the process, unless it is dead.
func (n *node) stop() {
	if !n.dead {
		n.dead = true
		_ = n.Close(context.Background()) // some have lost what they held
	}
}

// crash ends the process as kill -9 would.
func (n *node) crash() {
	n.member.Crash()
	n.member.heal()
	n.dead = true
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = n.Close(ctx)
}
