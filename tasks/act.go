package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// The actions of an Act. Each is explained in package task.
const (
	CancelAction  = task.CancelAction
	MoveAction    = task.MoveAction
	FireAction    = task.FireAction
	HoldAction    = task.HoldAction
	ResumeAction  = task.ResumeAction
	RequeueAction = task.RequeueAction
	DeleteAction  = task.DeleteAction
)

// Act does one thing with many tasks at all nodes: cancels, moves, fires, holds or resumes those
// that wait, requeues or deletes dead ones. It is called with Act.Query.Cursor set to Acted.Cursor
// until that is empty. Each call changes up to Act.Query.Limit tasks and looks for them as a page
// of List does: it may find none although there are more. With Act.Dry a call counts up to 20,000.
//
// A task is selected when it is found, and once more at its owner when its turn comes: one that has
// changed by then, so that the query does not select it any more, is passed over. Tasks that are
// being delivered are refused. From its first call to its last an Act of a query moves, fires,
// holds, resumes or requeues a task once, also where the task is found again at its new place, or a
// call is repeated with the same cursor. For that a changed task keeps in its record which Act has
// changed it last, and when that one began. A task that an Act has changed that began later than
// this one, or at a node whose clock is ahead, is refused (ErrRevision): begin again a little
// later. Other changes do not matter. Under a Grant, only tasks of its topics are selected.
//
// Of named tasks each is done or is in Acted.Failed, with an error of Cancel, Reschedule or Fire; a
// dead one is not cancelled. Of selected tasks only those that are refused for good are in it: if a
// ledger or a node does not answer, the call returns the error, with Acted as far as it came, and
// repeating it with the same cursor does the rest.
//
// Errors: ErrInvalid, ErrNotGranted; those of List, and of selected and of dead tasks also
// ErrOverloaded, ErrUnknown and ErrUnrecorded, as of Purge.
func (s Admin) Act(ctx context.Context, a Act) (Acted, error) {
	p, err := s.planAct(ctx, &a)
	if err != nil {
		return Acted{}, err
	}
	if p.begins {
		return Acted{Cursor: p.cursor(recovery.Ref{})}, nil
	}
	var next string
	targets := make([]cluster.Target, len(p.ids))
	for i, id := range p.ids {
		targets[i].ID = id
	}
	if a.IDs == nil {
		var end *recovery.Ref
		if targets, end, err = s.cluster.Select(ctx, p.list); err != nil {
			return Acted{}, err
		}
		if end != nil {
			next = p.cursor(*end)
		}
		if a.Dry {
			return Acted{Matched: len(targets), Cursor: next}, nil
		}
	}
	var done Acted
	switch {
	case len(targets) == 0:
	case a.Action.Dead():
		done, err = s.actOnDead(ctx, p, targets)
	default:
		done, err = s.actOnLive(ctx, p, targets)
	}
	done.Matched = done.Done + len(done.Failed)
	if a.Dry {
		done.Done = 0
	}
	if err == nil {
		done.Cursor = next
	}
	return done, err
}

// actOnLive acts on tasks that are not dead.
func (s *Scheduler) actOnLive(ctx context.Context, p *actPlan, targets []cluster.Target) (done Acted, err error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	for i, failed := range s.cluster.Act(ctx, &p.query, targets) {
		switch {
		case failed == nil:
			done.Done++
		case errors.Is(failed, query.ErrNotSelected):
		case p.ids == nil && mayPass(failed):
			if err == nil || errors.Is(failed, ErrUnknown) && !errors.Is(err, ErrUnknown) {
				err = failed
			}
		default:
			done.Failed = append(done.Failed, Refusal{ID: targets[i].ID, Err: s.hide(ctx, targets[i].ID, failed)})
		}
	}
	return done, err
}

// actOnDead acts on dead tasks.
func (s *Scheduler) actOnDead(ctx context.Context, p *actPlan, targets []cluster.Target) (done Acted, err error) {
	ids := make([]string, len(targets))
	for i := range targets {
		ids[i] = targets[i].ID
	}
	r, err := s.cluster.Redrive(ctx, query.Redrive{
		Topic: p.list.Topic, Delete: p.query.Action == DeleteAction, Due: p.query.Due, IDs: ids, Act: &p.query,
	})
	done.Done = r.Done
	for _, id := range r.Acted {
		done.Failed = append(done.Failed, Refusal{ID: id, Err: query.ErrActedSince})
	}
	if p.ids != nil && err == nil {
		for _, id := range r.Unknown {
			done.Failed = append(done.Failed, Refusal{ID: id, Err: ErrNotDead})
		}
	}
	return done, err
}

// mayPass reports whether a task was refused for a reason that is not its own.
func mayPass(err error) bool {
	for _, e := range []error{ErrUnavailable, ErrUnknown, ErrOverloaded, ErrReplaying, ErrDraining, ErrClosed} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// An actPlan is an Act that was checked.
type actPlan struct {
	ids    []string // each once; nil: list selects the tasks
	list   query.List
	query  query.Act
	stamp  uint64 // of the whole act; see query.Act
	digest uint64 // tells the act from others
	begins bool   // this call does no more than to return a cursor
}

// cursor is the cursor of the call that goes on behind a position.
func (p *actPlan) cursor(at recovery.Ref) string {
	return query.ActCursor{Stamp: p.stamp, Digest: p.digest, After: at}.Encode()
}

// planAct checks an act, and continues it if it has a cursor.
func (s *Scheduler) planAct(ctx context.Context, a *Act) (*actPlan, error) {
	var f task.Faults
	s.checkAct(a, &f)
	if err := f.Err(); err != nil {
		return nil, err
	}
	p := &actPlan{digest: query.DigestAct(a), query: query.Act{Action: a.Action, Shift: a.Shift.Milliseconds(), Dry: a.Dry}}
	if !a.Due.IsZero() {
		p.query.Due = max(record.Millis(a.Due), 0)
	}
	q := a.Query
	q.Cursor = ""
	switch {
	case a.Action.Dead():
		q.State = Dead
	case a.Action == ResumeAction:
		q.State = Held
	}
	if a.IDs == nil {
		var err error
		if p.list, err = checkQuery(ctx, &q); err != nil {
			return nil, ofFilter(err)
		}
		if p.list.Limit = q.Limit; q.Limit == 0 {
			p.list.Limit = task.MaxActs
		}
		if a.Dry {
			p.list.Limit = query.LooksAtOnce
		}
		p.query.Select = &p.list
	} else {
		p.ids = query.Once(a.IDs)
		if a.Action.Dead() {
			p.query.Select = &query.List{Patterns: task.PatternsOf(ctx)}
		}
	}
	if a.Query.Cursor == "" {
		p.stamp = s.engine.NewStamp()
		p.begins = a.Shift != 0 && !a.Dry
	} else {
		c, ok := query.DecodeActCursor(a.Query.Cursor)
		if !ok || c.Digest != p.digest || c.Stamp == 0 {
			return nil, task.Invalid("cursor", "must be the next_cursor of the call before, whose fields were the same")
		}
		if !s.engine.Stampable(c.Stamp) {
			return nil, task.Invalid("cursor", "must be of a node whose clock is at most an hour ahead of that of this node")
		}
		p.stamp = c.Stamp
		if a.IDs == nil && c.After != (recovery.Ref{}) {
			p.list.After = p.list.Filter.Start(c.After)
		}
	}
	if a.Shift != 0 || a.IDs == nil && a.Action != CancelAction && a.Action != DeleteAction {
		p.query.Stamp = p.stamp
	}
	return p, nil
}

// ofFilter renames the fields of a query that are wrong to what they are called in an act.
func ofFilter(err error) error {
	e, ok := errors.AsType[*InvalidError](err)
	if !ok {
		return err
	}
	named := &InvalidError{}
	for _, f := range e.Fields {
		if f.Field != "limit" {
			f.Field = "filter." + f.Field
		}
		named.Fields = append(named.Fields, f)
	}
	return named
}

// checkAct notes what is wrong with an act, but for what List checks of its query.
func (s *Scheduler) checkAct(a *Act, f *task.Faults) {
	switch a.Action {
	case CancelAction, MoveAction, FireAction, HoldAction, ResumeAction, RequeueAction, DeleteAction:
	default:
		f.Add("action", "must be cancel, move, fire, hold, resume, requeue or delete")
		return
	}
	bare := a.Query
	bare.Limit, bare.Cursor, bare.State = 0, "", 0
	switch {
	case a.IDs != nil && (bare != Query{} || a.Query.State != 0 || a.Query.Limit != 0):
		f.Add("ids", "must not be given together with a filter or a limit")
	case a.IDs != nil && (len(a.IDs) == 0 || len(a.IDs) > task.MaxActs):
		f.Add("ids", fmt.Sprintf("must be from 1 to %d", task.MaxActs))
	case a.IDs == nil && bare == Query{} && (a.Query.State == 0 || a.Action.Dead()):
		f.Add("filter", "must select by something: all tasks are never meant")
	case a.IDs == nil && a.Action.Dead() && a.Query.State != 0 && a.Query.State != Dead:
		f.Add("filter.state", "must be dead, or be left out")
	case a.IDs == nil && a.Action == ResumeAction && a.Query.State != 0 && a.Query.State != Held:
		f.Add("filter.state", "must be held, or be left out")
	case a.IDs == nil && a.Query.State == Finished:
		f.Add("filter.state", "must not be finished: nothing can be done with finished tasks")
	case a.IDs == nil && !a.Action.Dead() && a.Query.State == Dead:
		f.Add("filter.state", "must not be dead: requeue and delete are for dead tasks")
	}
	for _, id := range a.IDs {
		if !task.ValidName(id) {
			f.Add("ids", task.NameProblem)
			break
		}
	}
	moves := a.Action == MoveAction
	switch {
	case moves && a.Due.IsZero() == (a.Shift.Milliseconds() == 0):
		f.Add("due_at", "must be given, or shift, not both")
	case !moves && a.Shift != 0:
		f.Add("shift", "is for the action move only")
	case !moves && a.Action != RequeueAction && !a.Due.IsZero():
		f.Add("due_at", "is for the actions move and requeue only")
	}
	if a.Due.After(s.engine.Config.Clock().Add(MaxAhead)) {
		f.Add("due_at", "must be at most 3660 days ahead")
	}
	if a.Shift > MaxAhead || a.Shift < -MaxAhead || a.Shift%time.Millisecond != 0 {
		f.Add("shift", "must be whole milliseconds, at most 3660 days either way")
	}
}
