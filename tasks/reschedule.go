package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/task"
)

// Reschedule gives a pending or ready task a new deadline, a new payload, a new
// target, or several of them, in one step: until the ledger has the new record, the task is not
// delivered, and there is never a moment in which it exists twice or not at all.
//
// Errors: ErrInvalid, ErrTooLarge, ErrNotFound, ErrDelivering, ErrDead,
// ErrReplaying, ErrUnavailable, ErrUnknown, ErrClosed.
func (s *Scheduler) Reschedule(ctx context.Context, id string, m Move) (Task, error) {
	var f task.Faults
	if m.Delay != nil {
		if !m.Due.IsZero() {
			f.Add("due_at", "must not stand beside delay")
		}
		f.CheckDelay("delay", *m.Delay)
	} else if m.Due.After(s.engine.Config.Clock().Add(MaxAhead)) {
		f.Add("due_at", "must be at most 3660 days ahead")
	}
	f.CheckSettings(m.Target)
	if err := f.Err(); err != nil {
		return Task{}, err
	}
	if len(m.Payload) > s.engine.Config.MaxPayload {
		return Task{}, fmt.Errorf("%w: payload must be at most %d bytes", ErrTooLarge, s.engine.Config.MaxPayload)
	}
	query := func(ctx context.Context, id string) func(recovery.ShardID) cluster.MoveQuery {
		return cluster.AboutMove(ctx, id, m)
	}
	return about(ctx, s, id, cluster.MoveMethod, query,
		func(ctx context.Context, id string) (Task, error) { return s.engine.Reschedule(ctx, id, m) })
}

// Fire makes a pending task due now, also in a topic with a Spread; but if a restart
// comes before its delivery, it may be spread. Errors: as of Reschedule.
func (s *Scheduler) Fire(ctx context.Context, id string) (Task, error) {
	return about(ctx, s, id, cluster.FireMethod, cluster.AboutID, s.engine.FireNow)
}

// Replace creates the task, or puts it in the place of the pending or ready task that has its id:
// the deadline moves, and content and revision with it; attempts are counted anew. Task.Repeated
// reports whether there was one. Errors: as of Schedule and Reschedule, without ErrExists.
//
// With Request.Supersede it also takes the place of a task that is being delivered, that is dead,
// or that is finished and kept, in one write: a crash leaves the one or the other. From then on the
// receipt of that delivery is stale, and what its handler returns is not heard. The task that is
// replaced keeps its time of creation, and its revision grows, in these states as in others; a
// version that the call asks for (WithVersion) is compared. Task.Repeated is false for a finished
// one.
func (s *Scheduler) Replace(ctx context.Context, r Request) (Task, error) {
	if s.engine.Config.Tracer != nil {
		return s.traced(ctx, r, s.replace)
	}
	return s.replace(ctx, r)
}

func (s *Scheduler) replace(ctx context.Context, r Request) (Task, error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	p, err := s.engine.PlanFor(ctx, &r)
	if err != nil {
		return Task{}, err
	}
	defer p.Free()
	var t Task
	switch {
	case s.cluster.Fleet == nil:
		t, err = s.cluster.Replace(ctx, &p)
	case !p.Chosen:
		return s.cluster.Schedule(ctx, &p, &r)
	default:
		t, err = s.cluster.ReplaceRouted(ctx, &p, &r)
	}
	err = s.hideHolder(ctx, &r, err)
	if errors.Is(err, ErrNotFound) { // only if there had to be one
		err = task.ErrVersion
	}
	return t, err
}
