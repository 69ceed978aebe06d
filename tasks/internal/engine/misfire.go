package engine

import (
	"bytes"
	"cmp"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A task is misfired when it was read back from the ledger for its first attempt, and its
// deadline (its place, in a topic with a Spread) is before the moment when this process
// began to hold its shard. There is no record of when the previous process ended. So tasks are
// misfired too that were due while it ran, and were not delivered or not settled.
//
// The settings at the moment of the delivery decide what becomes of a misfired task. Then it loses
// the flag, as it does when a caller moves it. MisfireCoalesce needs the whole group: misfired
// tasks with a group are held back, pending without a timer, until replay is over. Then, and
// whenever more are held back, a pass chooses.
//
// A pass compares only tasks at rest. A task that is being cancelled or moved does not count; if
// that is undone, it is held back again, and is the newest of those that are left.

// foundLocked is called for every task that was restored for another attempt. It marks misfired
// ones.
func (s *Engine) foundLocked(t *Topic, sl *store.Slot, f *record.Fields, since int64) {
	if sl.State != store.Ready || f.Attempt != 0 || sl.Next >= since {
		return
	}
	sl.Flags |= store.Misfired
	if t.Settings.Misfire == task.MisfireCoalesce && len(f.Group) > 0 {
		t.Undecided = true
	}
}

// missedLocked decides about a misfired task that was taken off its queue. It reports
// true if it is not to be delivered, or not yet.
func (s *Engine) missedLocked(n uint32, t *Topic, sl *store.Slot) bool {
	switch {
	case t.Settings.Misfire == task.MisfireSkip:
		s.skipLocked(n, sl)
	case t.Settings.Misfire == task.MisfireCoalesce && s.Store.Grouped(sl):
		s.SetLocked(sl, store.Pending)
		sl.Gen++
		t.Undecided = true
		if s.IsReplayed() {
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
func (s *Engine) decideLocked() {
	if s.IsReplayed() && !s.Ended {
		s.Life.Background.Go(s.decide)
	}
}

func (s *Engine) decide() {
	s.EachTopic(func(t *Topic) {
		if t.Undecided && s.IsReplayed() {
			s.misfirePassLocked(t)
		}
	})
}

// misfirePassLocked has the waiting tasks of a topic looked at again, in the background: its
// settings have changed, or some are held back that can be decided about now.
func (s *Engine) misfirePassLocked(t *Topic) {
	if s.Ended {
		return
	}
	if s.passesWanted == nil {
		s.passesWanted = make(map[*Topic]bool)
		s.Life.Background.Go(s.runMisfirePasses)
	}
	s.passesWanted[t] = true
}

// NewMisfirePassLocked begins a pass for some topics. The caller must run or leave it.
func (s *Engine) NewMisfirePassLocked(topics map[*Topic]bool) *MisfirePass {
	return &MisfirePass{
		Walk: s.WalkLocked(Pick{}, ""), Topics: topics,
		newest: make(map[groupOf]candidate), decides: s.IsReplayed(),
	}
}

// runMisfirePasses goes through the store, as often as topics ask for that.
func (s *Engine) runMisfirePasses() {
	for {
		s.Mu.Lock()
		v := s.NewMisfirePassLocked(s.passesWanted)
		s.passesWanted = nil
		if len(v.Topics) > 0 {
			s.passesWanted = make(map[*Topic]bool)
		}
		for t := range v.Topics {
			t.Undecided = false
		}
		s.Unlock()
		if len(v.Topics) == 0 || !v.Run() {
			return
		}
	}
}

// A MisfirePass is one walk over the store for some topics.
type MisfirePass struct {
	*Walk
	Topics  map[*Topic]bool
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

// Run visits all tasks, not too many under one lock, nor faster than the ledger takes
// what is skipped. It reports false if Close has begun.
func (v *MisfirePass) Run() bool {
	defer v.Leave()
	for !v.over {
		if len(v.newest) > 0 && !v.Breathe() {
			return false
		}
		v.Mu.Lock()
		if v.Ended {
			v.Unlock()
			return false
		}
		now, done := v.Now(), 0
		for n, sl := range v.pieceLocked() {
			if (sl.State == store.Pending || sl.State == store.Ready) && sl.Flags&(store.Windowed|store.Misfired) != 0 && v.Topics[v.TopicTable.ByNumber[sl.Topic]] {
				v.visitLocked(n, sl, now)
				done++
			}
			if done == AtOnce {
				break
			}
		}
		v.Unlock()
	}
	return v.LetGo()
}

func (v *MisfirePass) visitLocked(n uint32, sl *store.Slot, now int64) {
	t := v.TopicTable.ByNumber[sl.Topic]
	coalesces := sl.Flags&store.Misfired != 0 && t.Settings.Misfire == task.MisfireCoalesce && v.Store.Grouped(sl)
	switch {
	case coalesces && v.decides && !t.Stopped() && v.OwnedLocked(int(sl.Shard)).Stage == Active:
		v.CompareLocked(n, sl)
	case coalesces:
		t.Undecided = true
		// Replay has ended since this pass began: decideLocked has not seen this topic.
		if !v.decides && v.IsReplayed() {
			v.misfirePassLocked(t)
		}
	case sl.State == store.Pending: // by settings of before, perhaps
		v.DisarmLocked(sl)
		v.armLocked(n, sl, now)
	}
}

// CompareLocked skips a misfired task, or the newest one of its group so far.
func (v *MisfirePass) CompareLocked(n uint32, sl *store.Slot) {
	rec := v.Store.Record(sl)
	key, this := groupOf{sl.Topic, string(record.Group(rec))}, candidate{n, record.Due(rec), record.Created(rec)}
	other, ok := v.newest[key]
	if !ok || !v.standsLocked(key, other) {
		v.newest[key] = this
		return
	}
	loser := n
	if v.laterLocked(this, other) {
		v.newest[key], loser = this, other.slot
	}
	sl = v.Store.Slot(loser)
	v.DisarmLocked(sl)
	v.skipLocked(loser, sl)
}

// standsLocked reports whether a candidate is still what it was when it was visited: no caller has
// cancelled or moved it, or is about to.
func (v *MisfirePass) standsLocked(key groupOf, c candidate) bool {
	sl := v.Store.Slot(c.slot)
	return (sl.State == store.Pending || sl.State == store.Ready) && sl.Flags&store.Misfired != 0 && sl.Topic == key.topic &&
		string(v.Store.Group(sl)) == key.name
}

// laterLocked orders the tasks of a group.
func (v *MisfirePass) laterLocked(a, b candidate) bool {
	c := cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.created, b.created))
	if c == 0 {
		c = bytes.Compare(v.Store.ID(v.Store.Slot(a.slot)), v.Store.ID(v.Store.Slot(b.slot)))
	}
	return c > 0
}

// LetGo lets the newest of each group go. It reports false if Close has begun.
func (v *MisfirePass) LetGo() bool {
	v.Mu.Lock()
	defer func() { v.Unlock() }()
	done, now := 0, v.Now()
	for key, c := range v.newest {
		if done++; done%AtOnce == 0 {
			v.Unlock()
			v.Mu.Lock()
			now = v.Now()
		}
		if v.Ended {
			return false
		}
		if !v.standsLocked(key, c) {
			continue
		}
		sl := v.Store.Slot(c.slot)
		sl.Flags &^= store.Misfired
		if sl.State == store.Pending {
			v.DisarmLocked(sl)
			v.armLocked(c.slot, sl, now)
		}
	}
	return !v.Ended
}
