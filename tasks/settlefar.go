package tasks

import (
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// Return gives deliveries back that never reached their receiver: their tasks are ready
// again at once, and the attempt does not count, unless the shard has changed hands since.
// A caller that has only the receipts settles them with the verb Return.
func (s Admin) Return(ds []Delivery) {
	var open, foreign, moved []*engine.Delivery
	for i := range ds {
		switch d, own := ds[i].Token().(*engine.Delivery); {
		case !own: // no scheduler made it
		case d.Source != nil:
			foreign = append(foreign, d)
		case d.Given == "":
			open = append(open, d)
		default:
			moved = append(moved, d)
		}
	}
	moved = append(moved, s.engine.TakeBack(open)...)
	s.cluster.ReturnUnused(foreign)
	if s.cluster.Fleet != nil {
		s.cluster.ReturnMoved(moved)
	}
}
