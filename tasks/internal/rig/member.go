package rig

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
)

// A FaultyMember is a member of a fleet with faults, which a test turns on and off.
type FaultyMember struct {
	*memfleet.Member

	Retired    atomic.Bool   // Locate says so of all shards
	Renumbered atomic.Uint32 // the node's number, once it has got another one
	Unaware    atomic.Bool   // Nodes does not tell yet what the memory of others says

	Delay time.Duration // of each batch; does not change

	Reading atomic.Int64 // nanoseconds that ListDead takes for each task

	mu     sync.Mutex // guards everything below
	gates  map[string]chan struct{}
	faults map[string][]error
}

// Hold keeps the calls of a method waiting, until release is called or their context ends.
func (m *FaultyMember) Hold(method string) (release func()) {
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

// Fail makes the next calls of a method fail, one for each error.
func (m *FaultyMember) Fail(method string, errs ...error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.faults == nil {
		m.faults = make(map[string][]error)
	}
	m.faults[method] = errs
}

// Heal ends all faults.
func (m *FaultyMember) Heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = nil
	for _, gate := range m.gates {
		close(gate)
	}
	m.gates = nil
}

func (m *FaultyMember) pass(ctx context.Context, method string) error {
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

// Watch is that of the Member, with the faults of the test.
func (m *FaultyMember) Watch(w recovery.Watcher) {
	if acquired := w.Acquired; acquired != nil {
		w.Acquired = func(n int, transferred bool) {
			_ = m.pass(context.Background(), "Acquired")
			acquired(n, transferred)
		}
	}
	m.Member.Watch(w)
}

// Send may fail, or take its time.
func (m *FaultyMember) Send(ctx context.Context, to string, message []byte) error {
	if err := m.pass(ctx, "Send"); err != nil {
		return err
	}
	return m.Member.Send(ctx, to, message)
}

// Update may be answered late.
func (m *FaultyMember) Update(ctx context.Context, changes []recovery.DirectoryUpdate) ([]recovery.DirectoryEntry, error) {
	if err := m.pass(ctx, "Update"); err != nil {
		return nil, err
	}
	return m.Member.Update(ctx, changes)
}

// Apply is that of the Member, with the faults of the test.
func (m *FaultyMember) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	time.Sleep(m.Delay)
	if err := m.pass(ctx, "Apply"); err != nil {
		return err
	}
	if err := m.Member.Apply(ctx, shard, b); err != nil {
		return err
	}
	return m.pass(ctx, "Applied") // its answer may be lost
}

// ListDead is that of the Member, with the faults of the test.
func (m *FaultyMember) ListDead(ctx context.Context, label string, after recovery.Ref, visit func(e recovery.Entry) bool) error {
	if err := m.pass(ctx, "ListDead"); err != nil {
		return err
	}
	return m.Member.ListDead(ctx, label, after, func(e recovery.Entry) bool {
		time.Sleep(time.Duration(m.Reading.Load()))
		return ctx.Err() == nil && visit(e)
	})
}

// Transfer is that of the Member, with the faults of the test.
func (m *FaultyMember) Transfer(ctx context.Context, shard int, to, position string) error {
	if err := m.pass(ctx, "Transfer"); err != nil {
		return err
	}
	err := m.Member.Transfer(ctx, shard, to, position)
	if lost := m.pass(ctx, "Transferred"); lost != nil {
		return lost // instead of its answer
	}
	return err
}

// ReadAhead is that of the Member, with the faults of the test.
func (m *FaultyMember) ReadAhead(ctx context.Context, shardID recovery.ShardID, position string, pending func([]recovery.Entry) error, dead func(recovery.Entry)) (bool, error) {
	if err := m.pass(ctx, "ReadAhead"); err != nil {
		return false, err
	}
	return m.Member.ReadAhead(ctx, shardID, position, pending, dead)
}

// OpenSpool is that of the Member, with the faults of the test.
func (m *FaultyMember) OpenSpool(ctx context.Context, spool string) error {
	if err := m.pass(ctx, "OpenSpool"); err != nil {
		return err
	}
	return m.Member.OpenSpool(ctx, spool)
}

// Accept is that of the Member, with the faults of the test.
func (m *FaultyMember) Accept(ctx context.Context, shardID recovery.ShardID) (bool, error) {
	if err := m.pass(ctx, "Accept"); err != nil {
		return false, err
	}
	return m.Member.Accept(ctx, shardID)
}

// Nodes is that of the Member, with the faults of the test.
func (m *FaultyMember) Nodes(ctx context.Context) ([]recovery.Node, error) {
	nodes, err := m.Member.Nodes(ctx)
	for i := range nodes {
		if m.Unaware.Load() {
			nodes[i].Status = nil
		}
	}
	return nodes, err
}

// ShardID is that of the Member, with the faults of the test.
func (m *FaultyMember) ShardID(n int) recovery.ShardID {
	if number := m.Renumbered.Load(); number != 0 {
		return recovery.NewShardID(uint16(number), n)
	}
	return m.Member.ShardID(n)
}

// Locate is that of the Member, with the faults of the test.
func (m *FaultyMember) Locate(ctx context.Context, shardID recovery.ShardID, anew bool) (recovery.Holder, error) {
	if m.Retired.Load() {
		return recovery.Holder{Shard: -1, Retired: true}, nil
	}
	return m.Member.Locate(ctx, shardID, anew)
}

// Scan is that of the Member, with the faults of the test.
func (m *FaultyMember) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	if err := m.pass(ctx, "Scan"); err != nil {
		return err
	}
	return m.Member.Scan(ctx, page)
}

// ScanShard is that of the Member, with the faults of the test.
func (m *FaultyMember) ScanShard(ctx context.Context, shard int, page func([]recovery.Entry) error) error {
	if err := m.pass(ctx, "ScanShard"); err != nil {
		return err
	}
	return m.Member.ScanShard(ctx, shard, page)
}

// ScanDead is that of the Member, with the faults of the test.
func (m *FaultyMember) ScanDead(ctx context.Context, shard int, visit func(e recovery.Entry)) error {
	if err := m.pass(ctx, "ScanDead"); err != nil {
		return err
	}
	return m.Member.ScanDead(ctx, shard, visit)
}

// EachSetting may stop after the first setting, by name, until it goes on.
func (m *FaultyMember) EachSetting(ctx context.Context, prefix string, visit func(name string, value []byte, revision int64)) error {
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

// Setting is that of the Member, with the faults of the test.
func (m *FaultyMember) Setting(ctx context.Context, name string) ([]byte, int64, error) {
	if err := m.pass(ctx, "Setting"); err != nil {
		return nil, 0, err
	}
	return m.Member.Setting(ctx, name)
}
