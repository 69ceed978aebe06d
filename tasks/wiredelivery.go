package tasks

import (
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// A wireDelivery is a delivery on its way to another node, whose receivers or workers make it.
// It stays open here, as a delivery that only its receipt can settle.
type wireDelivery struct {
	Task    Task
	Receipt string
	Lease   time.Duration // what is left of it
}

// encodeDeliveries makes the wire form of deliveries for another node.
func (s *cluster) encodeDeliveries(ds []*engine.Delivery) []wireDelivery {
	packed := make([]wireDelivery, len(ds))
	now := s.engine.Elapsed()
	for i, d := range ds {
		packed[i] = wireDelivery{d.Task, d.Receipt(), d.Lease.Until - now}
	}
	return packed
}

// decodeDeliveries makes deliveries of what another node has sent at some time after sent.
// Their leases are counted from then, so that none ends here after it has ended there: this
// node may have stood still meanwhile.
func (s *cluster) decodeDeliveries(from string, packed []wireDelivery, sent time.Duration, work any) []*engine.Delivery {
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
func (s *cluster) splitByLease(ds []*engine.Delivery) (run, over []*engine.Delivery) {
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
