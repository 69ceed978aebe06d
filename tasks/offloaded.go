package tasks

// takeOffloadedLocked takes deliveries of other nodes' tasks for a worker.
func (s *engine) takeOffloadedLocked(t *topic, places int) []*delivery {
	if t.stopped() || s.ended {
		return nil
	}
	s.returnStaleLocked(t)
	n := t.allowed(min(places, len(t.offloaded)))
	ds := t.offloaded[:n:n]
	for _, d := range ds {
		d.source.began = s.elapsed()
	}
	if t.offloaded = t.offloaded[n:]; len(t.offloaded) == 0 {
		t.offloaded = nil
	}
	t.spend(n)
	t.busy += n
	if t.asyncSettle {
		s.reservedInFlight += n
	}
	if t.limiter != nil && n > 0 {
		s.wakeLocked(t) // it may have to rest from now on
	}
	return ds
}

// returnStaleLocked returns offloaded deliveries that have waited here for a quarter of their
// leases: their receiver is to have time.
func (s *engine) returnStaleLocked(t *topic) {
	now, n := s.elapsed(), 0
	for n < len(t.offloaded) && (t.stopped() || t.offloaded[n].lease.until-now < t.offloaded[n].source.lease/4*3) {
		n++
	}
	s.cluster.returnUnusedLocked(t.offloaded[:n])
	t.offloaded = t.offloaded[n:]
}

// waiting returns how many tasks wait for a worker of this process.
func (t *topic) waiting() int { return t.queue.live + len(t.offloaded) }
