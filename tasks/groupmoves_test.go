package tasks_test

import (
	"fmt"
	"slices"
)

// cancelGroup is a move of the simulation, like purgeTopic.
func (s *simulation) cancelGroup() {
	group := []string{"one", "two", "three"}[s.rng.IntN(3)]
	s.m.begin()
	c, err := s.CancelGroup(s.T.Context(), group)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	belongs := func(f *fact) bool { return f.topic != "" && f.group == group }
	for _, id := range c.Delivering {
		if f := s.m.fact(id); !f.during {
			s.m.is(id, mayBeAlive, "left by CancelGroup")
			if f.topic != "" && !belongs(f) {
				s.m.fault(id, "of the group %q is left by CancelGroup of %q", f.group, group)
			}
		}
	}
	for id, f := range s.m.facts {
		if err == nil && !f.during && f.may == mayBeAlive && belongs(f) && f.busy() && !slices.Contains(c.Delivering, id) {
			s.m.fault(id, "is being delivered, and CancelGroup does not say so")
		}
	}
	s.purged(fmt.Sprintf("CancelGroup of %s: %+v", group, c), err, belongs)
}
