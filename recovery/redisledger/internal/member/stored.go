package member

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// Stored implements recovery.KeyLister.
func (m *Member) Stored(ctx context.Context, node string, shards int) ([]recovery.StoredShard, error) {
	if err := layout.ValidNode(node); err != nil {
		return nil, err
	}
	shards = min(shards, MaxShards)
	sizes, err := m.sizes(ctx, shards, func(i int) layout.ShardKeys { return m.Keys.Shard(node, i) })
	if err != nil {
		return nil, err
	}
	named := make([]seenShard, shards)
	for i := range named {
		named[i] = seenShard{node: node, index: i}
	}
	owners, err := m.readTokens(ctx, named)
	if err != nil {
		return nil, err
	}
	all := make([]recovery.StoredShard, shards)
	for i := range all {
		keys := m.Keys.Shard(node, i)
		all[i] = recovery.StoredShard{Pending: keys.Pending(), Tasks: keys.Tasks(), Count: sizes[i]}
	}
	for _, s := range owners.shards {
		if !s.token.Retired() && !s.token.Unreadable() {
			all[s.index].Owner = s.token.Node
		}
	}
	return all, nil
}
