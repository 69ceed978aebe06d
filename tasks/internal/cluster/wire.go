package cluster

import (
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A WireDelivery is a delivery on its way to another node, whose receivers or workers make it.
// It stays open here, as a delivery that only its receipt can settle.
type WireDelivery struct {
	Task    task.Task
	Receipt string
	Lease   time.Duration // what is left of it
}

// EncodeDeliveries makes the wire form of deliveries for another node.
func (s *Cluster) EncodeDeliveries(ds []*engine.Delivery) []WireDelivery {
	packed := make([]WireDelivery, len(ds))
	now := s.engine.Elapsed()
	for i, d := range ds {
		packed[i] = WireDelivery{d.Task, d.Receipt(), d.Lease.Until - now}
	}
	return packed
}

// decodeDeliveries decodes deliveries that another node has sent at some time after sent. Their
// leases are counted from sent, so that none ends here after it has ended there: this node may have
// been suspended meanwhile.
func (s *Cluster) decodeDeliveries(from string, packed []WireDelivery, sent time.Duration, work any) []*engine.Delivery {
	ds := make([]*engine.Delivery, len(packed))
	wall := s.engine.Config.Clock().Add(sent - s.engine.Elapsed())
	for i, p := range packed {
		ds[i] = engine.NewDelivery(engine.Delivery{
			Lease: engine.Lease{Until: sent + p.Lease}, Given: p.Receipt,
			Source: &engine.Source{Node: from, Lease: p.Lease, Work: work},
		}, p.Task, wall.Add(p.Lease).UTC())
	}
	return ds
}

// splitByLease splits deliveries of another node into those whose leases still run, and those
// whose leases are over.
func (s *Cluster) splitByLease(ds []*engine.Delivery) (run, over []*engine.Delivery) {
	now := s.engine.Elapsed()
	for _, d := range ds {
		if d.Lease.Until > now {
			run = append(run, d)
		} else {
			over = append(over, d)
		}
	}
	return run, over
}
