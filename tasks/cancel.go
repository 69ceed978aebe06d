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
	err := s.Admin().CancelOnce(ctx, id)
	switch {
	case errors.Is(err, engine.ErrCancelled):
		return nil
	case errors.Is(err, ErrNotFound) && !errors.Is(err, engine.ErrFinished) && s.wasCancelled(ctx, id):
		return nil
	}
	return err
}

// wasCancelled reports whether a node remembers that the last task of an id was cancelled.
func (s *Scheduler) wasCancelled(ctx context.Context, id string) bool {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	return s.cluster.CancelledBefore(ctx, []string{id})[0]
}

// CancelOnce is Cancel that returns nil once: of several callers that cancel a task one is told
// that it has done so, and the others ErrNotFound. Errors: as of Cancel.
func (s Admin) CancelOnce(ctx context.Context, id string) error {
	return s.hide(ctx, id, s.cancelOnce(ctx, id))
}

func (s *Scheduler) cancelOnce(ctx context.Context, id string) error {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if s.cluster.Fleet == nil {
		return s.engine.CancelLocal(ctx, id)
	}
	here := func(ctx context.Context) (cluster.CancelReply, error) {
		return cluster.CancelReply{}, s.engine.CancelLocal(ctx, id)
	}
	a, at, err := cluster.Routed(ctx, s.cluster, id, cluster.CancelMethod, cluster.AboutID(ctx, id), here)
	if err == nil && at.Node != "" {
		s.cluster.AddRecentCancel(id, a.Created)
	}
	if a.Before {
		return engine.ErrCancelled
	}
	return err
}
