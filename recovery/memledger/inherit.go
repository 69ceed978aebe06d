package memledger

import (
	"context"
	"hash/maphash"

	"github.com/lapsehq/lapse/recovery"
)

// Inherited implements recovery.Heir.
func (l *Ledger) Inherited(ctx context.Context, spool, id string) (int64, error) {
	if err := l.lock(ctx); err != nil {
		return 0, err
	}
	defer l.s.mu.Unlock()
	return l.s.shards[l.s.shardOf([]byte(id))].marks[spool], nil
}

// shardOf is the shard of a new record.
func (s *store) shardOf(id []byte) int {
	return int(maphash.Bytes(s.seed, id) % uint64(len(s.shards)))
}

// Inherited implements recovery.Heir.
func (m *Member) Inherited(ctx context.Context, spool, id string) (int64, error) {
	if err := m.lock(ctx); err != nil {
		return 0, err
	}
	defer m.f.mu.Unlock()
	home, _ := recovery.HomeOf(id)
	if s := m.f.shards[home]; s != nil {
		return s.marks[spool], nil
	}
	return 0, nil
}
