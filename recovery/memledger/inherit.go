package memledger

import (
	"context"

	"github.com/cespare/xxhash/v2"
)

// SpoolMark implements recovery.SpoolMarks.
func (l *Ledger) SpoolMark(ctx context.Context, spool, id string) (int64, error) {
	if err := l.lock(ctx); err != nil {
		return 0, err
	}
	defer l.s.mu.Unlock()
	return l.s.shards[l.s.shardOf([]byte(id))].Marks[spool], nil
}

// shardOf is the shard of a new record. It is the same in each process, so that a test can be
// repeated.
func (s *store) shardOf(id []byte) int {
	return int(xxhash.Sum64(id) % uint64(len(s.shards)))
}
