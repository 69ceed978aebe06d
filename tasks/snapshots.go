package tasks

import (
	"context"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// A snapshot is the shards that this node holds, with all their tasks in memory, for as long as
// an operation on all of them runs: by number, as long as the term is the same. The
// spool counts as one of them.
type snapshot map[int]snapshotShard

// A snapshotShard is one of them, with its ID as the ledger names it now: once Redis has lost
// the numbers of the nodes, it may be another one than when the term began.
type snapshotShard struct {
	*ownedShard
	shardID recovery.Home
}

// beginSnapshot waits until all that this node holds is in memory. It also returns how many moves
// of spooled tasks have ever been in doubt. Errors: ErrReplaying, ErrUnavailable, ErrClosed.
func (s *engine) beginSnapshot(ctx context.Context) (st snapshot, movesInDoubt int, err error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	if err := s.waitReplayed(ctx); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.ended:
		return nil, 0, ErrClosed
	case s.unsure():
		return nil, 0, errUnsure
	case s.spool != nil && len(s.spool.inDoubt) > 0:
		return nil, 0, errInDoubt
	}
	st = make(snapshot)
	for n, h := range s.shards {
		if h != nil && h.stage == active {
			st[n] = snapshotShard{h, s.fleet.Home(n)}
		}
	}
	if s.spool != nil {
		st[spoolShard], movesInDoubt = snapshotShard{ownedShard: s.spool.ownedShard}, s.spool.movesInDoubt
	}
	return st, movesInDoubt, nil
}

// errInDoubt: spooled tasks have left memory, and may come back to it. It is passing.
var errInDoubt = fmt.Errorf("%w: it is not known yet whether what was spooled has moved there", errNotHeld)

// endSnapshot leaves out what has changed hands meanwhile, and lists the others.
func (s *engine) endSnapshot(st snapshot, movesInDoubt int) (covered []recovery.Home, err error) {
	s.mu.Lock()
	defer s.unlock()
	switch {
	case s.ended:
		return nil, ErrClosed
	case s.unsure():
		return nil, errUnsure
	case s.spool != nil && s.spool.movesInDoubt != movesInDoubt:
		return nil, errInDoubt
	}
	for n, h := range st {
		switch {
		case h.stage != active: // a term that is over is never held again
			delete(st, n)
		case h.shardID != 0:
			covered = append(covered, h.shardID)
		}
	}
	slices.Sort(covered)
	return covered, nil
}

// keepHeld leaves out what the ledger has lost without having told it yet: it has not read
// the dead of that.
func (s *engine) keepHeld(ctx context.Context, st snapshot) {
	for n, h := range st {
		if n == spoolShard {
			continue
		}
		if at, err := s.fleet.Locate(ctx, h.ownedShard.shardID, false); err != nil || at.Shard != n {
			delete(st, n)
		}
	}
}
