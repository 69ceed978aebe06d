package tasks

import (
	"math"
	"time"
)

// What memory knows of the dead: which ids they have (deadIndex.ids), how many there
// are of each topic (topic.gauges), and when the first of these died.

// longestDead is when the first of those that are dead in a topic died. It may lag
// behind, but only so that nobody is overlooked: nobody died before.
type longestDead struct {
	at     int64 // Unix ms; math.MaxInt64: none that the sweep could delete
	gone   bool  // it is dead no longer: the ledger knows who is next
	asking bool  // the ledger is being asked
}

// enterGraveLocked takes note that a task is dead, on record. It may be told again: the ledger's
// index shows a task before its burial is confirmed.
func (s *Scheduler) enterGraveLocked(t *topic, shard int, id []byte, died int64) {
	hash := s.book.index.hash(id)
	for c := range s.dead.checks {
		delete(c.missing, hash)
	}
	_, again := s.dead.ids[hash]
	if h := s.holdingLocked(shard); h != nil && h.graves != nil {
		if _, again = h.graves[hash]; !again {
			h.graves[hash] = t.number
		}
	}
	if again {
		return
	}
	s.dead.ids[hash] = struct{}{}
	if t.gauges[Dead] == 0 || died < t.longest.at {
		t.longest.at = died
	}
	t.gauges[Dead]++
	t.countLocked(0)
}

// leaveGraveLocked takes note that a task is dead no longer, on record. It had died
// then; noneDead if somebody knows already who is next. It changes nothing if memory has
// found out before that the ledger had lost the task.
func (s *Scheduler) leaveGraveLocked(t *topic, shard int, id []byte, died int64) {
	hash := s.book.index.hash(id)
	if h := s.holdingLocked(shard); h != nil && h.graves != nil {
		if _, known := h.graves[hash]; !known {
			return
		}
		delete(h.graves, hash)
	}
	delete(s.dead.ids, hash)
	t.gauges[Dead]--
	t.countLocked(0)
	if l := &t.longest; died != noneDead && (died <= l.at || l.asking) {
		l.gone = true
	}
}

// askLocked begins to ask the ledger who has been dead the longest. It returns what is
// known so far, for learnLocked.
func (l *longestDead) askLocked() int64 {
	l.asking, l.gone = true, false
	return l.at
}

// learnLocked ends it with the answer. If somebody has left meanwhile, it may have
// been who the answer is about, and the ledger is asked again; if somebody has
// died earlier than all others, by a clock that was set back, that is the answer.
func (l *longestDead) learnLocked(before, answer int64) {
	l.asking = false
	if l.at != before {
		answer = min(l.at, answer)
	}
	l.at = answer
}

// lostDead takes note that a task is not among the dead of its topic, and perhaps never was.
func (t *topic) lostDead() {
	t.gauges[Dead]--
	t.countLocked(0)
	t.longest.gone = true // perhaps: the ledger knows who is next
}

// deadSince is when the first of those that are dead died; zero if there is none.
func (t *topic) deadSince() time.Time {
	if t.gauges[Dead] == 0 || t.longest.at == noneDead {
		return time.Time{}
	}
	return fromMillis(t.longest.at)
}

// noneDead is the answer that there is none.
const noneDead = math.MaxInt64
