package engine

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery"
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
	return s.Move(ctx, id, Admission{}, func(rec *record.Fields, w *Write) {
		if given {
			rec.Target = target
		}
		if due, ok := s.newDue(m); ok {
			s.moveTo(due, rec, w)
		}
		if m.Payload != nil {
			rec.Payload = m.Payload
		}
	})
}

// moveTo is the change that gives a task another deadline. It ends a hold.
func (s *Engine) moveTo(due int64, rec *record.Fields, w *Write) {
	rec.Release()
	rec.Due, rec.Next, w.Fired = due, due, false
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
	return s.Move(ctx, id, Admission{}, s.fire)
}

// fire is the change that makes a task due at once. It ends a hold.
func (s *Engine) fire(rec *record.Fields, w *Write) {
	now := s.Now()
	if rec.Flags&record.Held != 0 {
		rec.Resume(now)
	}
	rec.Due, rec.Next, w.Fired = min(rec.Due, now), now, true
}

// Move writes a new record for a task that is pending or ready.
func (s *Engine) Move(ctx context.Context, id string, by Admission, change func(*record.Fields, *Write)) (task.Task, error) {
	return s.moveUnless(ctx, id, "", by, change)
}

// moveUnless is Move. If the task is already as an action wants it, it returns the task instead.
func (s *Engine) moveUnless(ctx context.Context, id string, a task.Action, by Admission, change func(*record.Fields, *Write)) (task.Task, error) {
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
		defer s.Unlock()
		return s.readLocked(n, sl, task.ConditionsOf(ctx))
	}
	c := NewPendingWrite(0)
	rec, err := s.moveLocked(n, sl, task.ConditionsOf(ctx), &by, c, change)
	var t task.Task
	if err == nil {
		t = s.describe(id, &rec, task.Pending)
	}
	c.Complete()
	s.Unlock()
	if err != nil {
		return task.Task{}, err
	}
	return t, s.awaitOne(ctx, c)
}

// moveLocked begins what Move does, as one of the writes that c waits for. It returns the new
// record, which is valid while the lock is held.
func (s *Engine) moveLocked(
	n uint32, sl *store.Slot, conds *task.Conditions, by *Admission, c *PendingWrite, change func(*record.Fields, *Write),
) (rec record.Fields, err error) {
	if err := s.changeableLocked(sl, conds); err != nil {
		return rec, err
	}
	rec = s.Store.Fields(sl)
	stamped := rec.Stamp != 0
	w := Write{slot: n, op: opMove, Fired: sl.Flags&store.Prompt != 0, pending: c}
	change(&rec, &w)
	rec.Revision++
	w.at, w.rec = rec.Next, rec.Append(nil)
	grown := len(w.rec) - len(s.Store.Record(sl))
	if rec.Stamp != 0 && !stamped {
		grown -= record.StampSize // tasks can be moved while memory is full
	}
	if err := s.AdmitLocked(int(sl.Shard), 0, grown); err != nil {
		return rec, err
	}
	if _, err := s.TopicForLocked(by, string(rec.Topic)); err != nil {
		return rec, err
	}
	s.DisarmLocked(sl)
	s.SetLocked(sl, store.Moving)
	s.Writes.Arriving++
	w.index = c.extend(n)
	s.writeLocked(w)
	return rec, nil
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
	c := NewPendingWrite(0)
	err = s.cancelLocked(n, sl, task.ConditionsOf(ctx), c)
	c.Complete()
	s.Unlock()
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
	s.Mu.Lock()
	defer s.Unlock()
	switch s.Outcomes.Find(s.Store.Hash([]byte(id))).Kind {
	case 0:
		return err
	case store.WasCancelled:
		return ErrCancelled
	}
	return ErrFinished
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

// An ActQuery does one thing with each of some tasks.
type ActQuery struct {
	Action task.Action
	Due    int64 // the new deadline, where the action gives one
	Shift  int64 // of a move, in place of Due: milliseconds that are added to the deadline
	// Select is what the tasks must be when their turn comes; nil: anything. Of dead tasks only its
	// Filter and its Patterns count.
	Select *ListQuery
	// Stamp is that of the act; see package record. 0: each call of the act changes the task.
	Stamp uint64
	Dry   bool // nothing is changed
}

var (
	// ErrNotSelected is returned for a task that an act is not for, or not any more.
	ErrNotSelected = errors.New("not selected")
	// ErrActedSince is returned for a task that an act has changed that began later.
	ErrActedSince = task.KindOf(task.ErrRevision, "another action has changed the task since this one began")
	errActed      = errors.New("an earlier call of this action has changed the task")
)

// How far a stamp may be ahead of the clock. The clocks of nodes differ by less.
const stampAhead = time.Hour

// NewStamp returns the stamp of an act that begins now.
func (s *Engine) NewStamp() uint64 {
	for {
		last := s.Writes.lastStamp.Load()
		next := max(last+1, record.NewStamp(s.Config.Clock()))
		if s.Writes.lastStamp.CompareAndSwap(last, next) {
			return next
		}
	}
}

// Stampable reports whether a stamp can be that of an act that has begun at some node.
func (s *Engine) Stampable(stamp uint64) bool {
	latest := record.LowestStamp(s.Config.Clock().Add(stampAhead))
	return stamp > 0 && stamp <= max(latest, s.Writes.lastStamp.Load())
}

// changes returns nil if an act is to change a task whose record has this stamp. Otherwise it
// returns errActed or ErrActedSince.
func (q *ActQuery) changes(stamp uint64) error {
	switch {
	case q.Stamp == 0 || stamp < q.Stamp:
		return nil
	case stamp == q.Stamp:
		return errActed
	}
	return ErrActedSince
}

// hasDead reports whether an act is for a dead task.
func (q *ActQuery) hasDead(at recovery.Ref, r *record.Fields) bool {
	return q.Select.Filter.hasRecord(at, r) && task.AnyMatches(q.Select.Patterns, string(r.Topic))
}

// Act does one thing with each of the tasks that have these ids, of which none may come twice, with
// one wait for the ledger. It returns an answer for each: nil, ErrNotSelected, or an error of
// CancelLocal or Move. task.ErrDead is final.
func (s *Engine) Act(ctx context.Context, q *ActQuery, ids []string) []error {
	errs, c := make([]error, len(ids)), NewPendingWrite(0)
	sent := make([]int, len(ids)) // the write, from 1; 0: there is none
	var dead, busy []int
	for i, later := range s.areBusy(ids) {
		if later {
			busy = append(busy, i)
			continue
		}
		sent[i], errs[i] = s.actOn(ctx, q, ids[i], c)
	}
	for _, i := range busy {
		sent[i], errs[i] = s.actOnBusy(ctx, q, ids[i], c)
	}
	for i, err := range errs {
		if errors.Is(err, task.ErrDead) {
			dead = append(dead, i)
		}
	}
	if len(dead) > 0 && q.Select == nil { // a task that was selected was not dead
		s.actOnDead(ctx, q, ids, dead, c, sent, errs)
	}
	s.Mu.Lock()
	c.Complete()
	s.Unlock()
	late := s.Await(ctx, c)
	answers := s.OutcomesOf(c)
	for i, w := range sent {
		if w == 0 {
			continue
		}
		if errs[i] = answers[w-1]; errors.Is(errs[i], ErrOpen) {
			errs[i] = late
		}
	}
	return errs
}

// actOn begins to act on one task, and returns the number of its write, from 1; 0: none was needed.
func (s *Engine) actOn(ctx context.Context, q *ActQuery, id string, c *PendingWrite) (write int, err error) {
	n, sl, err := s.lockTask(ctx, id)
	switch {
	case err == nil:
	case q.Select != nil && (errors.Is(err, task.ErrDead) || remembered(s.uncancelled(ctx, id, err))):
		return 0, ErrNotSelected
	case q.Action == task.CancelAction:
		return 0, Cancelled(s.uncancelled(ctx, id, err))
	default:
		return 0, err
	}
	defer s.Unlock()
	conds := task.ConditionsOf(ctx)
	if err := s.permitLocked(conds, sl); err != nil {
		return 0, err
	}
	if q.Select != nil && !s.isSelectedLocked(q.Select, sl, id) {
		return 0, ErrNotSelected
	}
	switch err := q.changes(record.Stamp(s.Store.Record(sl))); {
	case errors.Is(err, errActed) && q.Select == nil:
		return 0, nil
	case errors.Is(err, errActed):
		return 0, ErrNotSelected
	case err != nil:
		return 0, err
	}
	due, err := s.newDueLocked(q, sl)
	switch {
	case err != nil:
		return 0, err
	case isAsWanted(q.Action, sl):
		_, err := s.readLocked(n, sl, conds)
		return 0, err
	case q.Dry:
		return 0, s.changeableLocked(sl, conds)
	case q.Action == task.CancelAction:
		err = s.cancelLocked(n, sl, conds, c)
	default:
		_, err = s.moveLocked(n, sl, conds, &Admission{}, c, func(rec *record.Fields, w *Write) {
			rec.Stamp = cmp.Or(q.Stamp, rec.Stamp)
			s.changeBy(q, due, rec, w)
		})
	}
	if err != nil {
		return 0, err
	}
	return len(c.errs), nil
}

// changeBy is the change that an act makes. due is the new deadline, if it gives one.
func (s *Engine) changeBy(q *ActQuery, due int64, rec *record.Fields, w *Write) {
	switch {
	case q.Action == task.FireAction:
		s.fire(rec, w)
	case q.Action == task.HoldAction:
		rec.Hold(s.Now())
	case q.Action == task.ResumeAction:
		rec.Resume(s.Now())
	case q.Shift == 0:
		s.moveTo(due, rec, w)
	case rec.Flags&record.Held != 0:
		rec.Due, rec.HeldNext, w.Fired = due, rec.HeldNext+q.Shift, false
	default:
		rec.Due, rec.Next, w.Fired = due, max(rec.Next+q.Shift, 0), false
	}
}

// remembered reports whether an error tells what has become of a task.
func remembered(err error) bool {
	return errors.Is(err, ErrFinished) || errors.Is(err, ErrCancelled)
}

// newDueLocked returns the deadline to which a task is moved.
func (s *Engine) newDueLocked(q *ActQuery, sl *store.Slot) (int64, error) {
	if q.Action != task.MoveAction || q.Shift == 0 {
		return q.Due, nil
	}
	due, from := max(record.Due(s.Store.Record(sl))+q.Shift, 0), s.Now()
	if sl.Next == record.HeldUntil {
		from = s.Store.Fields(sl).HeldAt
	}
	if due > from+task.MaxAhead.Milliseconds() {
		return 0, task.Invalid("shift", "must lead to a deadline that is at most 3660 days ahead")
	}
	return due, nil
}

// isSelectedLocked reports whether a query selects a task that is at rest.
func (s *Engine) isSelectedLocked(q *ListQuery, sl *store.Slot, id string) bool {
	topic := s.TopicTable.ByNumber[sl.Topic].Name
	switch {
	case q.Topic != "" && topic != q.Topic, !task.AnyMatches(q.Patterns, topic),
		q.Group != "" && string(s.Store.Group(sl)) != q.Group,
		!hasState(sl, q.State),
		q.Retrying && !s.attemptedLocked(sl):
		return false
	}
	return s.selectedLocked(&q.Filter, sl, id)
}
