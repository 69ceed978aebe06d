package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/store"
)

// waitCreated waits for an earlier change of the same id. If that is a creation
// which has become this caller's too, giving up leaves its outcome open.
func (s *engine) waitCreated(ctx context.Context, ch <-chan struct{}, wanted bool, waits int) error {
	err := s.waitBusy(ctx, ch, waits)
	if wanted && errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: an earlier request for the same task still waits for its answer", ErrUnknown)
	}
	return err
}

// startLocked sends the first write of a task that has been entered.
func (s *engine) startLocked(n uint32, sl *store.Slot, c *pendingWrite, i int) {
	s.setLocked(sl, store.Creating)
	c.add(i, n)
	s.writeLocked(write{slot: n, op: opCreate, pending: c, index: i})
}

// admitLocked tells whether there is room for so many more tasks and bytes of
// records, and whether the ledger takes them.
func (s *engine) admitLocked(shard, more, bytes int) error {
	switch {
	case more > 0 && s.store.Len()+more > s.cfg.MaxPending:
		return fmt.Errorf("%w: %d tasks are pending", ErrOverloaded, s.store.Len())
	case bytes > 0 && s.store.Live()+int64(bytes) > s.cfg.MaxBytes:
		return fmt.Errorf("%w: the tasks use %d bytes", ErrOverloaded, s.store.Live())
	case s.arriving >= s.cfg.MaxInFlight:
		return fmt.Errorf("%w: %d tasks wait for the ledger", ErrOverloaded, s.arriving)
	}
	if err := s.writable(shard); err != nil {
		return err
	}
	if bytes > 0 {
		return s.conditionOf(shard)
	}
	return nil
}

// condition returns ErrUnavailable when the ledger has said, when it was last
// asked, that it takes no new records. Those that it has already are still written.
func (s *engine) condition() error { return s.conditionOf(0) }

func (s *engine) conditionOf(shard int) error {
	refusal := &s.refusal
	if shard == spoolShard {
		refusal = &s.spool.refusal
	}
	if err := refusal.Load(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, *err)
	}
	return nil
}
