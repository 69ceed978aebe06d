package engine

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
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

// Act does one thing with each of the tasks that have these ids, of which none may come twice, with
// one wait for the ledger. It returns an answer for each: nil, ErrNotSelected, or an error of
// CancelLocal or Move. task.ErrDead is final.
func (s *Engine) Act(ctx context.Context, q *query.Act, ids []string) []error {
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
	s.mu.Lock()
	c.complete()
	s.unlock()
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
func (s *Engine) actOn(ctx context.Context, q *query.Act, id string, c *PendingWrite) (write int, err error) {
	n, sl, err := s.lockTask(ctx, id)
	switch {
	case err == nil:
	case q.Select != nil && (errors.Is(err, task.ErrDead) || remembered(s.uncancelled(ctx, id, err))):
		return 0, query.ErrNotSelected
	case q.Action == task.CancelAction:
		return 0, Cancelled(s.uncancelled(ctx, id, err))
	default:
		return 0, err
	}
	defer s.unlock()
	conds := task.ConditionsOf(ctx)
	if err := s.TopicTable.permit(conds, s.Store, sl); err != nil {
		return 0, err
	}
	if q.Select != nil && !s.isSelectedLocked(q.Select, sl, id) {
		return 0, query.ErrNotSelected
	}
	switch err := q.Check(record.Stamp(s.Store.Record(sl)), s.Config.Clock()); {
	case errors.Is(err, query.ErrActed) && q.Select == nil:
		return 0, nil
	case errors.Is(err, query.ErrActed):
		return 0, query.ErrNotSelected
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
func (s *Engine) changeBy(q *query.Act, due int64, rec *record.Fields, w *Write) {
	switch {
	case q.Action == task.FireAction:
		s.fire(rec, w)
	case q.Action == task.HoldAction:
		rec.Hold(s.Now())
	case q.Action == task.ResumeAction:
		rec.Resume(s.Now())
	case q.Shift == 0:
		moveTo(due, rec, w)
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
func (s *Engine) newDueLocked(q *query.Act, sl *store.Slot) (int64, error) {
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
func (s *Engine) isSelectedLocked(q *query.List, sl *store.Slot, id string) bool {
	topic := s.TopicTable.ByNumber[sl.Topic].Name
	switch {
	case q.Topic != "" && topic != q.Topic, !task.AnyMatches(q.Patterns, topic),
		q.Group != "" && string(s.Store.Group(sl)) != q.Group,
		!hasState(sl, q.State),
		q.Retrying && !s.Store.Attempted(sl):
		return false
	}
	return selects(&q.Filter, s.Store, sl, id)
}
