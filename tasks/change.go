package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

func (s *engine) reschedule(ctx context.Context, id string, m Move) (Task, error) {
	return s.move(ctx, id, admission{}, func(rec *record.Fields, w *write) {
		if due, ok := s.newDue(m); ok {
			rec.Due, rec.Next, w.fired = due, due, false
		}
		if m.Payload != nil {
			rec.Payload = m.Payload
		}
	})
}

func (s *engine) newDue(m Move) (int64, bool) {
	switch {
	case m.Delay != nil:
		return millis(s.cfg.Clock().Add(*m.Delay)), true
	case !m.Due.IsZero():
		return max(millis(m.Due), 0), true
	}
	return 0, false
}

func (s *engine) fireNow(ctx context.Context, id string) (Task, error) {
	return s.move(ctx, id, admission{}, func(rec *record.Fields, w *write) {
		now := s.now()
		rec.Due, rec.Next, w.fired = min(rec.Due, now), now, true
	})
}

// move writes a new record for a task that is pending or ready.
func (s *engine) move(ctx context.Context, id string, by admission, change func(*record.Fields, *write)) (Task, error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	n, sl, err := s.lockTask(ctx, id)
	if errors.Is(err, ErrDead) && s.recheck(ctx, id, err) {
		n, sl, err = s.lockTask(ctx, id)
	}
	if err != nil {
		return Task{}, err
	}
	if err = s.permitLocked(task.TermsOf(ctx), sl); err == nil && sl.State == store.Delivering {
		err = ErrDelivering
	}
	if err != nil {
		s.unlock()
		return Task{}, err
	}
	rec := s.store.Fields(sl)
	w := write{slot: n, op: opMove, fired: sl.Flags&store.Prompt != 0}
	change(&rec, &w)
	rec.Revision++
	t := s.describe(id, &rec, Pending)
	w.at, w.rec = rec.Next, rec.Append(nil)
	if err := s.admitLocked(int(sl.Shard), 0, len(w.rec)-len(s.store.Record(sl))); err != nil {
		s.unlock()
		return Task{}, err
	}
	if _, err = s.topicForLocked(&by, t.Topic); err != nil {
		s.unlock()
		return Task{}, err
	}
	s.disarmLocked(sl)
	s.setLocked(sl, store.Moving)
	s.arriving++
	return t, s.submitOne(ctx, w)
}

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

// What is remembered of a task that is gone. If its shard is held all the time, no
// node needs to look any further.
var (
	errFinished  = fmt.Errorf("%w: it is finished", ErrNotFound)
	errCancelled = fmt.Errorf("%w: it is cancelled", ErrNotFound)
)
