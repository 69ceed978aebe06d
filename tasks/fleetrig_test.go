package tasks

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// A fleetRig is several nodes that share a ledger in memory, and ask one another without
// a relay.
type fleetRig struct {
	t      *testing.T
	ledger *memfleet.Fleet
	nodes  map[string]*fleetNode
	before func(m *faultyMember) // is called before a node is opened
}

// A fleetNode is one process of them.
type fleetNode struct {
	*Scheduler
	t      *testing.T
	rig    *fleetRig
	member *faultyMember
	log    *logged
	told   collection[string] // verdicts that were sent to other nodes
	keeps  atomic.Bool        // it releases nothing
	mute   atomic.Bool        // it answers nothing when it is to take a shard
}

// fleetBubble runs a test with fake time, on a fleet.
func fleetBubble(t *testing.T, test func(t *testing.T, f *fleetRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fleetRig{t: t, ledger: memfleet.New(), nodes: make(map[string]*fleetNode)}
		defer func() {
			for _, n := range f.nodes {
				n.member.heal()
				_ = n.Close(context.Background())
			}
		}()
		test(t, f)
	})
}

// A speechless ledger has neither a directory nor a bus: each node answers only for what
// it holds itself, which is what these tests are about.
type speechless struct {
	recovery.Fleet
	recovery.Settings
	recovery.Finder
	recovery.SpoolMarks
}

// join starts a node, again or for the first time.
func (f *fleetRig) join(name string, shards int, cfg Config) *fleetNode {
	f.t.Helper()
	n := &fleetNode{t: f.t, rig: f, member: &faultyMember{Member: f.ledger.Join(name, shards)}, log: &logged{}}
	cfg.Node, cfg.Log = name, slog.New(slog.NewTextHandler(n.log, nil))
	calls := cluster.PeerCalls{
		CallRelease: func(ctx context.Context, node string, shardID recovery.ShardID) error {
			holder := f.nodes[node]
			if holder == nil || holder.keeps.Load() {
				return ErrUnavailable
			}
			return holder.engine.ReleaseShard(ctx, shardID, name)
		},
		CallOfferShard: func(ctx context.Context, node string, shardID recovery.ShardID) error {
			successor := f.nodes[node]
			if successor.mute.Load() {
				<-ctx.Done()
				return fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
			}
			return successor.cluster.AcceptOffer(ctx, shardID, name)
		},
		Settle: func(ctx context.Context, shardID recovery.ShardID, v Verdict, receipt string) error {
			holder, ok := f.nodes[f.ledger.Holder(shardID)]
			if !ok {
				return ErrUnavailable
			}
			n.told.add(fmt.Sprint(v.Verb, " ", v.Reason))
			answers, err := holder.Settle(ctx, v, []string{receipt})
			if err != nil {
				return err
			}
			return answers[0].Err
		},
	}
	f.nodes[name] = n
	if f.before != nil {
		f.before(n.member)
	}
	var err error
	if n.Scheduler, err = open(f.t.Context(), speechless{n.member, n.member, n.member, n.member}, cfg, parts{peers: calls}); err != nil {
		f.t.Fatal("Open:", err)
	}
	synctest.Wait()
	return n
}

// crash ends a node as kill -9 would.
func (n *fleetNode) crash() {
	n.member.Crash()
	n.member.heal()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = n.Close(ctx)
	delete(n.rig.nodes, n.engine.Config.Node)
}

// adopt has a node adopt what another one holds, and waits until it is in memory.
func (n *fleetNode) adopt(from *fleetNode) {
	n.t.Helper()
	if n.member.AdoptFrom(from.member.Member) == 0 {
		n.t.Fatal("nothing was adopted")
	}
	pass(100 * time.Millisecond)
}

// must schedules a task that has to be accepted, under an id that tells its shard.
func (n *fleetNode) must(r Request) string {
	n.t.Helper()
	task, err := n.Schedule(n.t.Context(), r)
	if err != nil {
		n.t.Fatalf("Schedule: %v", err)
	}
	return task.ID
}

// idAt makes an id that tells a shard of a node's own.
func (n *fleetNode) idAt(shard int) string {
	return recovery.NewShardID(n.engine.NodeNumber, shard).NewID()
}

// pull reserves what is ready of a topic, and wants just these ids.
func (n *fleetNode) pull(topic string, want ...string) []Delivery {
	n.t.Helper()
	ds, err := n.Reserve(n.t.Context(), topic, MaxReserve, 0, 0)
	if err != nil {
		n.t.Fatalf("Reserve: %v", err)
	}
	var got []string
	for i := range ds {
		got = append(got, ds[i].ID)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		n.t.Fatalf("%s reserved %q; want %q", n.engine.Config.Node, got, want)
	}
	return ds
}

func (n *fleetNode) ack(d Delivery) Settled {
	n.t.Helper()
	answers, err := n.Settle(n.t.Context(), Verdict{Verb: Ack}, []string{d.Receipt()})
	if err != nil {
		n.t.Fatal("Settle:", err)
	}
	return answers[0]
}

// check wants memory to be consistent, and to be what the ledger has.
func (n *fleetNode) check() {
	n.t.Helper()
	if err := n.Scheduler.check(n.member); err != nil {
		n.t.Fatalf("%s is inconsistent: %v", n.engine.Config.Node, err)
	}
}

// wantEmpty wants a node to know nothing of any task.
func (n *fleetNode) wantEmpty() {
	n.t.Helper()
	n.engine.Mu.Lock()
	used, graves, open, arriving := n.engine.Store.Len(), len(n.engine.Dead.IDs), len(n.engine.Dispatch.Leases), n.engine.Writes.Arriving
	detached, pending, draining := len(n.engine.Detached.Shards), len(n.engine.Detached.Verdicts), n.engine.Shards.Inactive
	var held int
	for _, h := range n.engine.Shards.List {
		if h != nil {
			held++
		}
	}
	n.engine.Mu.Unlock()
	if used+graves+open+arriving+held+detached+pending+draining != 0 {
		n.t.Fatalf("%s still has %d tasks, %d of the dead, %d open deliveries, %d arriving, %d shards, %d detached, %d pending verdicts, %d leaving",
			n.engine.Config.Node, used, graves, open, arriving, held, detached, pending, draining)
	}
	n.check()
}

// A faultyMember is a member of a fleet that does as it is told.
type faultyMember struct {
	*memfleet.Member

	retired    atomic.Bool   // Locate says so of all shards
	renumbered atomic.Uint32 // the node's number, once it has got another one
	unaware    atomic.Bool   // Nodes does not tell yet what the memory of others says

	mu     sync.Mutex // guards everything below
	gates  map[string]chan struct{}
	faults map[string][]error
}

// hold keeps the calls of a method waiting, until release is called or their context ends.
func (m *faultyMember) hold(method string) (release func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gate := make(chan struct{})
	if m.gates == nil {
		m.gates = make(map[string]chan struct{})
	}
	m.gates[method] = gate
	return sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.gates[method] == gate {
			delete(m.gates, method)
		}
		close(gate)
	})
}

// fail makes the next calls of a method fail, one for each error.
func (m *faultyMember) fail(method string, errs ...error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.faults == nil {
		m.faults = make(map[string][]error)
	}
	m.faults[method] = errs
}

func (m *faultyMember) heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = nil
	for _, gate := range m.gates {
		close(gate)
	}
	m.gates = nil
}

func (m *faultyMember) pass(ctx context.Context, method string) error {
	m.mu.Lock()
	gate := m.gates[method]
	var err error
	if errs := m.faults[method]; len(errs) > 0 {
		err, m.faults[method] = errs[0], errs[1:]
	}
	m.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return err
}

func (m *faultyMember) Watch(w recovery.Watcher) {
	if acquired := w.Acquired; acquired != nil {
		w.Acquired = func(n int, transferred bool) {
			_ = m.pass(context.Background(), "Gained")
			acquired(n, transferred)
		}
	}
	m.Member.Watch(w)
}

// Update may be answered late.
func (m *faultyMember) Update(ctx context.Context, changes []recovery.DirectoryUpdate) ([]recovery.DirectoryEntry, error) {
	if err := m.pass(ctx, "File"); err != nil {
		return nil, err
	}
	return m.Member.Update(ctx, changes)
}

func (m *faultyMember) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	if err := m.pass(ctx, "Apply"); err != nil {
		return err
	}
	if err := m.Member.Apply(ctx, shard, b); err != nil {
		return err
	}
	return m.pass(ctx, "Applied") // its answer may be lost
}

func (m *faultyMember) Transfer(ctx context.Context, shard int, to string) error {
	if err := m.pass(ctx, "Yield"); err != nil {
		return err
	}
	return m.Member.Transfer(ctx, shard, to)
}

func (m *faultyMember) Accept(ctx context.Context, shardID recovery.ShardID) (bool, error) {
	if err := m.pass(ctx, "Accept"); err != nil {
		return false, err
	}
	return m.Member.Accept(ctx, shardID)
}

func (m *faultyMember) Nodes(ctx context.Context) ([]recovery.Node, error) {
	nodes, err := m.Member.Nodes(ctx)
	for i := range nodes {
		if m.unaware.Load() {
			nodes[i].Status = nil
		}
	}
	return nodes, err
}

func (m *faultyMember) ShardID(n int) recovery.ShardID {
	if number := m.renumbered.Load(); number != 0 {
		return recovery.NewShardID(uint16(number), n)
	}
	return m.Member.ShardID(n)
}

func (m *faultyMember) Locate(ctx context.Context, shardID recovery.ShardID, anew bool) (recovery.Holder, error) {
	if m.retired.Load() {
		return recovery.Holder{Shard: -1, Retired: true}, nil
	}
	return m.Member.Locate(ctx, shardID, anew)
}

func (m *faultyMember) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	if err := m.pass(ctx, "Scan"); err != nil {
		return err
	}
	return m.Member.Scan(ctx, page)
}

func (m *faultyMember) ScanShard(ctx context.Context, shard int, page func([]recovery.Entry) error) error {
	if err := m.pass(ctx, "ScanShard"); err != nil {
		return err
	}
	return m.Member.ScanShard(ctx, shard, page)
}

func (m *faultyMember) ScanDead(ctx context.Context, shard int, visit func(e recovery.Entry)) error {
	if err := m.pass(ctx, "ScanDead"); err != nil {
		return err
	}
	return m.Member.ScanDead(ctx, shard, visit)
}

// EachSetting may stop after the first setting, by name, until it goes on.
func (m *faultyMember) EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error {
	type setting struct {
		value    []byte
		revision int64
	}
	all := make(map[string]setting)
	if err := m.Member.EachSetting(ctx, prefix, func(name string, value []byte, revision int64) {
		all[name] = setting{bytes.Clone(value), revision}
	}); err != nil {
		return err
	}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		if i == 1 {
			if err := m.pass(ctx, "EachSetting but one"); err != nil {
				return err
			}
		}
		visit(name, all[name].value, all[name].revision)
	}
	return nil
}

func (m *faultyMember) Setting(ctx context.Context, name string) ([]byte, int64, error) {
	if err := m.pass(ctx, "Setting"); err != nil {
		return nil, 0, err
	}
	return m.Member.Setting(ctx, name)
}
