package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// StartReplace is tasks.Scheduler.StartReplace; nil: nothing was done.
func (s *Engine) StartReplace(ctx context.Context, r *task.Request, answered func(error)) *PendingWrite {
	if s.Fleet != nil || s.Config.Tracer != nil || !isClosed(s.Reading.settingsRead) {
		return nil
	}
	if g := task.GrantOf(ctx); g != nil && (g.MaxTopics > 0 || g.MaxPending > 0) {
		return nil // its tasks may have to be counted first
	}
	p, err := s.PlanFor(ctx, r)
	if err != nil {
		return nil
	}
	defer p.Free()
	if !p.Chosen {
		return nil
	}
	p.Replaces = true
	c := &PendingWrite{left: 1, errs: make([]error, 1), slots: make([]uint32, 1), answered: answered}
	s.Mu.Lock()
	defer s.Unlock()
	if _, err := s.CreateLocked(&p, c, 0); err != nil {
		return nil
	}
	c.Complete()
	return c
}

// replaceLocked begins to put a planned task in the place of the one that has its id, as write i of
// c. Besides those of Move its errors are ErrBusy, ErrNotHeld, and errBeingCancelled.
func (s *Engine) replaceLocked(n uint32, p *Plan, c *PendingWrite, i int) error {
	sl := s.Store.Slot(n)
	cancelled := s.cancelledLocked(n, sl)
	switch {
	case sl.State.Busy() && !cancelled:
		return ErrBusy
	case !s.OwnedLocked(int(sl.Shard)).Mine():
		return ErrNotHeld
	}
	if err := s.permitLocked(p.By.conds, sl); err != nil {
		return err
	}
	switch {
	case cancelled:
		return errBeingCancelled
	case sl.State == store.Delivering && !p.Supersedes:
		return task.ErrDelivering
	}
	rec, err := record.Decode(p.Rec)
	if err != nil {
		return err
	}
	old := s.Store.Fields(sl)
	rec.Succeed(&old)
	w := Write{slot: n, op: opMove, pending: c, index: i}
	if err := s.recordMoveLocked(&w, sl, &rec, rec.Stamp, &p.By); err != nil {
		return err
	}
	c.add(i, n)
	p.Replaced = w.rec
	s.startMoveLocked(w, sl)
	return nil
}

// describePlanned describes a task that was created or replaced, by the record that was written.
// Its topic can deliver it: Plan has just seen to that.
func (s *Engine) describePlanned(p *Plan, spooled bool) task.Task {
	rec := p.Rec
	if p.Replaced != nil {
		rec = p.Replaced
	}
	f := store.FieldsOf(rec)
	t := s.describe(p.ID, &f, task.Pending)
	t.Repeated, t.Spooled = p.Replaced != nil, spooled
	return t
}

// dropDeliveryLocked ends a delivery whose task was replaced. Neither its receipt nor its handler
// can settle the new task, whose revision is another one.
func (s *Engine) dropDeliveryLocked(n uint32) {
	delete(s.Detached.Verdicts, s.Dispatch.Leases[n].Nonce)
	s.closeLocked(n)
}

// honourVerdictLocked concludes a delivery that goes on, since its task was not replaced after all
// or was parked in vain, if its handler has ended meanwhile.
func (s *Engine) honourVerdictLocked(n uint32, sl *store.Slot) {
	nonce := s.Dispatch.Leases[n].Nonce
	if u, ok := s.Detached.Verdicts[nonce]; ok {
		delete(s.Detached.Verdicts, nonce)
		s.concludeLocked(s.TopicTable.ByNumber[sl.Topic], n, u.judgement)
	}
}

// takeBuriedID has a planned task take the id of one that is dead, or finished and kept, as why
// says. It reports again if the task has to be created once more.
func (s *Engine) takeBuriedID(ctx context.Context, p *Plan, why error) (t task.Task, again bool, err error) {
	switch {
	case p.Replaces && p.Supersedes:
		one := []BuriedReplacement{{Plan: p}}
		s.ReplaceBuried(ctx, one)
		if t, err = one[0].Task, one[0].Err; errors.Is(err, ErrUnburied) {
			err = s.KeptPause(ctx)
			return task.Task{ID: p.ID}, err == nil, err
		}
		return t, false, err
	case p.Replaces && p.By.conds.Conditional():
		return task.Task{ID: p.ID}, false, why
	case p.Replaces: // a new task takes the id
		err = s.DropKept(ctx, p.ID)
		if err == nil && s.lookup(p.ID) == AmongKept {
			err = s.KeptPause(ctx)
		}
		return task.Task{ID: p.ID}, err == nil, err
	}
	t, err = s.repeatKept(ctx, p)
	return t, errors.Is(err, ErrKept), err
}

// A BuriedReplacement is a planned task that takes the place of one that is dead, or finished and
// kept.
type BuriedReplacement struct {
	Plan  *Plan
	Index int // of the request, in a batch

	Task task.Task // Repeated, if that was a dead one
	// Err is ErrUnburied if the ledger has no such record: then the task has to be created.
	Err error
}

// ErrUnburied is returned for an id of which the ledger has no task that is dead, or finished and
// kept.
var ErrUnburied = errors.New("no task with this id is dead, or finished and kept")

// ReplaceBuried carries out up to RedrivenAtOnce replacements, with ids that differ, with one wait
// for the ledger. Each is one write, which takes the former record from among the dead.
func (s *Engine) ReplaceBuried(ctx context.Context, all []BuriedReplacement) {
	ctx, cancel := s.Within(ctx)
	defer cancel()
	x := Redrive{Engine: s, Op: opRequeue}
	ids := make([]string, len(all))
	for i := range all {
		ids[i], all[i].Err, all[i].Task.ID = all[i].Plan.ID, ErrUnburied, all[i].Plan.ID
	}
	locked, forgotten, err := x.lock(ctx, ids)
	if err != nil {
		for i := range all {
			all[i].Err = err
		}
		return
	}
	c := NewPendingWrite(len(all))
	seen := make([]bool, len(all))
	err = s.Ledger.GetDead(ctx, ids, func(i int, e recovery.Entry) {
		s.Mu.Lock()
		defer s.Unlock()
		n, still := locked[ids[i]]
		if seen[i] = true; !still {
			return // it was no longer dead when the ids were locked
		}
		if forgotten != s.Shards.Counts.forgotten {
			all[i].Err = ErrNotHeld // since it was read, and the number may stand for another shard
			return
		}
		if all[i].Err = s.replaceBuriedLocked(n, len(locked), e, &all[i], c, i); all[i].Err == nil {
			delete(locked, ids[i])
		}
	})
	var lost []lostDead
	if err == nil {
		lost, err = s.findLostDead(ctx, unseen(ids, seen))
	} else {
		err = fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	s.Mu.Lock()
	if s.forgetLostLocked(lost) < len(lost) && err == nil {
		err = errUnburied
	}
	again := s.unlockRestLocked(locked, lost)
	c.Complete()
	s.Unlock()
	s.buryLost(ctx, again)
	late := s.Await(ctx, c)
	for i, answer := range s.OutcomesOf(c) {
		switch r := &all[i]; {
		case r.Err == nil && errors.Is(answer, ErrOpen):
			r.Err = late
		case r.Err == nil:
			r.Err = answer
		case errors.Is(r.Err, ErrUnburied) && err != nil:
			r.Err = err
		}
	}
}

// replaceBuriedLocked begins the replacement of a task whose id is locked.
func (s *Engine) replaceBuriedLocked(n uint32, locked int, e recovery.Entry, r *BuriedReplacement, c *PendingWrite, i int) error {
	old, err := record.Decode(e.Data)
	if err != nil {
		return ErrIllegible
	}
	p := r.Plan
	if err := p.By.conds.Permit(string(old.Topic), int64(old.Revision), old.Created); err != nil {
		return err
	}
	f, err := record.Decode(p.Rec)
	if err != nil {
		return err
	}
	f.Succeed(&old)
	f.Revision++
	if err := s.AdmitLocked(e.Shard, 0, len(p.Rec)); err != nil {
		return err
	}
	if others := s.Store.Len() - locked; others >= s.Config.MaxPending {
		return fmt.Errorf("%w: %d tasks are pending", task.ErrOverloaded, others)
	}
	if err := p.By.RoomLocked(); err != nil {
		return err
	}
	t, err := s.TopicForLocked(&p.By, p.Topic)
	if err != nil {
		return err
	}
	sl := s.Store.Slot(n)
	sl.Topic, sl.Shard, sl.Stored, sl.State = t.Number, uint16(e.Shard), e.Spot.At, store.Vacant
	p.Replaced = f.Append(nil)
	s.Store.Rewrite(n, p.Replaced)
	sl.Next = f.Next
	s.SetLocked(sl, store.Requeuing)
	s.Dead.Requeued.Add(p.ID) // before the ledger can show that it is not dead
	c.add(i, n)
	s.writeLocked(Write{slot: n, op: opRequeue, after: s.buriedTopicLocked(&old), pending: c, index: i})
	r.Task = s.describe(p.ID, &f, task.Pending)
	r.Task.Repeated = !record.IsFinished(old.State)
	return nil
}
