package engine

import (
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Reschedule changes a task of this node. Errors: as of tasks.Scheduler.Reschedule.
func (s *Engine) Reschedule(ctx context.Context, id string, m task.Move) (task.Task, error) {
	target, given, err := s.moveTarget(ctx, id, &m)
	if err != nil {
		return task.Task{}, err
	}
	return s.move(ctx, id, "", func(rec *record.Fields, w *Write) {
		if given {
			rec.Target = target
		}
		if due, ok := newDue(&m, s.Config.Clock()); ok {
			moveTo(due, rec, w)
		}
		if m.Payload != nil {
			rec.Payload = m.Payload
		}
	})
}

// moveTo is the change that gives a task another deadline. It ends a hold.
func moveTo(due int64, rec *record.Fields, w *Write) {
	rec.Release()
	rec.Due, rec.Next, w.Fired = due, due, false
}

// newDue returns the deadline that a move gives a task now, in Unix milliseconds, if it gives one.
func newDue(m *task.Move, now time.Time) (int64, bool) {
	switch {
	case m.Delay != nil:
		return record.Millis(now.Add(*m.Delay)), true
	case !m.Due.IsZero():
		return max(record.Millis(m.Due), 0), true
	}
	return 0, false
}

// FireNow makes a task of this node due at once. Errors: as of tasks.Scheduler.Fire.
func (s *Engine) FireNow(ctx context.Context, id string) (task.Task, error) {
	return s.move(ctx, id, "", s.fire)
}

// fire is the change that makes a task due at once. It ends a hold.
func (s *Engine) fire(rec *record.Fields, w *Write) {
	now := s.Now()
	if rec.Flags&record.Held != 0 {
		rec.Resume(now)
	}
	rec.Due, rec.Next, w.Fired = min(rec.Due, now), now, true
}

// move writes a new record for a task that is pending or ready. If the task is already as an action
// wants it, it returns the task instead.
func (s *Engine) move(ctx context.Context, id string, a task.Action, change func(*record.Fields, *Write)) (task.Task, error) {
	ctx, cancel := s.Within(ctx)
	defer cancel()
	n, sl, err := s.lockTask(ctx, id)
	if errors.Is(err, task.ErrDead) && s.Recheck(ctx, id, err) {
		n, sl, err = s.lockTask(ctx, id)
	}
	if err != nil {
		return task.Task{}, err
	}
	if isAsWanted(a, sl) {
		defer s.unlock()
		return s.readLocked(n, sl, task.ConditionsOf(ctx))
	}
	c := newSingleWrite(0)
	rec, err := s.moveLocked(n, sl, task.ConditionsOf(ctx), &Admission{}, c, change)
	var t task.Task
	if err == nil {
		t = s.describe(id, &rec, task.Pending)
	}
	c.complete()
	s.unlock()
	if err != nil {
		return task.Task{}, err
	}
	return t, s.awaitOne(ctx, c)
}

// moveLocked begins what move does, as one of the writes that c waits for. It returns the new
// record, which is valid while the lock is held.
func (s *Engine) moveLocked(
	n uint32, sl *store.Slot, conds *task.Conditions, by *Admission, c *PendingWrite, change func(*record.Fields, *Write),
) (rec record.Fields, err error) {
	if err := s.changeableLocked(sl, conds); err != nil {
		return rec, err
	}
	rec = s.Store.Fields(sl)
	stamp := rec.Stamp
	w := Write{slot: n, op: opMove, Fired: sl.Flags.IsPrompt()}
	change(&rec, &w)
	if err := s.recordMoveLocked(&w, sl, &rec, stamp, by); err != nil {
		return rec, err
	}
	w.pending, w.index = c, c.extend(n)
	s.startMoveLocked(w, sl)
	return rec, nil
}

// recordMoveLocked completes the write of a new record of a task, whose stamp was another one, or
// the same, before.
func (s *Engine) recordMoveLocked(w *Write, sl *store.Slot, rec *record.Fields, stamp uint64, by *Admission) error {
	rec.Revision++
	w.at, w.rec = rec.Next, rec.Append(nil)
	grown := len(w.rec) - len(s.Store.Record(sl))
	if rec.Stamp != 0 && stamp == 0 {
		grown -= record.StampSize // tasks can be moved while memory is full
	}
	if err := s.AdmitLocked(int(sl.Shard), 0, grown); err != nil {
		return err
	}
	_, err := s.TopicForLocked(by, string(rec.Topic))
	return err
}

// startMoveLocked sends the write of a new record. A task that is being delivered keeps its lease
// until the ledger has the record: if the write is taken back, the delivery goes on.
func (s *Engine) startMoveLocked(w Write, sl *store.Slot) {
	if sl.State == store.Delivering {
		s.SetLocked(sl, store.Replacing)
	} else {
		s.DisarmLocked(sl)
		s.SetLocked(sl, store.Moving)
	}
	s.Writes.Arriving++
	s.writeLocked(w)
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
	case errors.Is(err, task.ErrDead):
		return s.cancelDead(ctx, id)
	case err != nil:
		return s.uncancelled(ctx, id, err)
	}
	c := newSingleWrite(0)
	err = s.cancelLocked(n, sl, task.ConditionsOf(ctx), c)
	c.complete()
	s.unlock()
	if err != nil {
		return err
	}
	return s.awaitOne(ctx, c)
}

// uncancelled returns what a caller is told who wanted to cancel a task and met an error of
// lockTask.
func (s *Engine) uncancelled(ctx context.Context, id string, err error) error {
	switch {
	case errors.Is(err, ErrKept):
		return s.keptOutcome(ctx, id)
	case errors.Is(err, errBeingCancelled):
		return task.ErrUnrecorded
	case !errors.Is(err, task.ErrNotFound):
		return err
	}
	s.mu.Lock()
	defer s.unlock()
	// A later task of the id may have ended at another node before this one got its shard.
	hash := s.Store.Hash([]byte(id))
	past := s.Outcomes.FindSince(hash, s.Shards.past)
	switch {
	case past.Kind == 0, !task.GrantOf(ctx).Allows(s.TopicTable.ofOutcome(hash, past, s.Outcomes)):
		return err
	case past.Kind == store.WasCancelled:
		return ErrCancelled
	}
	return ErrFinished
}

// ofOutcome returns the topic of a finished task, from the newest outcome of its id; "" if it is
// not known. No grant that is limited to topics allows "".
func (k *topicTable) ofOutcome(hash uint64, o store.Outcome, all *store.Outcomes) string {
	if o.Topic == 0 {
		return ""
	}
	t := k.ByNumber[o.Topic-1]
	// What ended before the topic got its number was of another one.
	if all.FindSince(hash, t.numbered) != o {
		return ""
	}
	return t.Name
}

// cancelLocked begins to cancel a task, as one of the writes that c waits for. If the ledger is
// known not to answer, it returns ErrUnrecorded, and the task counts as cancelled.
func (s *Engine) cancelLocked(n uint32, sl *store.Slot, conds *task.Conditions, c *PendingWrite) error {
	err := s.changeableLocked(sl, conds)
	if err == nil {
		err = s.cancellableLocked(sl)
	}
	if err != nil {
		return err
	}
	s.DisarmLocked(sl)
	s.SetLocked(sl, store.Cancelling)
	w := s.newCancelLocked(n, sl)
	if s.LedgerDown(int(sl.Shard)) {
		sl.Flags |= store.Wanted
		s.writeLocked(w)
		return task.ErrUnrecorded
	}
	c.cancels = true
	w.pending, w.index = c, c.extend(n)
	s.writeLocked(w)
	return nil
}

// newCancelLocked returns the write that cancels a task.
func (s *Engine) newCancelLocked(n uint32, sl *store.Slot) Write {
	w := Write{slot: n, op: opCancel}
	if t := s.TopicTable.ByNumber[sl.Topic]; t.Settings.KeepFinished > 0 {
		s.keepLocked(t, sl, &w, record.Cancelled, Lease{Attempt: record.Attempt(s.Store.Record(sl))})
	}
	return w
}

// changeableLocked returns nil, or why the caller may not change a task that is at rest:
// ErrDelivering, or an error of topicTable.permit.
func (s *Engine) changeableLocked(sl *store.Slot, conds *task.Conditions) error {
	if err := s.TopicTable.permit(conds, s.Store, sl); err != nil {
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
	return s.writableLocked(int(sl.Shard))
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

// A held task is a pending one with record.HeldUntil as its next attempt. That time never comes, so
// the sweep, the audit, replay and a hand-over deal with it as with any pending task. Only the
// wheel does not have it: its queue cannot wait so long. The record says when the task was held,
// and the next attempt that it had. See docs/internals/decisions/0012-hold.md.

// Hold holds the countdown of a task of this node. Errors: as of tasks.Scheduler.Hold.
func (s *Engine) Hold(ctx context.Context, id string) (task.Task, error) {
	return s.move(ctx, id, task.HoldAction, func(rec *record.Fields, _ *Write) { rec.Hold(s.Now()) })
}

// Resume lets the countdown of a task of this node go on. Errors: as of tasks.Scheduler.Resume.
func (s *Engine) Resume(ctx context.Context, id string) (task.Task, error) {
	return s.move(ctx, id, task.ResumeAction, func(rec *record.Fields, _ *Write) { rec.Resume(s.Now()) })
}

// isAsWanted reports whether a task is held already, or not held, as the action wants it.
func isAsWanted(a task.Action, sl *store.Slot) bool {
	held := sl.Next == record.HeldUntil
	return a == task.HoldAction && held || a == task.ResumeAction && !held
}

// countHeldLocked counts a held task that begins or ceases to be shown as pending.
func (t *Topic) countHeldLocked(before, after task.State) {
	switch task.Pending {
	case before:
		t.Held--
	case after:
		t.Held++
	}
}
