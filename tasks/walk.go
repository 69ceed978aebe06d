package tasks

import "iter"

// A walk goes over the tasks in memory: those of a group, or all, and of these only those
// of a topic if it is about one. It goes a piece at a time, so that others get the lock in
// between. What is there from its begin to its end comes by once; what leaves or joins
// meanwhile, once or not at all.
type walk struct {
	*Scheduler
	topic string // empty: any

	group     *tour  // nil: a walk over the slots
	from, end uint32 // of the slots, those that are still to come
	over      bool   // nothing more comes
}

// walkLocked begins a walk. An empty topic or group means any. It must be left.
func (s *Scheduler) walkLocked(topic, group string) *walk {
	w := &walk{Scheduler: s, topic: topic, end: s.book.slots()}
	if group != "" {
		w.group = s.book.groups.begin(s.book, group)
	}
	return w
}

// leave ends a walk, at whatever point.
func (w *walk) leave() {
	if w.group != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.book.groups.end(w.group)
	}
}

// pieceLocked yields as many tasks as are dealt with under one lock, or fewer: a piece may
// hold none and yet not be the last one. A loop that breaks off goes on behind the task
// that it has seen last.
func (w *walk) pieceLocked() iter.Seq2[uint32, *slot] {
	return func(yield func(uint32, *slot) bool) {
		var only uint32 // number of the topic; 0 for all
		if w.topic != "" {
			t, ok := w.topics[w.topic]
			if !ok { // nobody has met it, or its last task has gone
				w.over = true
				return
			}
			only = t.number
		}
		if w.group != nil {
			w.members(only, yield)
		} else {
			w.slots(only, yield)
		}
	}
}

// members goes over some tasks of the group. Each of them is a wait for memory or two,
// so that they are not as many as slots would be.
func (w *walk) members(only uint32, yield func(uint32, *slot) bool) {
	for range atOnce {
		n := w.book.groups.advance(w.book, w.group)
		if n == 0 {
			w.over = true
			return
		}
		if sl := w.book.slot(n); (only == 0 || sl.topic == only) && !yield(n, sl) {
			return
		}
	}
}

// slots goes over the rest of a chunk.
func (w *walk) slots(only uint32, yield func(uint32, *slot) bool) {
	if w.over = w.from >= w.end; w.over {
		return
	}
	first := w.from - w.from%chunkSlots
	chunk := w.book.chunks[first/chunkSlots]
	for i := w.from - first; i < chunkSlots; i++ {
		if sl := &chunk[i]; sl.state != vacant && (only == 0 || sl.topic == only) && !yield(first+i, sl) {
			w.from = first + i + 1
			return
		}
	}
	w.from = first + chunkSlots
	w.over = w.from >= w.end
}
