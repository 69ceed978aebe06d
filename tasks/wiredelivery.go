package tasks

import "time"

// A wireDelivery is a delivery on its way to another node, whose receivers or workers make it.
// It stays open here, as a delivery that only its receipt can settle.
type wireDelivery struct {
	Task    Task
	Receipt string
	Lease   time.Duration // what is left of it
}

// encodeDeliveries makes the wire form of deliveries for another node.
func (s *Scheduler) encodeDeliveries(ds []*delivery) []wireDelivery {
	packed := make([]wireDelivery, len(ds))
	now := s.engine.elapsed()
	for i, d := range ds {
		packed[i] = wireDelivery{d.Task, d.Receipt(), d.lease.until - now}
	}
	return packed
}

// decodeDeliveries makes deliveries of what another node has sent at some time after sent.
// Their leases are counted from then, so that none ends here after it has ended there: this
// node may have stood still meanwhile.
func (s *Scheduler) decodeDeliveries(from string, packed []wireDelivery, sent time.Duration, work any) []*delivery {
	ds := make([]*delivery, len(packed))
	wall := s.engine.cfg.Clock().Add(sent - s.engine.elapsed())
	for i, p := range packed {
		ds[i] = newDelivery(delivery{
			lease: lease{until: sent + p.Lease}, receipt: p.Receipt,
			source: &source{node: from, lease: p.Lease, work: work},
		}, p.Task, wall.Add(p.Lease).UTC())
	}
	return ds
}

// splitByLease splits deliveries of another node into those whose leases still run, and those
// whose leases are over.
func (s *Scheduler) splitByLease(ds []*delivery) (run, over []*delivery) {
	now := s.engine.elapsed()
	for _, d := range ds {
		if d.lease.until > now {
			run = append(run, d)
		} else {
			over = append(over, d)
		}
	}
	return run, over
}
