package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// Cancel makes sure that a task is never delivered (again). It returns nil once
// the ledger has forgotten the task, and again nil, for a while, when it is
// repeated. A dead task is deleted.
//
// Errors: ErrNotFound, ErrDelivering, ErrReplaying, ErrUnavailable, ErrUnknown,
// ErrUnrecorded, ErrClosed. After ErrUnknown the task is not delivered until the ledger has
// answered; after ErrUnrecorded this process never delivers it. Both times it is nil when
// the call is repeated later.
func (s *Scheduler) Cancel(ctx context.Context, id string) error {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if s.cluster.Fleet == nil {
		return engine.Cancelled(s.engine.CancelLocal(ctx, id))
	}
	_, at, err := cluster.Routed(ctx, s.cluster, id, cluster.CancelMethod, cluster.AboutID(ctx, id), func(ctx context.Context) (struct{}, error) { return struct{}{}, s.engine.CancelLocal(ctx, id) })
	switch gone := engine.Cancelled(err); {
	case gone == nil && at.Node != "":
		s.engine.Mu.Lock()
		s.cluster.AddRecentCancelLocked(id)
		s.engine.Mu.Unlock()
		return nil
	case errors.Is(gone, ErrNotFound) && !errors.Is(gone, engine.ErrFinished) && s.cluster.CancelledRecently(id):
		return nil
	default:
		return gone
	}
}
