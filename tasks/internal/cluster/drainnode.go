package cluster

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/tasks/task"
)

// DrainMethod has a node drain itself.
var DrainMethod = Method[DrainQuery, drainReply]{Name: "drain"}

type (
	// A DrainQuery has a node drain itself.
	DrainQuery struct{}
	drainReply struct{}
)

func (s *Cluster) handleDrain(ctx context.Context, _ string, _ DrainQuery) (drainReply, error) {
	return drainReply{}, s.BeginDrain(ctx)
}

// BeginDrain begins to drain this node, unless that has begun.
func (s *Cluster) BeginDrain(ctx context.Context) error {
	s.engine.Mu.Lock()
	under := s.Drain.itself
	s.engine.Mu.Unlock()
	if under {
		return nil
	}
	if _, err := s.successors(ctx); err != nil {
		return err
	}
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	switch {
	case s.engine.Ended:
		return task.ErrClosed
	case s.Drain.itself:
		return nil
	}
	s.Drain.itself = true
	s.engine.Life.Background.Go(s.drainItself)
	return nil
}

// drainItself drains this node because a caller has asked for it.
func (s *Cluster) drainItself() {
	switch err := s.DrainNode(s.engine.Life.Context); {
	case err == nil:
		close(s.Drain.Done)
	case errors.Is(err, task.ErrClosed):
	default:
		s.engine.Config.Log.Error("this node could not be drained; it takes no new tasks until it is asked again, or restarted", "node", s.engine.Config.Node, "error", err)
		s.engine.Mu.Lock()
		s.Drain.itself = false
		s.Drain.failed++
		s.Drain.fault = task.Cut(err.Error(), task.MaxReason)
		s.engine.Unlock()
	}
}
