package tasks

// Reconsider checks again what this process cannot deliver (Topic.Undeliverable), and
// delivers what it can by now. It is to be called when a way of delivery has got what it
// lacked, such as a secret.
func (s *Scheduler) Reconsider() {
	type candidate struct {
		name     string
		set      TopicSettings
		revision int64
	}
	var all []candidate
	s.mu.Lock()
	for name, t := range s.topics {
		// Settings that could not be read have no kind; only better ones help.
		if t.unfit != nil && t.settings.Kind != "" {
			all = append(all, candidate{name, t.given(), t.revision})
		}
	}
	s.unlock()
	for _, c := range all {
		e, err := s.cfg.ways.equip(c.name, c.set)
		if err != nil {
			continue
		}
		s.mu.Lock()
		// Else somebody has set it anew meanwhile, or it was forgotten.
		if t, ok := s.topics[c.name]; ok && t.unfit != nil && t.revision == c.revision {
			s.equipLocked(t, e, c.revision)
		}
		s.unlock()
	}
}
