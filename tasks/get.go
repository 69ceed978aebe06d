package tasks

import (
	"context"
)

// Get returns a task. Errors: ErrNotFound, ErrReplaying, ErrUnavailable,
// ErrClosed.
func (s *Scheduler) Get(ctx context.Context, id string) (Task, error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if s.cluster.shared == nil {
		return s.engine.Get(ctx, id)
	}
	t, _, err := routed(ctx, s.cluster, id, getMethod, aboutID(ctx, id), func(ctx context.Context) (Task, error) { return s.engine.Get(ctx, id) })
	return t, err
}
