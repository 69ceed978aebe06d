package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// DrainNode has a node of the ledger drain itself: see Drain. The node may be this one. DrainNode
// returns when the node has begun. Nodes shows how far it is, or why it has given up. Drained of
// that node's Scheduler says when it is over. The call may be repeated.
//
// Errors: ErrNoNode; ErrNoSuccessor; ErrNodeAway when the node does not answer, or sends no
// heartbeat; ErrUnavailable; ErrClosed.
func (s Admin) DrainNode(ctx context.Context, name string) error {
	n, err := s.cluster.FindNode(ctx, name)
	switch {
	case err != nil:
		return err
	case n.Self:
		return s.cluster.BeginDrain(ctx)
	case !n.Live || n.Released || s.cluster.Fleet == nil:
		return ErrNodeAway
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	_, err = cluster.Call(ctx, s.cluster, name, cluster.DrainMethod, cluster.DrainQuery{})
	return err
}

// GiveUpSpools says that the missing spools of a node will not come back, see Node.MissingSpools:
// their tasks count as lost, and ids of the node's shards that no node has as not found. If the
// node is started with one of them all the same, its tasks are delivered. The call may be
// repeated.
//
// Errors: ErrNoNode; ErrUnavailable; ErrClosed.
func (s Admin) GiveUpSpools(ctx context.Context, name string) error {
	return s.cluster.GiveUpSpools(ctx, name)
}

// Drained is closed when this node has been drained because DrainNode was called, here or
// at another node: nothing is held any more, and the program may end.
func (s Admin) Drained() <-chan struct{} { return s.cluster.Drain.Done }
