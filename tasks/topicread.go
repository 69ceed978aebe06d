package tasks

const (
	// A page of topics ends behind the one with which it has so many bytes, by an estimate.
	topicPageBytes = 4 << 20
)

// topicNames returns the names of all topics, in no order.
func (s *engine) topicNames() []string {
	s.mu.Lock()
	expected := len(s.topics)
	s.mu.Unlock()
	names := make([]string, 0, expected)
	s.eachTopic(func(t *topic) { names = append(names, t.name) })
	return names
}

// describeSome makes a page of topics, as far as they fit into one. Those that were
// forgotten meanwhile, or are gone, are left out.
func (s *engine) describeSome(names []string) (page TopicPage) {
	bytes := 0
	for i := 0; i < len(names); {
		s.mu.Lock()
		for end := min(i+atOnce, len(names)); i < end && bytes < topicPageBytes; i++ {
			if t, ok := s.topics[names[i]]; ok && !s.gone(t) {
				page.Topics = append(page.Topics, s.describeLocked(t))
				bytes += describedBytes + len(t.settings.Delivery)
			}
		}
		s.unlock()
		if bytes >= topicPageBytes && i < len(names) {
			page.NextCursor = names[i-1]
			return page
		}
	}
	return page
}

// describedBytes is about what a topic takes up in an answer, besides Delivery.
const describedBytes = 1 << 10
