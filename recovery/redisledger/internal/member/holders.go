package member

import (
	"context"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
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
		case h.token.Retired():
		case h.token.Node == "":
			return nil, fmt.Errorf("%w: shard %d of node %s has no token", recovery.ErrOwnerLost, h.index, h.node)
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
	if err := m.missingLocked(); err != nil {
		return err
	}
	for _, s := range w.nodes {
		if s.fault != nil {
			return s.fault
		}
	}
	return nil
}
