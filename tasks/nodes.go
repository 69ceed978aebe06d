package tasks

import (
	"context"
)

// Nodes lists the nodes that share the ledger, by name. A ledger that is not shared has
// one. Errors: ErrUnavailable, ErrClosed.
func (s *Scheduler) Nodes(ctx context.Context) ([]Node, error) {
	return s.cluster.Nodes(ctx)
}
