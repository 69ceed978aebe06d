package tasks

import "runtime"

// eachTopic calls visit for every topic, under the lock: at most atOnce topics in one critical
// section, with the lock free for others in between. A topic that is made or forgotten
// meanwhile is visited once or not at all; one whose name is forgotten and met again, perhaps
// twice. It is the only way to visit all topics: TestNoLoopOverAllTopics fails for others.
func (s *engine) eachTopic(visit func(*topic)) { s.eachTopicThen(visit, func() {}) }

// eachTopicThen is eachTopic with something that is done after each critical section.
func (s *engine) eachTopicThen(visit func(*topic), then func()) {
	for from := 0; ; from += atOnce {
		s.mu.Lock()
		part := s.someTopicsLocked(from)
		for _, t := range part {
			if t.name != "" { // else its place is vacant
				visit(t)
			}
		}
		s.unlock()
		then()
		if len(part) < atOnce {
			return
		}
		runtime.Gosched() // who waits for the lock gets it before the next section
	}
}

// someTopicsLocked returns the topics of one critical section of eachTopic.
func (s *engine) someTopicsLocked(from int) []*topic {
	from = min(from, len(s.byNumber))
	return s.byNumber[from:min(from+atOnce, len(s.byNumber))]
}
