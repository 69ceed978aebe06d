package ledgertest

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
)

// Null is a ledger that confirms all and keeps nothing. In benchmarks it is the floor: the rest is
// the cost of everything but the ledger.
type Null struct{}

// Adopt grants one shard with large batches.
func (Null) Adopt(context.Context) (recovery.Terms, error) {
	return recovery.Terms{Shards: 1, ShardOf: func([]byte) int { return 0 }, MaxChanges: 4096, MaxBytes: 4 << 20}, nil
}

// Apply confirms.
func (Null) Apply(context.Context, int, *recovery.Batch) error { return nil }

// Get finds everything, so that an audit has nothing to repair.
func (Null) Get(_ context.Context, _ int, refs []recovery.Ref, found func(int, recovery.Entry)) error {
	for i := range refs {
		found(i, recovery.Entry{})
	}
	return nil
}

// Scan finds nothing.
func (Null) Scan(context.Context, func([]recovery.Entry) error) error { return nil }

// GetDead finds nothing.
func (Null) GetDead(context.Context, []string, func(int, recovery.Entry)) error { return nil }

// ListDead finds nothing.
func (Null) ListDead(context.Context, string, recovery.Ref, func(recovery.Entry) bool) error {
	return nil
}

// Close does nothing.
func (Null) Close() error { return nil }
