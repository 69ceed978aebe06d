package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Cancel makes sure that a task is never delivered (again). It returns nil once
// the ledger has forgotten the task, and again nil, for a while, when it is
// repeated. A dead task is deleted.
//
// Errors: ErrNotFound, ErrDelivering, ErrReplaying, ErrUnavailable, ErrUnknown,
// ErrUnrecorded, ErrClosed. After ErrUnknown the task is not delivered until the ledger has
// answered; after ErrUnrecorded this process never delivers it. Both times it is nil when
// the call is repeated later.
func (s *Scheduler) Cancel(ctx context.Context, id string) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	if s.shared == nil {
		return cancelled(s.cancelHere(ctx, id))
	}
	_, at, err := routed(ctx, s, id, cancelMethod, aboutID(ctx, id), func(ctx context.Context) (struct{}, error) { return struct{}{}, s.cancelHere(ctx, id) })
	switch gone := cancelled(err); {
	case gone == nil && at.node != "":
		s.mu.Lock()
		s.addRecentCancelLocked(id)
		s.mu.Unlock()
		return nil
	case errors.Is(gone, ErrNotFound) && !errors.Is(gone, errFinished) && s.cancelledRecently(id):
		return nil
	default:
		return gone
	}
}

// cancelled makes a repeated cancel get the answer of the first.
func cancelled(err error) error {
	if errors.Is(err, errCancelled) {
		return nil
	}
	return err
}

// cancelHere cancels a task that is here. It is errCancelled or errFinished where that
// is what is remembered of it.

func (s *Scheduler) cancelHere(ctx context.Context, id string) error {
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
func (s *Scheduler) cancellableLocked(sl *store.Slot) error {
	if s.ledgerDown(int(sl.Shard)) {
		return s.heldLocked(int(sl.Shard))
	}
	return s.writable(int(sl.Shard))
}

// submitOne sends a write, gives the lock up and waits for the answer.
func (s *Scheduler) submitOne(ctx context.Context, w write) error {
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
