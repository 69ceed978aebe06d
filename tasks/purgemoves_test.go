package tasks_test

import "fmt"

// purgeTopic is a move of the simulation. No receiver pulls meanwhile, so that what was
// not being delivered before is gone.
func (s *simulation) purgeTopic() {
	topic := []string{"pulled", "counted"}[s.rng.IntN(2)]
	s.m.begin()
	p, err := s.Admin().Purge(s.T.Context(), topic)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.purged(fmt.Sprintf("Purge of %s: %+v", topic, p), err, func(f *fact) bool { return f.topic == topic })
}

// purged takes note of a purge of the tasks that belong to something, or may.
func (s *simulation) purged(what string, err error, belongs func(*fact) bool) {
	if err != nil && !s.excused("purge", err) {
		s.m.fault("purge", "%s: %v", what, err)
	}
	for id, f := range s.m.facts {
		if !belongs(f) && f.topic != "" || f.may&mayBeAlive == 0 {
			continue
		}
		s.m.note(id, "%s, %v", what, err)
		switch sure := f.may == mayBeAlive && !f.loose && belongs(f); {
		case s.m.over(id, s.faults), f.busy():
		case err == nil && sure && f.open == nil:
			f.gone()
		default:
			f.may |= mayBeAbsent
			f.loose = true
		}
	}
	s.m.calls = false
}
