package tasks

import (
	"bytes"
	"cmp"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// A task is misfired when it was read back from the ledger for its first attempt, and its
// deadline (its place, in a topic with a Spread) is before the moment when this process
// began to hold its shard. There is no record of when the process before has ended, so
// that includes what was due before then, and not delivered or not settled.
//
// What becomes of it is decided when it would be delivered, by the settings of that
// moment; then the flag goes, as it does when a caller moves the task. MisfireCoalesce
// needs to know the whole group: its grouped tasks are held back, which is pending without
// a timer, until replay is over. Then, and whenever more are held back, a pass chooses.
//
// Only tasks at rest are compared. One that is just being cancelled or moved does not
// count; should that be undone, it is held back again, and is the newest of those that are left.

// foundLocked is told of every task that was restored for another attempt.
func (s *engine) foundLocked(t *topic, sl *store.Slot, f *record.Fields, since int64) {
	if sl.State != store.Ready || f.Attempt != 0 || sl.Next >= since {
		return
	}
	sl.Flags |= store.Misfired
	if t.settings.Misfire == MisfireCoalesce && len(f.Group) > 0 {
		t.undecided = true
	}
}

// missedLocked decides about a misfired task that was taken off its queue. It reports
// true if it is not to be delivered, or not yet.
func (s *engine) missedLocked(n uint32, t *topic, sl *store.Slot) bool {
	switch {
	case t.settings.Misfire == MisfireSkip:
		s.skipLocked(n, sl)
	case t.settings.Misfire == MisfireCoalesce && s.store.Grouped(sl):
		s.setLocked(sl, store.Pending)
		sl.Gen++
		t.undecided = true
		if s.isReplayed() {
			s.misfirePassLocked(t)
		}
	default:
		sl.Flags &^= store.Misfired
		return false
	}
	return true
}

// heldBack reports whether a task waits for a decision.
func heldBack(sl *store.Slot) bool {
	return sl.State == store.Pending && sl.Flags&store.Misfired != 0 && sl.Timer == 0
}

// decideLocked has the topics decide, in the background, that have waited for the end of
// replay. Those of which a task is held back later do so by themselves, see missedLocked.
func (s *engine) decideLocked() {
	if s.isReplayed() && !s.ended {
		s.background.Go(s.decide)
	}
}

func (s *engine) decide() {
	s.eachTopic(func(t *topic) {
		if t.undecided && s.isReplayed() {
			s.misfirePassLocked(t)
		}
	})
}

// misfirePassLocked has the waiting tasks of a topic looked at again, in the background: its
// settings have changed, or some are held back that can be decided about now.
func (s *engine) misfirePassLocked(t *topic) {
	if s.ended {
		return
	}
	if s.passesWanted == nil {
		s.passesWanted = make(map[*topic]bool)
		s.background.Go(s.runMisfirePasses)
	}
	s.passesWanted[t] = true
}

// runMisfirePasses goes through the store, as often as topics ask for that.
func (s *engine) runMisfirePasses() {
	for {
		s.mu.Lock()
		v := misfirePass{walk: s.walkLocked(pick{}, ""), topics: s.passesWanted, newest: make(map[groupOf]candidate), decides: s.isReplayed()}
		s.passesWanted = nil
		if len(v.topics) > 0 {
			s.passesWanted = make(map[*topic]bool)
		}
		for t := range v.topics {
			t.undecided = false
		}
		s.unlock()
		if len(v.topics) == 0 || !v.run() {
			return
		}
	}
}

// A misfirePass is one walk over the store for some topics.
type misfirePass struct {
	*walk
	topics  map[*topic]bool
	newest  map[groupOf]candidate // of the misfired tasks seen so far
	decides bool                  // replay was over when it began: every group is complete
}

type groupOf struct {
	topic uint32
	name  string
}

type candidate struct {
	slot         uint32
	due, created int64
}

// run visits all tasks, not too many under one lock, nor faster than the ledger takes
// what is skipped. It reports false if Close has begun.
func (v *misfirePass) run() bool {
	defer v.leave()
	for !v.over {
		if len(v.newest) > 0 && !v.breathe() {
			return false
		}
		v.mu.Lock()
		if v.ended {
			v.unlock()
			return false
		}
		now, done := v.now(), 0
		for n, sl := range v.pieceLocked() {
			if (sl.State == store.Pending || sl.State == store.Ready) && sl.Flags&(store.Windowed|store.Misfired) != 0 && v.topics[v.byNumber[sl.Topic]] {
				v.visitLocked(n, sl, now)
				done++
			}
			if done == atOnce {
				break
			}
		}
		v.unlock()
	}
	return v.release()
}

func (v *misfirePass) visitLocked(n uint32, sl *store.Slot, now int64) {
	t := v.byNumber[sl.Topic]
	coalesces := sl.Flags&store.Misfired != 0 && t.settings.Misfire == MisfireCoalesce && v.store.Grouped(sl)
	switch {
	case coalesces && v.decides && !t.stopped() && v.ownedLocked(int(sl.Shard)).stage == active:
		v.compareLocked(n, sl)
	case coalesces:
		t.undecided = true
		if !v.decides && v.isReplayed() { // since this pass began: decideLocked has not seen this topic
			v.misfirePassLocked(t)
		}
	case sl.State == store.Pending: // by settings of before, perhaps
		v.disarmLocked(sl)
		v.armLocked(n, sl, now)
	}
}

// compareLocked skips a misfired task, or the newest one of its group so far.
func (v *misfirePass) compareLocked(n uint32, sl *store.Slot) {
	rec := v.store.Record(sl)
	key, this := groupOf{sl.Topic, string(record.Group(rec))}, candidate{n, record.Due(rec), record.Created(rec)}
	other, ok := v.newest[key]
	if !ok || !v.standsLocked(key, other) {
		v.newest[key] = this
		return
	}
	loser := n
	if v.later(this, other) {
		v.newest[key], loser = this, other.slot
	}
	sl = v.store.Slot(loser)
	v.disarmLocked(sl)
	v.skipLocked(loser, sl)
}

// standsLocked tells that a candidate is still what it was when it was visited: no
// caller has cancelled or moved it, or is about to.
func (v *misfirePass) standsLocked(key groupOf, c candidate) bool {
	sl := v.store.Slot(c.slot)
	return (sl.State == store.Pending || sl.State == store.Ready) && sl.Flags&store.Misfired != 0 && sl.Topic == key.topic &&
		string(v.store.Group(sl)) == key.name
}

// later orders the tasks of a group.
func (v *misfirePass) later(a, b candidate) bool {
	c := cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.created, b.created))
	if c == 0 {
		c = bytes.Compare(v.store.ID(v.store.Slot(a.slot)), v.store.ID(v.store.Slot(b.slot)))
	}
	return c > 0
}

// release lets the newest of each group go. It reports false if Close has begun.
func (v *misfirePass) release() bool {
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
		sl := v.store.Slot(c.slot)
		sl.Flags &^= store.Misfired
		if sl.State == store.Pending {
			v.disarmLocked(sl)
			v.armLocked(c.slot, sl, now)
		}
	}
	return !v.ended
}
