package redisledger

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// Inherited implements recovery.Heir. What Redis answers is final: the marks of a spool
// are written by who holds the shard, and a late batch of a process that held it before
// is refused.
func (l *Ledger) Inherited(ctx context.Context, spool, id string) (int64, error) {
	done, err := l.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	keys := l.keys.shard(l.opts.Node, shardOf([]byte(id), l.opts.Shards))
	number, err := l.client.HGet(ctx, keys.tasks(), markPrefix+spool).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return number, err
}
