package redisledger

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// Inherited implements recovery.Heir. Redis' answer is final: only a spool's own process writes
// its mark, while it holds the shard, and a late batch of a process that held the shard before
// is refused.
func (l *Ledger) Inherited(ctx context.Context, spool, id string) (int64, error) {
	done, err := l.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	keys := l.keys.Shard(l.opts.Node, layout.ShardOf([]byte(id), l.opts.Shards))
	if home, tells := recovery.HomeOf(id); tells {
		if s := l.member.table.Load().byHome[home]; s != nil {
			keys = s.keys
		} else if node, err := l.member.nodeOf(ctx, home.Node()); err != nil {
			return 0, err
		} else if node != "" {
			keys = l.keys.Shard(node, home.Shard())
		}
	}
	number, err := l.client.HGet(ctx, keys.Tasks(), layout.MarkPrefix+spool).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return number, err
}
