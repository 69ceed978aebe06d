package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// Hold holds the countdown of a pending or ready task. The task is not delivered until Resume, and
// then has the time left that it has now. Its State is Held. A task that is held already stays as
// it is, and the call succeeds.
//
// The time that a hold takes is added to the deadline, and to the next attempt of a task that is
// retrying: a task that was late when it was held is as late when it is resumed, and not later.
// Cancel, Replace and Fire work on a held task as on any other. Reschedule with a new deadline ends
// the hold; with a payload alone it does not.
//
// Errors: ErrNotFound, ErrDelivering, ErrDead, ErrReplaying, ErrOverloaded, ErrUnavailable,
// ErrUnknown, ErrClosed.
func (s *Scheduler) Hold(ctx context.Context, id string) (Task, error) {
	return about(ctx, s, id, cluster.HoldMethod, cluster.AboutID, s.engine.Hold)
}

// Resume lets the countdown of a held task go on. A task that is not held stays as it is, and the
// call succeeds. Errors: as of Hold, without ErrDelivering.
func (s *Scheduler) Resume(ctx context.Context, id string) (Task, error) {
	return about(ctx, s, id, cluster.ResumeMethod, cluster.AboutID, s.engine.Resume)
}
