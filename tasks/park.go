package tasks

// park writes down the deliveries that are still open and can be settled by their
// receipts, with what is left of their leases, so that they count after the next
// Open and are not delivered a second time before.
func (s *Scheduler) park() {
	s.mu.Lock()
	defer s.unlock()
	now := s.elapsed()
	for n, l := range s.open {
		sl := s.book.slot(n)
		if !l.away || sl.state != delivering {
			continue
		}
		f := s.book.fields(sl)
		f.state, f.attempt = recParked, l.attempt
		f.leaseRest, f.nonce = max(0, (l.until-now).Milliseconds()), l.nonce
		f.flags = f.flags&^flagClaimed | flagLease
		s.scratch = f.encode(s.scratch[:0])
		s.book.rewrite(n, s.scratch)
		s.setLocked(sl, parking)
		s.writeLocked(write{slot: n, op: opPark})
	}
}
