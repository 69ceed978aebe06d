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

// Peek looks at a task that this node has, without a wait: known reports whether it can tell if
// there is one. Of a task that is found it sets Topic, State, Due, SeenAt, Attempt and Payload, for
// which it uses the room of t.Payload; all other fields are zero. Where it knows nothing, Get does.
func (s Admin) Peek(ctx context.Context, id []byte, t *Task) (found, known bool) {
	return s.engine.Peek(ctx, id, t)
}
