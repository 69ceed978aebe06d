package engine

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Reschedule changes a task of this node. Errors: as of tasks.Scheduler.Reschedule.
func (s *Engine) Reschedule(ctx context.Context, id string, m task.Move) (task.Task, error) {
	return s.Move(ctx, id, Admission{}, func(rec *record.Fields, w *Write) {
		if due, ok := s.newDue(m); ok {
			rec.Due, rec.Next, w.Fired = due, due, false
		}
		if m.Payload != nil {
			rec.Payload = m.Payload
		}
	})
}

func (s *Engine) newDue(m task.Move) (int64, bool) {
	switch {
	case m.Delay != nil:
		return Millis(s.Config.Clock().Add(*m.Delay)), true
	case !m.Due.IsZero():
		return max(Millis(m.Due), 0), true
	}
	return 0, false
}

// FireNow makes a task of this node due at once. Errors: as of tasks.Scheduler.Fire.
func (s *Engine) FireNow(ctx context.Context, id string) (task.Task, error) {
	return s.Move(ctx, id, Admission{}, func(rec *record.Fields, w *Write) {
		now := s.Now()
		rec.Due, rec.Next, w.Fired = min(rec.Due, now), now, true
	})
}

// Move writes a new record for a task that is pending or ready.
func (s *Engine) Move(ctx context.Context, id string, by Admission, change func(*record.Fields, *Write)) (task.Task, error) {
	ctx, cancel := s.Within(ctx)
	defer cancel()
	n, sl, err := s.lockTask(ctx, id)
	if errors.Is(err, task.ErrDead) && s.Recheck(ctx, id, err) {
		n, sl, err = s.lockTask(ctx, id)
	}
	if err != nil {
		return task.Task{}, err
	}
	t, c, err := s.moveLocked(n, sl, id, task.ConditionsOf(ctx), &by, change)
	s.Unlock()
	if err != nil {
		return task.Task{}, err
	}
	return t, s.awaitOne(ctx, c)
}

// moveLocked begins what Move does, and returns the task as it will be.
func (s *Engine) moveLocked(
	n uint32, sl *store.Slot, id string, conds *task.Conditions, by *Admission, change func(*record.Fields, *Write),
) (task.Task, *PendingWrite, error) {
	if err := s.changeableLocked(sl, conds); err != nil {
		return task.Task{}, nil, err
	}
	rec := s.Store.Fields(sl)
	w := Write{slot: n, op: opMove, Fired: sl.Flags&store.Prompt != 0}
	change(&rec, &w)
	rec.Revision++
	t := s.describe(id, &rec, task.Pending)
	w.at, w.rec = rec.Next, rec.Append(nil)
	if err := s.AdmitLocked(int(sl.Shard), 0, len(w.rec)-len(s.Store.Record(sl))); err != nil {
		return task.Task{}, nil, err
	}
	if _, err := s.TopicForLocked(by, t.Topic); err != nil {
		return task.Task{}, nil, err
	}
	s.DisarmLocked(sl)
	s.SetLocked(sl, store.Moving)
	s.Writes.Arriving++
	return t, s.submitLocked(w), nil
}

// Cancelled makes a repeated cancel get the answer of the first.
func Cancelled(err error) error {
	if errors.Is(err, ErrCancelled) {
		return nil
	}
	return err
}

// CancelLocal cancels a task of this node. Errors: as of tasks.Scheduler.Cancel, and ErrCancelled
// or ErrFinished for a task whose outcome is still known.
func (s *Engine) CancelLocal(ctx context.Context, id string) error {
	n, sl, err := s.lockTask(ctx, id)
	switch {
	case errors.Is(err, errBeingCancelled):
		return task.ErrUnrecorded
	case errors.Is(err, task.ErrDead):
		return s.cancelDead(ctx, id)
	case errors.Is(err, task.ErrNotFound):
		s.Mu.Lock()
		defer s.Unlock()
		switch s.Outcomes.Find(s.Store.Hash([]byte(id))).Kind {
		case 0:
			return err
		case store.WasCancelled:
			return ErrCancelled
		}
		return ErrFinished
	case err != nil:
		return err
	}
	c, err := s.cancelLocked(n, sl, task.ConditionsOf(ctx))
	s.Unlock()
	if err != nil {
		return err
	}
	return s.awaitOne(ctx, c)
}

// cancelLocked begins to cancel a task. If the ledger is known not to answer, it returns
// ErrUnrecorded, and the task counts as cancelled.
func (s *Engine) cancelLocked(n uint32, sl *store.Slot, conds *task.Conditions) (*PendingWrite, error) {
	err := s.changeableLocked(sl, conds)
	if err == nil {
		err = s.cancellableLocked(sl)
	}
	if err != nil {
		return nil, err
	}
	s.DisarmLocked(sl)
	s.SetLocked(sl, store.Cancelling)
	w := Write{slot: n, op: opCancel}
	if s.LedgerDown(int(sl.Shard)) {
		sl.Flags |= store.Wanted
		s.writeLocked(w)
		return nil, task.ErrUnrecorded
	}
	c := s.submitLocked(w)
	c.cancels = true
	return c, nil
}

// changeableLocked returns nil, or why the caller may not change a task that is at rest:
// ErrDelivering, or an error of permitLocked.
func (s *Engine) changeableLocked(sl *store.Slot, conds *task.Conditions) error {
	if err := s.permitLocked(conds, sl); err != nil {
		return err
	}
	if sl.State == store.Delivering {
		return task.ErrDelivering
	}
	return nil
}

// cancellableLocked returns nil, or ErrUnavailable when the shard is another node's or
// about to be, or, unless the ledger is known not to answer, when it is not writable.
func (s *Engine) cancellableLocked(sl *store.Slot) error {
	if s.LedgerDown(int(sl.Shard)) {
		return s.heldLocked(int(sl.Shard))
	}
	return s.WritableLocked(int(sl.Shard))
}

// submitLocked sends one write, for whose answer the caller waits with awaitOne.
func (s *Engine) submitLocked(w Write) *PendingWrite {
	c := NewPendingWrite(1)
	w.pending = c
	c.add(0, w.slot)
	s.writeLocked(w)
	c.Complete()
	return c
}

// awaitOne waits for the answer to the only write of a PendingWrite.
func (s *Engine) awaitOne(ctx context.Context, c *PendingWrite) error {
	if err := s.Await(ctx, c); err != nil {
		return err
	}
	return s.OutcomesOf(c)[0]
}

// Errors for a task that is gone, if its outcome is still known. If this node owned the shard
// throughout, no other node has to be asked.
var (
	ErrFinished  = task.KindOf(task.ErrNotFound, "the task is finished")
	ErrCancelled = task.KindOf(task.ErrNotFound, "the task is cancelled")
)
