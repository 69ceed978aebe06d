package tasks

// room is how many records more memory takes, when a shard could be adopted.
func (s *engine) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomForMoreLocked()
}

func (s *engine) roomForMoreLocked() int {
	if s.ended || s.draining {
		return 0
	}
	return max(0, s.cfg.MaxPending-s.store.Len())
}
