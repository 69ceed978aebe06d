package tasks

// Reconsider checks again what this process cannot deliver (Topic.Undeliverable), and
// delivers what it can by now. It is to be called when a way of delivery has got what it
// lacked, such as a secret.
func (s *engine) Reconsider() {
	type candidate struct {
		name     string
		set      TopicSettings
		revision int64
	}
	var all []candidate
	s.eachTopic(func(t *topic) {
		// Settings that could not be read have no kind; only better ones help.
		if t.undeliverable != nil && t.settings.Kind != "" {
			all = append(all, candidate{t.name, t.explicit(), t.revision})
		}
	})
	for _, c := range all {
		e, err := s.cfg.ByKind.Resolve(c.name, c.set)
		if err != nil {
			continue
		}
		s.mu.Lock()
		// Else a caller has set it anew meanwhile, or it was forgotten.
		if t, ok := s.topics[c.name]; ok && t.undeliverable != nil && t.revision == c.revision {
			s.applyLocked(t, e, c.revision)
		}
		s.unlock()
	}
}
