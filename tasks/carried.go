package tasks

import "time"

// A carried delivery is one on its way to another node, whose receivers or workers
// make it. It stays open here, as one that only its receipt can settle.
type carried struct {
	Task    Task
	Receipt string
	Lease   time.Duration // what is left of it
}

// carry packs deliveries for another node.
func (s *Scheduler) carry(ds []*Delivery) []carried {
	packed := make([]carried, len(ds))
	now := s.elapsed()
	for i, d := range ds {
		packed[i] = carried{d.Task, d.Receipt(), d.lease.until - now}
	}
	return packed
}

// An origin is where a delivery has come from that another node has begun.
type origin struct {
	node  string        // that holds the task
	lease time.Duration // as it was when the delivery left there
	help  *help         // nil: for a receiver
	began time.Duration // help: when a worker began with it
}

// unpack makes deliveries of what has come from another node, which it sent at some time
// after sent. Their leases are counted from then, so that none ends here after it has
// ended there: this node may have stood still meanwhile.
func (s *Scheduler) unpack(from string, packed []carried, sent time.Duration, help *help) []*Delivery {
	ds := make([]*Delivery, len(packed))
	wall := s.cfg.Clock().Add(sent - s.elapsed())
	for i, p := range packed {
		ds[i] = &Delivery{
			Task: p.Task, LeaseUntil: wall.Add(p.Lease).UTC(), lease: lease{until: sent + p.Lease},
			receipt: p.Receipt, origin: &origin{node: from, lease: p.Lease, help: help},
		}
	}
	return ds
}

// leased parts deliveries of another node: those whose leases still run, and those that
// nobody needs to be given any more.
func (s *Scheduler) leased(ds []*Delivery) (run, over []*Delivery) {
	now := s.elapsed()
	for _, d := range ds {
		if d.lease.until > now {
			run = append(run, d)
		} else {
			over = append(over, d)
		}
	}
	return run, over
}
