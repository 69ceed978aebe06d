package recovery

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Auditee is a memory that can be compared with its ledger.
type Auditee interface {
	// Sample returns up to n records of a shard that are at rest, with no write under way.
	// It goes on where the last call stopped, and starts over at the end.
	Sample(shard int, n int) []Ref
	// Again is called when the last sample of a shard could not be read: the next sample
	// begins where that one began.
	Again(shard int)
	// Repair gets those records that the ledger does not hold. It checks them again under
	// memory's lock, writes those that are still at rest at the same place, and returns how
	// many.
	Repair(shard int, missing []Ref) int
}

// Audit compares a slice of memory, up to n records of each shard, with the ledger, and has
// missing records written again. Without a fault it repairs nothing. The ledger has the time
// within for each shard. A shard that cannot be read does not keep the others from being
// audited; the error joins all failures.
func Audit(ctx context.Context, l Ledger, a Auditee, shards []int, n int, within time.Duration) (checked, repaired int, err error) {
	var errs []error
	for _, shard := range shards {
		refs := a.Sample(shard, n)
		if len(refs) == 0 {
			continue
		}
		missing, err := absentees(ctx, l, shard, refs, within)
		if err != nil {
			a.Again(shard)
			errs = append(errs, fmt.Errorf("audit of shard %d: %w", shard, err))
			if errors.Is(err, ErrClosed) || ctx.Err() != nil {
				break
			}
			continue
		}
		checked += len(refs)
		if len(missing) > 0 {
			repaired += a.Repair(shard, missing)
		}
	}
	return checked, repaired, errors.Join(errs...)
}

// absentees returns those records of a shard that the ledger does not hold.
func absentees(ctx context.Context, l Ledger, shard int, refs []Ref, within time.Duration) (missing []Ref, err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	held := make([]bool, len(refs))
	if err := l.Get(ctx, shard, refs, func(i int, _ Entry) { held[i] = true }); err != nil {
		return nil, err
	}
	for i, ref := range refs {
		if !held[i] {
			missing = append(missing, ref)
		}
	}
	return missing, nil
}
