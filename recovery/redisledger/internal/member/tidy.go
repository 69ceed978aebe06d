package member

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
)

// tidy retires empty shards of nodes that are long dead, and removes nodes without shards from
// the registry.
func (m *Member) tidy(ctx context.Context, found ownerList) {
	gone := m.longDead()
	if len(gone) == 0 || !m.Standing().Certain {
		return
	}
	for _, s := range m.table.Load().all() {
		if gone[s.node] == nil {
			continue
		}
		if err := m.RetireAdopted(ctx, s); err != nil {
			return
		}
	}
	for _, h := range found.shards {
		if h.raw != "" && !h.token.Retired() {
			delete(gone, h.node)
		}
	}
	for node, s := range gone {
		if found.partial[node] {
			continue
		}
		keys := []string{m.Keys.Nodes(), m.Keys.Heartbeat(node), m.Keys.Status(), m.Keys.Numbers()}
		forgotten, err := conn.ForgetScript.Run(ctx, m.Client, keys, node, s.raw, s.count, int(s.number)).Bool()
		if err != nil && !errors.Is(err, redis.Nil) {
			return
		}
		if forgotten {
			m.Log.Info("a dead node without shards was removed from the registry", "of", node)
		}
	}
}

// longDead returns the nodes without a heartbeat for forgetAfter.
func (m *Member) longDead() map[string]*peerState {
	w := &m.peers
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := map[string]*peerState{}
	for name, s := range w.nodes {
		if name != m.Self.Node && s.fault == nil && m.deadLocked(s) && w.silentLocked(s) >= m.times(forgetAfter) {
			seen := *s
			gone[name] = &seen
		}
	}
	return gone
}

// RetireAdopted retires a shard of another node, if it is empty.
func (m *Member) RetireAdopted(ctx context.Context, s *Shard) error {
	if !s.turn.TryLock() {
		return nil // something is being written
	}
	defer s.turn.Unlock()
	if !s.isHeld() || s.open != 0 {
		return nil
	}
	retired, err := m.retireInTurn(ctx, s)
	if retired {
		_ = m.endTermInTurn(s, fmt.Errorf("%w: shard %d", recovery.ErrRetired, s.Number))
	}
	return err
}
