package recovery

import (
	"context"
	"errors"
	"fmt"
)

// Auditee is a memory that can be compared with its ledger.
type Auditee interface {
	// Sample returns up to n records of a shard that are at rest, with no
	// write under way, and goes on where the last call stopped, round and
	// round.
	Sample(shard int, n int) []Ref
	// Repair is told which of them the ledger does not hold. Memory looks
	// again under its lock, writes anew those that are still at rest where
	// they were, and returns how many.
	Repair(shard int, missing []Ref) int
}

// Audit compares a slice of memory, up to n records of each of the shards, with
// the ledger, and has what is missing there written anew. Outside a fault it
// repairs nothing. A shard that cannot be read does not keep the others from
// being looked at; the error joins what went wrong.
func Audit(ctx context.Context, l Ledger, a Auditee, shards, n int) (checked, repaired int, err error) {
	var errs []error
	for shard := range shards {
		refs := a.Sample(shard, n)
		if len(refs) == 0 {
			continue
		}
		held := make([]bool, len(refs))
		if err := l.Get(ctx, shard, refs, func(i int, _ Entry) { held[i] = true }); err != nil {
			errs = append(errs, fmt.Errorf("audit of shard %d: %w", shard, err))
			if errors.Is(err, ErrClosed) || ctx.Err() != nil {
				break
			}
			continue
		}
		checked += len(refs)
		missing := refs[:0:0]
		for i, ref := range refs {
			if !held[i] {
				missing = append(missing, ref)
			}
		}
		if len(missing) > 0 {
			repaired += a.Repair(shard, missing)
		}
	}
	return checked, repaired, errors.Join(errs...)
}
