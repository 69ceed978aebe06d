package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// Get returns a task. Errors: ErrNotFound, ErrReplaying, ErrUnavailable,
// ErrClosed.
func (s *Scheduler) Get(ctx context.Context, id string) (Task, error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if s.cluster.Fleet == nil {
		return s.engine.Get(ctx, id)
	}
	return cluster.RoutedTask(ctx, s.cluster, id, cluster.GetMethod, cluster.AboutID(ctx, id), func(ctx context.Context) (Task, error) { return s.engine.Get(ctx, id) })
}
