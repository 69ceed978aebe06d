package redisledger

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
)

// SpoolMark implements recovery.SpoolMarks. Redis' answer is final: only a spool's own process
// writes its mark, while it holds the shard, and a late batch of a process that held the shard
// before is refused.
func (l *Ledger) SpoolMark(ctx context.Context, spool, id string) (int64, error) {
	done, err := l.use(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	keys, err := l.member.KeysOf(ctx, id)
	if err != nil {
		return 0, err
	}
	number, err := l.client.HGet(ctx, keys.Tasks(), layout.MarkPrefix+spool).Int64()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return number, err
}
