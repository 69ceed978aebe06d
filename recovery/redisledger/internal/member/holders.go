package member

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/clock"
)

// ShardIDs lists the shards of all nodes, see recovery.Fleet, with one read of the registry.
func (m *Member) ShardIDs(ctx context.Context) ([]recovery.ShardID, error) {
	if err := m.Poll(ctx); err != nil {
		return nil, err
	}
	w := &m.peers
	w.mu.Lock()
	err := m.completeLocked()
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	shards := w.allShards()
	shardIDs := make([]recovery.ShardID, len(shards))
	for i, h := range shards {
		shardIDs[i] = h.shardID
	}
	return shardIDs, nil
}

// Holders returns the holders of shards, see recovery.Fleet, with one read of the registry and one
// of the tokens of
// these shards.
func (m *Member) Holders(ctx context.Context, shardIDs []recovery.ShardID) (map[recovery.ShardID]recovery.Holder, error) {
	if len(shardIDs) == 0 {
		return nil, nil
	}
	if err := m.Poll(ctx); err != nil {
		return nil, err
	}
	w := &m.peers
	wanted := make(map[recovery.ShardID]bool, len(shardIDs))
	for _, shardID := range shardIDs {
		wanted[shardID] = true
	}
	shards := slices.DeleteFunc(w.allShards(), func(h seenShard) bool { return !wanted[h.shardID] })
	if err := m.refreshTokens(ctx, shards); err != nil {
		return nil, err
	}
	mine := m.table.Load().byShardID
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := m.completeLocked(); err != nil {
		return nil, err
	}
	all := make(map[recovery.ShardID]recovery.Holder, len(shards))
	for _, h := range shards {
		h.token = w.tokens[h.shardID].Token
		switch {
		case h.token.Retired(), h.token.Node == "" && !m.startsLocked(h):
		case h.token.Node == "":
			return nil, fmt.Errorf("shard %d of node %s has no owner on record yet", h.index, h.node)
		default:
			holder := recovery.Holder{Shard: -1, Node: h.token.Node, Live: m.livenessLocked(h.token) == living}
			if s := mine[h.shardID]; s != nil && s.isHeld() && holder.Node == m.Self.Node {
				holder.Shard, holder.Live = s.Number, true
			}
			all[h.shardID] = holder
		}
	}
	return all, nil
}

// completeLocked returns why the registry may not have all nodes and their shards, or nil.
func (m *Member) completeLocked() error {
	w := &m.peers
	if me := w.nodes[m.Self.Node]; me == nil || me.entry.Incarnation != m.Self.Incarnation {
		return fmt.Errorf("node %s is not registered at the moment", m.Self.Node)
	}
	for name, since := range w.vanished {
		if clock.Between(since, time.Now()) < m.FailoverAfter {
			return fmt.Errorf("the registration of node %s is lost, which was alive", name)
		}
	}
	for name, s := range w.nodes {
		switch {
		case s.fault != nil:
			return s.fault
		case s.number == 0:
			return fmt.Errorf("node %s has no number yet", name)
		}
	}
	return nil
}

// startsLocked reports whether a shard without a token is one of those that its node uses: the
// node is about to claim it, for the first time or because Redis has lost its data.
func (m *Member) startsLocked(h seenShard) bool {
	s := m.peers.nodes[h.node]
	return s != nil && len(s.entry.Counts) > 0 && h.index < s.entry.Counts[len(s.entry.Counts)-1] && !s.entry.Released && !m.deadLocked(s)
}
