package redisledger

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
)

// ReadAhead implements recovery.Fleet. It reads the hash of records, each page with its values, and
// then compares owner and number of the last batch on the same connection: the holder writes
// nothing meanwhile, so they are the same before and after unless Redis has lost something.
func (l *Ledger) ReadAhead(ctx context.Context, shardID recovery.ShardID, position string, pending func([]recovery.Entry) error, dead func(recovery.Entry)) (whole bool, err error) {
	done, err := l.use(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	keys, known, err := l.member.KeysOfShard(ctx, shardID)
	if err == nil && !known {
		err = fmt.Errorf("the node of shard %v is not registered", shardID)
	}
	if err != nil {
		return false, err
	}
	c, err := l.client.Connection(ctx, keys.Tasks())
	if err != nil {
		return false, err
	}
	defer c.Close()
	s := &member.Shard{Number: -1, Keys: keys}
	scan := shardScan{l: l, s: s, conn: c}
	err = walk(ctx, &scan, scan.records, pending)
	if err == nil {
		err = l.scanDead(ctx, s, dead)
	}
	if err != nil {
		l.client.Redirected(ctx, err)
		return false, fmt.Errorf("reading shard %v ahead: %w", shardID, err)
	}
	// The dead were read over other connections, which may lead to another server by now.
	for _, p := range []conn.Processor{l.client, c} {
		v, err := member.Verify(ctx, p, keys)
		switch {
		case err != nil:
			return false, fmt.Errorf("reading shard %v ahead: %w", shardID, err)
		case v.Position() != position:
			return false, fmt.Errorf("reading shard %v ahead: it is at %s, not at %s", shardID, v.Position(), position)
		}
		whole = v.Records == v.IDs
	}
	return whole, nil
}
