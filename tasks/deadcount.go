package tasks

import (
	"math"
	"time"
)

// What memory knows of the dead: which ids they have (deadIndex.ids), how many there
// are of each topic (topic.gauges), and when the first of these died.

// oldestDead is when the first of those that are dead in a topic died. It may lag behind, but
// only to an earlier time: no task that is dead died before it.
type oldestDead struct {
	at     int64 // Unix ms; math.MaxInt64: none that the sweep could delete
	gone   bool  // that task is dead no longer: the ledger knows the next one
	asking bool  // the ledger is being asked
}

// addDeadLocked records that a task is dead, on record. It may be called again: the ledger's
// index shows a task before its burial is confirmed.
func (s *engine) addDeadLocked(t *topic, shard int, id []byte, died int64) {
	hash := s.store.Hash(id)
	for c := range s.dead.checks {
		delete(c.missing, hash)
	}
	_, again := s.dead.ids[hash]
	if h := s.ownedLocked(shard); h != nil && h.dead != nil {
		if _, again = h.dead[hash]; !again {
			h.dead[hash] = t.number
		}
	}
	if again {
		return
	}
	s.dead.ids[hash] = struct{}{}
	if t.gauges[Dead] == 0 || died < t.oldest.at {
		t.oldest.at = died
	}
	t.gauges[Dead]++
	t.countLocked(0)
}

// removeDeadLocked records that a task, which had died then, is dead no longer, on record. died
// is noneDead if the caller knows the next one already. It changes nothing if memory has
// found out before that the ledger had lost the task.
func (s *engine) removeDeadLocked(t *topic, shard int, id []byte, died int64) {
	hash := s.store.Hash(id)
	if h := s.ownedLocked(shard); h != nil && h.dead != nil {
		if _, known := h.dead[hash]; !known {
			return
		}
		delete(h.dead, hash)
	}
	delete(s.dead.ids, hash)
	t.gauges[Dead]--
	t.countLocked(0)
	if l := &t.oldest; died != noneDead && (died <= l.at || l.asking) {
		l.gone = true
	}
}

// askLocked begins to ask the ledger for the oldest dead task. It returns what is known so far,
// for learnLocked.
func (l *oldestDead) askLocked() int64 {
	l.asking, l.gone = true, false
	return l.at
}

// learnLocked ends it with the answer. If a task has left the dead meanwhile, the answer may be
// about that one, and the ledger is asked again. If a task has died earlier than all others, by
// a clock that was set back, that time is the answer.
func (l *oldestDead) learnLocked(before, answer int64) {
	l.asking = false
	if l.at != before {
		answer = min(l.at, answer)
	}
	l.at = answer
}

// lostDead records that a task is not among the dead of its topic, and perhaps never was.
func (t *topic) lostDead() {
	t.gauges[Dead]--
	t.countLocked(0)
	t.oldest.gone = true // perhaps: the ledger knows the next one
}

// deadSince returns when the first of those that are dead died; zero if there is none.
func (t *topic) deadSince() time.Time {
	if t.gauges[Dead] == 0 || t.oldest.at == noneDead {
		return time.Time{}
	}
	return fromMillis(t.oldest.at)
}

// noneDead is the answer that there is none.
const noneDead = math.MaxInt64
