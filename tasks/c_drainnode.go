package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/tasks/task"
)

var drainMethod = method[drainQuery, drainReply]{name: "drain"}

type (
	drainQuery struct{}
	drainReply struct{}
)

func (s *cluster) handleDrain(ctx context.Context, _ string, _ drainQuery) (drainReply, error) {
	return drainReply{}, s.beginDrain(ctx)
}

// beginDrain begins to drain this node, unless that has begun.
func (s *cluster) beginDrain(ctx context.Context) error {
	s.engine.Mu.Lock()
	under := s.drain.itself
	s.engine.Mu.Unlock()
	if under {
		return nil
	}
	if _, err := s.heirs(ctx); err != nil {
		return err
	}
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	switch {
	case s.engine.Ended:
		return ErrClosed
	case s.drain.itself:
		return nil
	}
	s.drain.itself = true
	s.engine.Life.Background.Go(s.drainItself)
	return nil
}

// drainItself drains this node because a caller has asked for it.
func (s *cluster) drainItself() {
	switch err := s.drainNode(s.engine.Life.Context); {
	case err == nil:
		close(s.drain.done)
	case errors.Is(err, ErrClosed):
	default:
		s.engine.Config.Log.Error("this node could not be drained; it takes no new tasks until it is asked again, or restarted", "node", s.engine.Config.Node, "error", err)
		s.engine.Mu.Lock()
		s.drain.itself = false
		s.drain.failed++
		s.drain.fault = task.Cut(err.Error(), task.MaxReason)
		s.engine.Unlock()
	}
}
