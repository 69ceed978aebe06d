package tasks

import (
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// Return gives deliveries back that never reached their receiver: their tasks are ready
// again at once, and the attempt does not count, unless the shard has changed hands since.
// A caller that has only the receipts settles them with the verb Return.
func (s *Scheduler) Return(ds []Delivery) {
	var moved []string
	var foreign []*engine.Delivery
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	for i := range ds {
		switch d, own := ds[i].Token().(*engine.Delivery); {
		case !own: // no scheduler made it
		case d.Source != nil:
			foreign = append(foreign, d)
		case d.Given == "" && s.engine.UndoDeliveryLocked(d):
		case s.cluster.Fleet != nil:
			moved = append(moved, d.Receipt())
		}
	}
	s.cluster.ReturnUnusedLocked(foreign)
	s.cluster.ReturnToOwnerLocked(moved)
}
