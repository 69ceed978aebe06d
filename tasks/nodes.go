package tasks

import (
	"context"
)

// MaxPayload returns how many bytes a payload may have, see Config.MaxPayload.
func (s Admin) MaxPayload() int { return s.engine.Config.MaxPayload }

// NodeName is the name of this node among those that share the ledger.
func (s Admin) NodeName() string { return s.cluster.NodeName() }

// Nodes lists the nodes that share the ledger, by name. A ledger that is not shared has
// one. Errors: ErrUnavailable, ErrClosed.
func (s Admin) Nodes(ctx context.Context) ([]Node, error) {
	return s.cluster.Nodes(ctx)
}

// Node returns one of them by its name, with where its own shards are in the ledger. Errors: those
// of Nodes, ErrNoNode.
func (s Admin) Node(ctx context.Context, name string) (Node, error) {
	return s.cluster.Node(ctx, name)
}
