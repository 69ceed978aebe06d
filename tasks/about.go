package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A call that names a task by its id does not tell the tasks of topics that its Grant does not
// allow from those that do not exist. Inside, ErrNotGranted tells them apart: no node looks
// elsewhere for a task that it has found.

// about makes a call about the task of an id: here, or at the node that has it.
func about[Q any](
	ctx context.Context, s *Scheduler, id string, m cluster.Method[Q, Task],
	query func(context.Context, string) func(recovery.ShardID) Q, here func(context.Context, string) (Task, error),
) (Task, error) {
	t, err := routed(ctx, s, id, m, query, here)
	return t, s.hide(ctx, id, err)
}

// routed is about without hide.
func routed[Q any](
	ctx context.Context, s *Scheduler, id string, m cluster.Method[Q, Task],
	query func(context.Context, string) func(recovery.ShardID) Q, here func(context.Context, string) (Task, error),
) (Task, error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if s.cluster.Fleet == nil {
		return here(ctx, id)
	}
	t, _, err := cluster.Routed(ctx, s.cluster, id, m, query(ctx, id), func(ctx context.Context) (Task, error) { return here(ctx, id) })
	return t, err
}

// hide returns an error about the task of an id as the caller may be told it.
func (s *Scheduler) hide(ctx context.Context, id string, err error) error {
	return s.unlessForeign(ctx, id, err, ErrNotFound)
}

// hideHolder returns an error of the creation of a task as the caller may be told it. That a task
// of another topic has the id is told, and no more of it: ErrTaken.
func (s *Scheduler) hideHolder(ctx context.Context, r *Request, err error) error {
	if !GrantOf(ctx).Allows(r.Topic) {
		return err
	}
	return s.unlessForeign(ctx, r.ID, err, ErrTaken)
}

// unlessForeign returns an error, or hidden in its place if it tells of a task that the caller's
// Grant does not allow. Some errors do not tell the topic of their task, so it is looked up. If
// that fails, its error is returned: the other one might tell of a foreign task.
func (s *Scheduler) unlessForeign(ctx context.Context, id string, err, hidden error) error {
	if len(task.PatternsOf(ctx)) == 0 {
		return err
	}
	found := err
	if errors.Is(err, ErrDead) || errors.Is(err, engine.ErrFinished) || errors.Is(err, ErrExists) {
		_, found = routed(ctx, s, id, cluster.GetMethod, cluster.AboutID, s.engine.Get)
	}
	switch {
	case errors.Is(found, ErrNotGranted):
		return hidden
	case found == nil, errors.Is(found, ErrNotFound):
		return err
	}
	return found
}
