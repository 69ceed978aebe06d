package tasks

// returnUnusedLocked is returnUnused in the background.
func (s *Scheduler) returnUnusedLocked(ds []*delivery) {
	if len(ds) > 0 && !s.engine.ended {
		s.peers.counts.returned += int64(len(ds))
		s.engine.background.Go(func() { s.returnUnused(ds) })
	}
}

// returnUnused returns deliveries to the nodes that they came from. A task whose delivery cannot
// be returned is ready again when its lease is over.
func (s *Scheduler) returnUnused(ds []*delivery) {
	by := make(map[string][]string)
	for _, d := range ds {
		by[d.source.node] = append(by[d.source.node], d.receipt)
	}
	for node, receipts := range by {
		ctx, cancel := s.engine.within(s.engine.ctx)
		_, err := call(ctx, s, node, returnMethod, returnQuery{receipts})
		cancel()
		if err == nil {
			continue
		}
		s.returnToOwner(receipts)
	}
}
