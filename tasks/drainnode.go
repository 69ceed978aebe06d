package tasks

import (
	"context"
	"errors"
	"slices"

	"github.com/lapsehq/lapse/tasks/task"
)

var drainMethod = method[drainQuery, drainReply]{name: "drain"}

type (
	drainQuery struct{}
	drainReply struct{}
)

func (s *Scheduler) handleDrain(ctx context.Context, _ string, _ drainQuery) (drainReply, error) {
	return drainReply{}, s.beginDrain(ctx)
}

// DrainNode has a node of the ledger, be it this one, drain itself: see Drain. It returns
// when the node has begun; Nodes tells how far it is, or why it has given up, and there
// Drained tells when it is over. It may be repeated.
//
// Errors: ErrNoNode; ErrNoHeir; ErrNodeAway when the node does not answer, or shows no
// sign of life; ErrUnavailable; ErrClosed.
func (s *Scheduler) DrainNode(ctx context.Context, name string) error {
	nodes, err := s.Nodes(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(nodes, func(n Node) bool { return n.Name == name })
	switch {
	case i < 0:
		return ErrNoNode
	case nodes[i].Self:
		return s.beginDrain(ctx)
	case !nodes[i].Live || nodes[i].Released || s.shared == nil:
		return ErrNodeAway
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	_, err = call(ctx, s, name, drainMethod, drainQuery{})
	return err
}

// beginDrain begins to drain this node, unless that has begun.
func (s *Scheduler) beginDrain(ctx context.Context) error {
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
func (s *Scheduler) drainItself() {
	switch err := s.Drain(s.engine.Life.Context); {
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

// Drained is closed when this node has been drained because DrainNode was called, here or
// at another node: nothing is held any more, and the program may end.
func (s *Scheduler) Drained() <-chan struct{} { return s.drain.done }
