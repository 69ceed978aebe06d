package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// A call that names a task by its id does not tell the tasks of topics that its Grant does not
// allow from those that do not exist. Inside, ErrNotGranted tells them apart: no node looks
// elsewhere for a task that it has found.

// about makes a call about the task of an id: here, or at the node that has it.
func about[Q any](
	ctx context.Context, s *Scheduler, id string, m cluster.Method[Q, cluster.WireTask],
	query func(context.Context, string) func(recovery.ShardID) Q, here func(context.Context, string) (Task, error),
) (Task, error) {
	t, err := routed(ctx, s, id, m, query, here)
	return t, s.hide(ctx, id, err)
}

// routed is about without hide.
func routed[Q any](
	ctx context.Context, s *Scheduler, id string, m cluster.Method[Q, cluster.WireTask],
	query func(context.Context, string) func(recovery.ShardID) Q, here func(context.Context, string) (Task, error),
) (Task, error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if s.cluster.Fleet == nil {
		return here(ctx, id)
	}
	return cluster.RoutedTask(ctx, s.cluster, id, m, query(ctx, id), func(ctx context.Context) (Task, error) { return here(ctx, id) })
}

// hide returns an error about the task of an id as the caller may be told it.
func (s *Scheduler) hide(ctx context.Context, id string, err error) error {
	if s.isForeign(ctx, id, err) {
		return ErrNotFound
	}
	return err
}

// hideHolder returns an error of the creation of a task as the caller may be told it. That a task
// of another topic has the id is told, and no more of it: ErrExists.
func (s *Scheduler) hideHolder(ctx context.Context, r *Request, err error) error {
	if GrantOf(ctx).Allows(r.Topic) && s.isForeign(ctx, r.ID, err) {
		return ErrExists
	}
	return err
}

// isForeign reports whether an error tells of a task that the caller's Grant does not allow. Dead
// and finished tasks are found without their topics, so these are looked up.
func (s *Scheduler) isForeign(ctx context.Context, id string, err error) bool {
	if g := GrantOf(ctx); err == nil || g == nil || len(g.Topics) == 0 {
		return false
	}
	if errors.Is(err, ErrDead) || errors.Is(err, engine.ErrFinished) {
		_, err = routed(ctx, s, id, cluster.GetMethod, cluster.AboutID, s.engine.Get)
	}
	return errors.Is(err, ErrNotGranted)
}
