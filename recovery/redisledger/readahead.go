package redisledger

import (
	"bytes"
	"context"
	"fmt"
	"time"

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
	if whole, err = l.readAhead(ctx, shardID, position, pending, dead); err == nil {
		l.member.NoteAhead(shardID, position)
	}
	return whole, err
}

func (l *Ledger) readAhead(ctx context.Context, shardID recovery.ShardID, position string, pending func([]recovery.Entry) error, dead func(recovery.Entry)) (whole bool, err error) {
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
		err = l.readDeadAhead(ctx, s, dead)
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

const (
	// diedLately is how long ago a task has died at most whose record is read ahead: a failover may
	// lose its burial. The clocks of nodes differ by less.
	diedLately = time.Minute
	// recordsAhead is how many such records are read at most.
	recordsAhead = 20_000
)

// readDeadAhead visits the dead of a shard, with the records of those that died lately.
func (l *Ledger) readDeadAhead(ctx context.Context, s *member.Shard, dead func(recovery.Entry)) error {
	since := time.Now().Add(-diedLately).UnixMilli()
	var lately []recovery.Entry
	err := l.scanDead(ctx, s, func(e recovery.Entry) {
		e.ID = bytes.Clone(e.ID)
		if e.Spot.At >= since && len(lately) < recordsAhead {
			lately = append(lately, e)
			return
		}
		dead(e)
	})
	if err != nil {
		return err
	}
	ids := make([]string, len(lately))
	for i := range lately {
		ids[i] = string(lately[i].ID)
	}
	key := s.Keys.Dead()
	return l.bulk.ReadMany(ctx, &l.bulk.Dead, len(ids), func(i int) (string, *string) { return key, &ids[i] },
		func(i int, value string, there bool) {
			var h handler
			if e, readable := h.dead(ids[i], value); there && readable {
				lately[i].Data = e.Data
			}
			dead(lately[i])
		})
}
