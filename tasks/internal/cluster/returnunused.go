package cluster

import (
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// ReturnUnusedLocked is returnUnused in the background.
func (s *Cluster) ReturnUnusedLocked(ds []*engine.Delivery) {
	if len(ds) > 0 && !s.engine.Ended {
		s.Peers.Counts.returned += int64(len(ds))
		s.engine.Life.Background.Go(func() { s.returnUnused(ds) })
	}
}

// returnUnused returns deliveries to the nodes that they came from. A task whose delivery cannot
// be returned is ready again when its lease is over.
func (s *Cluster) returnUnused(ds []*engine.Delivery) {
	by := make(map[string][]string)
	for _, d := range ds {
		by[d.Source.Node] = append(by[d.Source.Node], d.Receipt())
	}
	for node, receipts := range by {
		ctx, cancel := s.engine.Within(s.engine.Life.Context)
		_, err := Call(ctx, s, node, ReturnMethod, returnQuery{receipts})
		cancel()
		if err == nil {
			continue
		}
		s.returnToOwner(receipts)
	}
}
