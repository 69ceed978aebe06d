package engine

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// StartReplace is tasks.Admin.StartReplace; nil: nothing was done.
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
	s.mu.Lock()
	defer s.unlock()
	if _, err := s.CreateLocked(&p, c, 0); err != nil {
		return nil
	}
	c.complete()
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
	case !s.OwnedLocked(int(sl.Shard)).mine():
		return ErrNotHeld
	}
	if err := s.TopicTable.permit(p.By.conds, s.Store, sl); err != nil {
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
	ids, at := make([]string, len(all)), make(map[string]int, len(all))
	for i := range all {
		ids[i], all[i].Err, all[i].Task.ID = all[i].Plan.ID, ErrUnburied, all[i].Plan.ID
		at[ids[i]] = i
	}
	p, err := s.lockBuried(ctx, ids, true)
	if err != nil {
		for i := range all {
			all[i].Err = err
		}
		return
	}
	err = p.change(ctx, func(i int, e recovery.Entry) error {
		r := &all[at[p.ids[i]]]
		if err := p.write(i, &e, func(n uint32) error {
			r.Err = nil
			return s.replaceBuriedLocked(p, Write{slot: n, op: opRequeue, index: i}, &e, r)
		}); err != nil {
			r.Err = err
		}
		return nil
	})
	answers := s.OutcomesOf(p.c)
	for _, i := range p.sent {
		r := &all[at[p.ids[i]]]
		if r.Err = answers[i]; errors.Is(r.Err, ErrOpen) {
			r.Err = p.late
		}
	}
	for i := range all {
		if r := &all[i]; errors.Is(r.Err, ErrUnburied) && err != nil {
			r.Err = err
		}
	}
}

// replaceBuriedLocked begins the replacement of a task whose id is locked.
func (s *Engine) replaceBuriedLocked(buried *buriedPiece, w Write, e *recovery.Entry, r *BuriedReplacement) error {
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
	if err := buried.admitLocked(e.Shard, len(p.Rec)); err != nil {
		return err
	}
	if err := p.By.RoomLocked(); err != nil {
		return err
	}
	t, err := s.TopicForLocked(&p.By, p.Topic)
	if err != nil {
		return err
	}
	p.Replaced, w.after = f.Append(nil), s.labelledLocked(labelOf(e.Data))
	buried.beginLocked(w, t, e, p.Replaced, f.Next)
	r.Task = s.describe(p.ID, &f, task.Pending)
	r.Task.Repeated = !record.IsFinished(old.State)
	return nil
}
