package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// Get returns a task. Errors: ErrNotFound, ErrReplaying, ErrUnavailable,
// ErrClosed.
func (s *Scheduler) Get(ctx context.Context, id string) (Task, error) {
	return about(ctx, s, id, cluster.GetMethod, cluster.AboutID, s.engine.Get)
}
