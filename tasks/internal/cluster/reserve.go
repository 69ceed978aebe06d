package cluster

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// Received returns deliveries of other nodes for a receiver, or gives them back if the receiver
// has left.
func (s *Cluster) Received(ctx context.Context, ds []*engine.Delivery) []*engine.Delivery {
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	if ctx.Err() == nil || s.engine.Ended {
		return ds
	}
	s.ReturnUnusedLocked(ds)
	return nil
}
