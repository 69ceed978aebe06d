package rig

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
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// A Fleet is several nodes under test that share a ledger in memory. They talk over the relay.
type Fleet struct {
	T      testing.TB
	Ledger *memfleet.Fleet
	Log    *Logged               // of all nodes
	Nodes  []*Node               // in the order of their first start
	latest sync.Map              // the *node by its name, for calls that nodes make on their own
	ended  []*Node               // processes that a later one of their node has replaced
	Before func(m *FaultyMember) // is called before a node is opened; may be nil
	Spies  bool                  // nodes that are opened keep in told what they send

	Sent atomic.Int64 // messages between nodes
	lost atomic.Pointer[func(from, to string, message []byte) bool]
}

// A Node is one process of a fleet.
type Node struct {
	*tasks.Scheduler
	T      testing.TB
	Fleet  *Fleet
	Name   string
	shards int
	Cfg    tasks.Config
	Member *FaultyMember
	Log    *Logged
	Dead   bool

	Told  Collection[string] // verdicts of handlers that were sent to other nodes
	Keeps atomic.Bool        // it refuses to release shards
	Mute  atomic.Bool        // it does not answer when it is offered a shard
}

// FleetShards is how many shards each node of NewFleet has.
const FleetShards = 3

// NewFleet starts so many nodes, named a, b, c and so on. They are closed with the test.
func NewFleet(t testing.TB, n int) *Fleet {
	t.Helper()
	f := &Fleet{T: t, Ledger: memfleet.New(), Log: &Logged{}}
	f.Ledger.Drop(func(from, to string, message []byte) bool {
		f.Sent.Add(1)
		lost := f.lost.Load()
		return lost != nil && (*lost)(from, to, message)
	})
	t.Cleanup(func() {
		f.Lose(nil)
		for _, n := range f.Nodes {
			n.Member.Heal()
			n.Stop()
		}
	})
	for i := range n {
		f.Start(string(rune('a'+i)), FleetShards, tasks.Config{})
	}
	return f
}

// FleetBubble runs a test with fake time, on a fleet of so many nodes whose directory is in
// order.
func FleetBubble(t *testing.T, n int, test func(t *testing.T, f *Fleet)) {
	t.Helper()
	FakeTime(t, func(t *testing.T) {
		f := NewFleet(t, n)
		if n > 0 {
			Pass(3 * time.Second) // all ids are registered by then
		}
		test(t, f)
		for _, n := range f.Nodes {
			WantCounted(t, n.Engine())
		}
	})
}

// PoolBubble is FleetBubble with a node for each configuration. The sweeps of the nodes must not
// have anything to do.
func PoolBubble(t *testing.T, test func(t *testing.T, f *Fleet), cfgs ...tasks.Config) {
	t.Helper()
	FleetBubble(t, 0, func(t *testing.T, f *Fleet) {
		for i, cfg := range cfgs {
			f.Start(string(rune('a'+i)), 2, cfg)
		}
		Pass(3 * time.Second) // all ids are registered by then
		test(t, f)
		for _, n := range slices.Concat(f.Nodes, f.ended) {
			if st := n.Stats(); st.MissedWakes != 0 || st.Rescued != 0 {
				t.Errorf("node %s: the sweep found %d topics that no receiver was woken for, and rescued %d tasks", n.Name, st.MissedWakes, st.Rescued)
			}
		}
	})
}

// Start starts a node with so many shards of its own, again or for the first time.
func (f *Fleet) Start(name string, shards int, cfg tasks.Config) *Node {
	f.T.Helper()
	n := &Node{T: f.T, Fleet: f, Name: name, shards: shards, Cfg: cfg, Log: &Logged{}}
	n.Cfg.Node = name
	n.Cfg.Log = slog.New(slog.NewTextHandler(io.MultiWriter(n.Log, f.Log), nil))
	n.open()
	if i := slices.IndexFunc(f.Nodes, func(o *Node) bool { return o.Name == name }); i >= 0 {
		f.ended, f.Nodes[i] = append(f.ended, f.Nodes[i]), n
	} else {
		f.Nodes = append(f.Nodes, n)
	}
	f.latest.Store(name, n)
	return n
}

// Join is start, until all ids of the node are registered.
func (f *Fleet) Join(name string, shards int, cfg tasks.Config) *Node {
	f.T.Helper()
	n := f.Start(name, shards, cfg)
	Pass(3 * time.Second)
	return n
}

// Node returns the process of a node, dead or alive; nil if it was never started.
func (f *Fleet) Node(name string) *Node {
	n, _ := f.latest.Load(name)
	known, _ := n.(*Node)
	return known
}

// Lose loses the messages for which lost returns true; nil: none.
func (f *Fleet) Lose(lost func(from, to string, message []byte) bool) {
	if lost == nil {
		f.lost.Store(nil)
		return
	}
	f.lost.Store(&lost)
}

// open starts a process of the node. The earlier one must have ended.
func (n *Node) open() {
	n.T.Helper()
	f := n.Fleet
	n.Member, n.Dead = &FaultyMember{Member: f.Ledger.Join(n.Name, n.shards)}, false
	if f.Before != nil {
		f.Before(n.Member)
	}
	var own *tasks.Scheduler
	opened := make(chan struct{})
	defer close(opened)
	calls := n.calls(func() *tasks.Scheduler {
		<-opened
		return own
	})
	var err error
	if own, err = OpenWith(n.T.Context(), n.Member, n.Cfg, Parts{Peers: calls}); err != nil {
		n.T.Fatalf("Open of %s: %v", n.Name, err)
	}
	n.Scheduler = own
}

// calls are the calls of a process to its peers, as in production, but for the faults of a test.
func (n *Node) calls(own func() *tasks.Scheduler) cluster.PeerCalls {
	calls := cluster.PeerCalls{
		CallRelease: func(ctx context.Context, peer string, shardID recovery.ShardID) error {
			if p := n.Fleet.Node(peer); p != nil && p.Keeps.Load() {
				return tasks.ErrUnavailable
			}
			return callAbout(ctx, own(), peer, cluster.ReleaseMethod, shardID)
		},
		CallOfferShard: func(ctx context.Context, peer string, shardID recovery.ShardID) error {
			if p := n.Fleet.Node(peer); p != nil && p.Mute.Load() {
				<-ctx.Done()
				return fmt.Errorf("%w: %w", tasks.ErrUnknown, ctx.Err())
			}
			return callAbout(ctx, own(), peer, cluster.OfferShardMethod, shardID)
		},
	}
	if n.Fleet.Spies {
		calls.Settle = func(ctx context.Context, _ recovery.ShardID, v tasks.Verdict, receipts []string) ([]tasks.Settled, error) {
			for range receipts {
				n.Told.Add(fmt.Sprint(v.Verb, " ", v.Reason))
			}
			return own().Settle(ctx, v, receipts)
		}
	}
	return calls
}

// callAbout calls a method of a peer whose query is about a shard.
func callAbout[Q any](ctx context.Context, s *tasks.Scheduler, peer string, m cluster.Method[Q, struct{}], shardID recovery.ShardID) error {
	var query Q
	text, err := json.Marshal(map[string]recovery.ShardID{"Home": shardID})
	if err == nil {
		err = json.Unmarshal(text, &query)
	}
	if err != nil {
		return err
	}
	_, err = cluster.Call(ctx, Cluster(s), peer, m, query)
	return err
}

// Restart starts the next process of a node that has ended.
func (n *Node) Restart() {
	n.T.Helper()
	n.open()
}

// Stop closes the process, unless it is dead.
func (n *Node) Stop() {
	if !n.Dead {
		n.Dead = true
		_ = n.Close(context.Background()) // some have lost what they held
	}
}

// Crash ends the process as kill -9 would.
func (n *Node) Crash() {
	n.Member.Crash()
	n.Member.Heal()
	n.Dead = true
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = n.Close(ctx)
}
