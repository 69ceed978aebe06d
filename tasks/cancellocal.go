package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// cancelled makes a repeated cancel get the answer of the first.
func cancelled(err error) error {
	if errors.Is(err, errCancelled) {
		return nil
	}
	return err
}

func (s *engine) cancelHere(ctx context.Context, id string) error {
	n, sl, err := s.lockTask(ctx, id)
	switch {
	case errors.Is(err, errBeingCancelled):
		return ErrUnrecorded
	case errors.Is(err, ErrDead):
		return s.cancelDead(ctx, id)
	case errors.Is(err, ErrNotFound):
		s.mu.Lock()
		defer s.unlock()
		switch s.outcomes.Find(s.store.Hash([]byte(id))).Kind {
		case 0:
			return err
		case store.WasCancelled:
			return errCancelled
		}
		return errFinished
	case err != nil:
		return err
	}
	if err = s.permitLocked(task.TermsOf(ctx), sl); err == nil && sl.State == store.Delivering {
		err = ErrDelivering
	}
	if err == nil {
		err = s.cancellableLocked(sl)
	}
	if err != nil {
		s.unlock()
		return err
	}
	s.disarmLocked(sl)
	s.setLocked(sl, store.Cancelling)
	if s.ledgerDown(int(sl.Shard)) {
		sl.Flags |= store.Wanted
		s.writeLocked(write{slot: n, op: opCancel})
		s.unlock()
		return ErrUnrecorded
	}
	return s.submitOne(ctx, write{slot: n, op: opCancel})
}

// cancellableLocked returns nil, or ErrUnavailable when the shard is another node's or
// about to be, or, unless the ledger is known not to answer, when it is not writable.
func (s *engine) cancellableLocked(sl *store.Slot) error {
	if s.ledgerDown(int(sl.Shard)) {
		return s.heldLocked(int(sl.Shard))
	}
	return s.writable(int(sl.Shard))
}

// submitOne sends a write, gives the lock up and waits for the answer.
func (s *engine) submitOne(ctx context.Context, w write) error {
	c := newPendingWrite(1)
	w.pending = c
	c.add(0, w.slot)
	s.writeLocked(w)
	c.complete()
	s.unlock()
	if err := s.await(ctx, c); err != nil {
		return err
	}
	return s.outcomesOf(c)[0]
}
