package tasks

import "slices"

// spoolIsEmpty reports whether the ledger has all tasks that were spooled here.
func (s *engine) spoolIsEmpty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.spool.numbers) == 0 && len(s.spool.inDoubt) == 0
}

// knowsSpooled reports whether a task is spooled here: then it is this process's,
// whichever node holds the shards.
func (s *engine) knowsSpooled(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spool != nil && s.knownSpooledLocked(id)
}

func (s *engine) knowsAllSpooled(ids []string) bool {
	return !slices.ContainsFunc(ids, func(id string) bool { return !s.knowsSpooled(id) })
}

// isInDoubt reports whether it is not known yet if a spooled task has been moved to a shard
// that another node has taken over meanwhile.
func (s *engine) isInDoubt(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spool != nil && slices.ContainsFunc(s.spool.inDoubt, func(x inDoubtMove) bool { return x.id == id })
}
