package tasks

import "container/heap"

// A worker takes one of Config.MaxDeliveries places, or several if it delivers batches.
// While there are enough, a topic has as many as its concurrency allows. When they are
// all taken, topics share them by weight: those that want more stand in a crowd, and
// whoever has finished a delivery gives its place up if somebody in the crowd has a
// better claim to it.
//
// The better claim is that of the topic with fewer places for its weight: so a topic with
// receivers that hang holds no more than its share, however long they take. Between
// equals it is that of the topic which has had fewer turns for its weight, as in stride
// scheduling (Waldspurger and Weihl, "Stride Scheduling", 1995): so a single place, too,
// goes round by weight, and no topic starves.
type crowd []*topic

// A claim is what a topic's demand for a place is judged by.
type claim struct{ places, turns float64 }

func (c claim) before(o claim) bool {
	return c.places < o.places || c.places == o.places && c.turns < o.turns
}

// claim is that of a topic as it would be with some places less.
func (t *topic) claim(less int) claim {
	return claim{float64(t.workers-less) / float64(t.settings.Weight), t.turns}
}

func (c crowd) Len() int           { return len(c) }
func (c crowd) Less(i, j int) bool { return c[i].claim(0).before(c[j].claim(0)) }
func (c crowd) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].crowded, c[j].crowded = i+1, j+1
}
func (c *crowd) Push(x any) {
	t := x.(*topic)
	*c = append(*c, t)
	t.crowded = len(*c)
}
func (c *crowd) Pop() any {
	old := *c
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*c = old[:len(old)-1]
	t.crowded = 0
	return t
}

// placesLeftLocked is how many places more a topic may have.
func (s *Scheduler) placesLeftLocked(t *topic) int {
	return max(t.settings.Concurrency-t.workers, min(s.raisedLocked(t)-t.workers, s.cfg.MaxInFlight-s.workers-s.away))
}

// wantsLocked tells that a topic could use one more worker.
func (s *Scheduler) wantsLocked(t *topic) bool {
	if t.stopped() || s.ended || s.halted || t.deliverer == nil || t.later && s.roomLocked() <= 0 {
		return false
	}
	wanted := t.busy + t.allowed(t.waiting())
	return t.workers < min(t.settings.Concurrency, wanted) ||
		t.workers < min(s.raisedLocked(t), wanted) && s.workers+s.away < s.cfg.MaxInFlight
}

// joinLocked lets a topic stand in the crowd, or finds its place there anew. A topic
// that has not stood there for long does not make up for it: it begins where the others are.
func (s *Scheduler) joinLocked(t *topic) {
	if t.crowded != 0 {
		heap.Fix(&s.crowd, t.crowded-1)
		return
	}
	t.turns = max(t.turns, s.turns)
	heap.Push(&s.crowd, t)
}

// placeLocked gives free places to the crowd.
func (s *Scheduler) placeLocked() {
	for s.workers < s.cfg.MaxDeliveries {
		t := s.foremostLocked()
		if t == nil {
			return
		}
		s.turns = max(s.turns, t.turns)
		s.hireLocked(t)
		heap.Fix(&s.crowd, 0)
	}
}

// foremostLocked returns the topic in the crowd with the best claim, or nil if it is
// empty. Those before it that want nothing any more leave.
func (s *Scheduler) foremostLocked() *topic {
	for len(s.crowd) > 0 {
		t := s.crowd[0]
		if s.wantsLocked(t) {
			return t
		}
		heap.Pop(&s.crowd)
		s.wakeLocked(t) // it may have to wait for MaxInFlight, or its rate, instead
	}
	return nil
}

// turnLocked counts deliveries, and tells how many of its places their worker keeps: the
// others are better given to other topics, and have been.
func (s *Scheduler) turnLocked(t *topic, deliveries, places int) (kept int) {
	if len(s.crowd) == 0 {
		return places
	}
	t.turns += float64(deliveries) / float64(t.settings.Weight)
	for places > 0 && s.outclaimedLocked(t) {
		places--
		t.workers--
		s.workers--
		s.placeLocked()
	}
	if places > 0 {
		s.wakeLocked(t) // it may want back what it has given
	}
	return places
}

// outclaimedLocked reports whether a topic in the crowd has a better claim to a place of a
// topic.
func (s *Scheduler) outclaimedLocked(t *topic) bool {
	if t.crowded != 0 {
		heap.Fix(&s.crowd, t.crowded-1)
	}
	other := s.foremostLocked()
	return other != nil && other != t && other.claim(0).before(t.claim(1))
}
