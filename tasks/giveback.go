package tasks

// takeBackLocked makes a task ready again whose delivery nobody has seen. It reports false
// if that delivery is not open here, or is being handed over.
func (s *Scheduler) takeBackLocked(d *Delivery) bool {
	l, ok := s.open[d.slot]
	if !ok || l.nonce != d.lease.nonce || s.book.slot(d.slot).state != delivering {
		return false
	}
	s.putBackLocked(d.slot, s.book.slot(d.slot))
	return true
}

// giveBackLocked gives deliveries back to whom they came from, in the background.
func (s *Scheduler) giveBackLocked(ds []*Delivery) {
	if len(ds) > 0 && !s.ended {
		s.peers.counts.returned += int64(len(ds))
		s.background.Go(func() { s.giveBack(ds) })
	}
}

// giveBack gives deliveries back. What cannot be given back is ready again when its lease
// is over.
func (s *Scheduler) giveBack(ds []*Delivery) {
	by := make(map[string][]string)
	for _, d := range ds {
		by[d.origin.node] = append(by[d.origin.node], d.receipt)
	}
	for node, receipts := range by {
		ctx, cancel := s.within(s.ctx)
		_, err := ask(ctx, s, node, returnQuestion, returnAsk{receipts})
		cancel()
		if err == nil {
			continue
		}
		s.returnMoved(receipts)
	}
}
