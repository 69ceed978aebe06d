package tasks

import (
	"bytes"
	"cmp"
)

// A task is misfired when it was read back from the ledger for its first attempt, and its
// deadline (its place, in a topic with a Spread) is before the moment when this process
// began to hold its shard. Nobody has written down when the process before has ended, so
// that includes what was due before then, and not delivered or not settled.
//
// What becomes of it is decided when it would be delivered, by the settings of that
// moment; then the flag goes, as it does when a caller moves the task. MisfireCoalesce
// needs to know the whole group: its grouped tasks are held back, which is pending without a timer,
// until replay is over. Then, and whenever more are held back, revisit chooses.

// foundLocked is told of every task that was restored for another attempt.
func (s *Scheduler) foundLocked(t *topic, sl *slot, f *fields, since int64) {
	if sl.state != ready || f.attempt != 0 || sl.next >= since {
		return
	}
	sl.flags |= misfired
	if t.settings.Misfire == MisfireCoalesce && len(f.group) > 0 {
		t.undecided = true
	}
}

// missedLocked decides about a misfired task that was taken off its queue. It reports
// true if it is not to be delivered, or not yet.
func (s *Scheduler) missedLocked(n uint32, t *topic, sl *slot) bool {
	switch {
	case t.settings.Misfire == MisfireSkip:
		s.skipLocked(n, sl)
	case t.settings.Misfire == MisfireCoalesce && recordFlags(s.book.record(sl))&flagGroup != 0:
		s.setLocked(sl, pending)
		sl.gen++
		t.undecided = true
		if s.isReplayed() {
			s.revisitLocked(t)
		}
	default:
		sl.flags &^= misfired
		return false
	}
	return true
}

// heldBack tells that a task waits for a decision.
func (sl *slot) heldBack() bool {
	return sl.state == pending && sl.flags&misfired != 0 && sl.timer == 0
}

// decideAll has the topics decide that have waited for the end of replay.
func (s *Scheduler) decideAll() {
	s.mu.Lock()
	defer s.unlock()
	for _, t := range s.topics {
		if t.undecided {
			s.revisitLocked(t)
		}
	}
}

// revisitLocked has the waiting tasks of a topic looked at again, in the background: its
// settings have changed, or some are held back that can be decided about now.
func (s *Scheduler) revisitLocked(t *topic) {
	if s.ended {
		return
	}
	if s.revisits == nil {
		s.revisits = make(map[*topic]bool)
		s.background.Go(s.revisit)
	}
	s.revisits[t] = true
}

// revisit goes through the book, as often as topics ask for that.
func (s *Scheduler) revisit() {
	for {
		s.mu.Lock()
		v := visit{Scheduler: s, topics: s.revisits, newest: make(map[groupOf]candidate), decides: s.isReplayed()}
		s.revisits = nil
		if len(v.topics) > 0 {
			s.revisits = make(map[*topic]bool)
		}
		for t := range v.topics {
			t.undecided = false
		}
		s.unlock()
		if len(v.topics) == 0 || !v.walk() || !v.release() {
			return
		}
	}
}

// A visit is one walk over the book for some topics.
type visit struct {
	*Scheduler
	topics  map[*topic]bool
	newest  map[groupOf]candidate // of the misfired tasks seen so far
	decides bool                  // replay was over when it began: every group is complete
}

type groupOf struct {
	topic uint32
	group string
}

type candidate struct {
	slot         uint32
	due, created int64
}

// walk visits all slots, not too many under one lock, nor faster than the ledger takes
// what is skipped. It reports false if Close has begun.
func (v *visit) walk() bool {
	for from := uint32(0); ; {
		if len(v.newest) > 0 && !v.breathe() {
			return false
		}
		v.mu.Lock()
		if from >= v.book.slots() || v.ended {
			ended := v.ended
			v.unlock()
			return !ended
		}
		now, done := v.now(), 0
		chunk := v.book.chunks[from/chunkSlots]
		for i := from % chunkSlots; i < chunkSlots && done < atOnce; i++ {
			if sl := &chunk[i]; (sl.state == pending || sl.state == ready) && sl.flags&(placed|misfired) != 0 && v.topics[v.byNumber[sl.topic]] {
				v.visitLocked(from, sl, now)
				done++
			}
			from++
		}
		v.unlock()
	}
}

func (v *visit) visitLocked(n uint32, sl *slot, now int64) {
	t := v.byNumber[sl.topic]
	coalesces := sl.flags&misfired != 0 && t.settings.Misfire == MisfireCoalesce && recordFlags(v.book.record(sl))&flagGroup != 0
	switch {
	case coalesces && v.decides && !t.stopped():
		v.compareLocked(n, sl)
	case coalesces:
		t.undecided = true
	case sl.state == pending: // by settings of before, perhaps
		v.disarmLocked(sl)
		v.armLocked(n, sl, now)
	}
}

// compareLocked skips a misfired task, or the newest one of its group so far.
func (v *visit) compareLocked(n uint32, sl *slot) {
	f := v.book.fields(sl)
	key, this := groupOf{sl.topic, string(f.group)}, candidate{n, f.due, f.created}
	other, ok := v.newest[key]
	if !ok || !v.standsLocked(key, other) {
		v.newest[key] = this
		return
	}
	loser := n
	if v.later(this, other) {
		v.newest[key], loser = this, other.slot
	}
	sl = v.book.slot(loser)
	v.disarmLocked(sl)
	v.skipLocked(loser, sl)
}

// standsLocked tells that a candidate is still what it was when it was visited: nobody
// has cancelled or moved it, or is about to.
func (v *visit) standsLocked(key groupOf, c candidate) bool {
	sl := v.book.slot(c.slot)
	return (sl.state == pending || sl.state == ready) && sl.flags&misfired != 0 && sl.topic == key.topic &&
		string(v.book.fields(sl).group) == key.group
}

// later orders the tasks of a group.
func (v *visit) later(a, b candidate) bool {
	c := cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.created, b.created))
	if c == 0 {
		c = bytes.Compare(v.book.id(v.book.slot(a.slot)), v.book.id(v.book.slot(b.slot)))
	}
	return c > 0
}

// release lets the newest of each group go. It reports false if Close has begun.
func (v *visit) release() bool {
	v.mu.Lock()
	defer func() { v.unlock() }()
	done, now := 0, v.now()
	for key, c := range v.newest {
		if done++; done%atOnce == 0 {
			v.unlock()
			v.mu.Lock()
			now = v.now()
		}
		if v.ended {
			return false
		}
		if !v.standsLocked(key, c) {
			continue
		}
		sl := v.book.slot(c.slot)
		sl.flags &^= misfired
		if sl.state == pending {
			v.disarmLocked(sl)
			v.armLocked(c.slot, sl, now)
		}
	}
	return !v.ended
}
