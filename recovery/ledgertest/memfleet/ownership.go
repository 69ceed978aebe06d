package memfleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/internal/memshard"
)

// ShardID implements recovery.Fleet.
func (m *Member) ShardID(n int) recovery.ShardID {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	return m.shardIDs[n]
}

// Locate implements recovery.Fleet.
func (m *Member) Locate(ctx context.Context, shardID recovery.ShardID, _ bool) (recovery.Holder, error) {
	if err := m.lock(ctx); err != nil {
		return recovery.Holder{}, err
	}
	defer m.f.mu.Unlock()
	s := m.f.shards[shardID]
	if s == nil || s.holder == nil {
		return recovery.Holder{Shard: -1}, nil
	}
	return m.holderLocked(s), nil
}

func (m *Member) holderLocked(s *fleetShard) recovery.Holder {
	return recovery.Holder{Shard: m.termLocked(s.shardID), Node: s.holder.name, Live: !s.holder.dead}
}

// ShardIDs implements recovery.Fleet.
func (m *Member) ShardIDs(ctx context.Context) ([]recovery.ShardID, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	return slices.Sorted(maps.Keys(m.f.shards)), nil
}

// Holders implements recovery.Fleet.
func (m *Member) Holders(ctx context.Context, shardIDs []recovery.ShardID) (map[recovery.ShardID]recovery.Holder, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	all := make(map[recovery.ShardID]recovery.Holder, len(shardIDs))
	for _, shardID := range shardIDs {
		if s := m.f.shards[shardID]; s != nil && s.holder != nil {
			all[shardID] = m.holderLocked(s)
		}
	}
	return all, nil
}

// failoverAfter is what Standing says. A test decides itself when a node adopts another's shards.
const failoverAfter = 10 * time.Second

// Standing implements recovery.Fleet.
func (m *Member) Standing() recovery.Standing {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	alone := len(m.f.members) == 1
	return recovery.Standing{Alone: alone, Certain: alone || !m.uncertain, Acquiring: m.acquiring > 0, FailoverAfter: failoverAfter}
}

// Peers implements recovery.Fleet.
func (m *Member) Peers(ctx context.Context) ([]recovery.Node, error) { return m.Nodes(ctx) }

// Nodes implements recovery.Fleet.
func (m *Member) Nodes(ctx context.Context) ([]recovery.Node, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	members := slices.SortedFunc(maps.Values(m.f.members), func(a, b *Member) int { return cmp.Compare(a.name, b.name) })
	nodes := make([]recovery.Node, len(members))
	asks := make([]func() []byte, len(members))
	for i, o := range members {
		nodes[i] = recovery.Node{Name: o.name, Number: o.number, Self: o == m, Live: !o.dead, Shards: o.count, Indexed: !o.unindexed, Spools: o.spool != "", MissingSpools: o.missing}
		if o.dead {
			nodes[i].Silent = time.Since(o.died)
		}
		asks[i] = o.watcher.Status
		for _, s := range m.f.shards {
			if s.holder == o && s.shardID.Node() == o.number {
				nodes[i].Held++
			} else if s.holder == o {
				nodes[i].Adopted++
			}
		}
	}
	m.f.mu.Unlock()
	for i, ask := range asks {
		if ask != nil && nodes[i].Live {
			nodes[i].Status = ask()
		}
	}
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	for i, o := range members {
		if nodes[i].Live {
			o.status = nodes[i].Status
		}
		nodes[i].LastStatus = o.status
	}
	return nodes, nil
}

// OpenSpool implements recovery.Fleet.
func (m *Member) OpenSpool(ctx context.Context, spool string) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	if m.spool != "" && m.spool != spool {
		m.missing = append(m.missing, m.spool)
	}
	m.missing = slices.DeleteFunc(slices.Clone(m.missing), func(missing string) bool { return missing == spool })
	m.spool = spool
	return nil
}

// EmptiedSpool implements recovery.Fleet.
func (m *Member) EmptiedSpool(ctx context.Context) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	m.spool = ""
	return nil
}

// GiveUpSpools implements recovery.Fleet.
func (m *Member) GiveUpSpools(ctx context.Context, node string) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	if o := m.f.members[node]; o != nil {
		o.missing = nil
	}
	return nil
}

// Position implements recovery.Fleet.
func (m *Member) Position(n int) (string, error) {
	s, err := m.lockShard(context.Background(), n)
	if err != nil {
		return "", err
	}
	defer m.f.mu.Unlock()
	return s.position(), nil
}

// ReadAhead implements recovery.Fleet.
func (m *Member) ReadAhead(ctx context.Context, shardID recovery.ShardID, position string, pending func([]recovery.Entry) error, dead func(recovery.Entry)) (whole bool, err error) {
	if err := m.lock(ctx); err != nil {
		return false, err
	}
	s := m.f.shards[shardID]
	if s == nil || s.position() != position {
		m.f.mu.Unlock()
		return false, fmt.Errorf("memory ledger: shard %v is not at %s", shardID, position)
	}
	var page, index []recovery.Entry
	for id, r := range s.Pending {
		page = append(page, memshard.NewEntry(-1, id, r).HandOut())
	}
	for id, r := range s.Dead {
		index = append(index, memshard.NewEntry(-1, id, r).HandOut())
	}
	m.f.mu.Unlock()
	for _, e := range index {
		dead(e)
	}
	return true, pending(page)
}

// position names the shard's state.
func (s *fleetShard) position() string {
	if s.holder == nil {
		return ""
	}
	return fmt.Sprint(s.holder.name, " ", s.batches)
}

// Transfer implements recovery.Fleet.
func (m *Member) Transfer(ctx context.Context, n int, to, position string) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	receiver := m.f.members[to]
	if receiver == nil || receiver.dead {
		return fmt.Errorf("memory ledger: node %s does not live", to)
	}
	if s.position() != position {
		return fmt.Errorf("memory ledger: shard is not at %s", position)
	}
	s.holder, m.terms[n] = receiver, nil
	return nil
}

// Accept implements recovery.Fleet.
func (m *Member) Accept(ctx context.Context, shardID recovery.ShardID) (bool, error) {
	if err := m.lock(ctx); err != nil {
		return false, err
	}
	defer m.f.mu.Unlock()
	s := m.f.shards[shardID]
	if s == nil || s.holder != m {
		return false, nil
	}
	if m.termLocked(shardID) < 0 {
		m.acquireLocked(s, true)
	}
	return true, nil
}

// Forget implements recovery.Fleet.
func (m *Member) Forget(n int) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if m.terms[n] == nil {
		m.forgotten[n] = true
	}
}
