package memfleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// Home implements recovery.Fleet.
func (m *Member) Home(n int) recovery.Home {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	return m.homes[n]
}

// Locate implements recovery.Fleet.
func (m *Member) Locate(ctx context.Context, home recovery.Home, _ bool) (recovery.Holder, error) {
	if err := m.lock(ctx); err != nil {
		return recovery.Holder{}, err
	}
	defer m.f.mu.Unlock()
	s := m.f.shards[home]
	if s == nil || s.holder == nil {
		return recovery.Holder{Shard: -1}, nil
	}
	return m.holderLocked(s), nil
}

func (m *Member) holderLocked(s *fleetShard) recovery.Holder {
	return recovery.Holder{Shard: m.termLocked(s.home), Node: s.holder.name, Live: !s.holder.dead}
}

// Homes implements recovery.Fleet.
func (m *Member) Homes(ctx context.Context) ([]recovery.Home, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	return slices.Sorted(maps.Keys(m.f.shards)), nil
}

// Holders implements recovery.Fleet.
func (m *Member) Holders(ctx context.Context, homes []recovery.Home) (map[recovery.Home]recovery.Holder, error) {
	if err := m.lock(ctx); err != nil {
		return nil, err
	}
	defer m.f.mu.Unlock()
	all := make(map[recovery.Home]recovery.Holder, len(homes))
	for _, home := range homes {
		if s := m.f.shards[home]; s != nil && s.holder != nil {
			all[home] = m.holderLocked(s)
		}
	}
	return all, nil
}

// Standing implements recovery.Fleet.
func (m *Member) Standing() recovery.Standing {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	alone := len(m.f.members) == 1
	return recovery.Standing{Alone: alone, Certain: alone || !m.uncertain, Gaining: m.acquiring > 0}
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
		nodes[i] = recovery.Node{Name: o.name, Number: o.number, Self: o == m, Live: !o.dead, Shards: o.count, Indexed: !o.unindexed, Spools: o.spools}
		asks[i] = o.watcher.Status
		for _, s := range m.f.shards {
			if s.holder == o && s.home.Node() == o.number {
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

// MarkSpooling implements recovery.Fleet.
func (m *Member) MarkSpooling(ctx context.Context, spools bool) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	m.spools = spools
	return nil
}

// Yield implements recovery.Fleet.
func (m *Member) Yield(ctx context.Context, n int, to string) error {
	s, err := m.lockShard(ctx, n)
	if err != nil {
		return err
	}
	defer m.f.mu.Unlock()
	receiver := m.f.members[to]
	if receiver == nil || receiver.dead {
		return fmt.Errorf("memory ledger: node %s does not live", to)
	}
	s.holder, m.terms[n] = receiver, nil
	return nil
}

// Accept implements recovery.Fleet.
func (m *Member) Accept(ctx context.Context, home recovery.Home) (bool, error) {
	if err := m.lock(ctx); err != nil {
		return false, err
	}
	defer m.f.mu.Unlock()
	s := m.f.shards[home]
	if s == nil || s.holder != m {
		return false, nil
	}
	if m.termLocked(home) < 0 {
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
