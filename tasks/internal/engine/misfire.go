package engine

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/coalesce"
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
//
// The newest of a group is let go, unless other nodes may have misfired tasks of the group. Then it
// stays held back, as a coalesce.Choice, and package cluster asks them, see Choices and Decide.

// A misfires is what is to be decided about misfired tasks. Guarded by Engine.mu.
type misfires struct {
	wanted  map[*Topic]bool // topics that wait for runMisfirePasses; nil if it does not run
	passing map[*Topic]bool // topics of the pass that runs
	Board   coalesce.Board
	Held    chan struct{} // tells package cluster of new choices; holds one request
}

// foundLocked is called for every task that was restored for another attempt. It marks misfired
// ones.
func foundLocked(t *Topic, sl *store.Slot, f *record.Fields, since int64) {
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

// isUndecided reports whether a task waits for a decision.
func isUndecided(sl *store.Slot) bool {
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
	if s.Misfires.wanted == nil {
		s.Misfires.wanted = make(map[*Topic]bool)
		s.Life.Background.Go(s.runMisfirePasses)
	}
	s.Misfires.wanted[t] = true
}

// NewMisfirePassLocked begins a pass for some topics.
func (s *Engine) NewMisfirePassLocked(topics map[*Topic]bool) *MisfirePass {
	return &MisfirePass{
		Walk: s.walkLocked(Pick{}, ""), Topics: topics,
		newest: make(map[groupOf]candidate), decides: s.IsReplayed(),
	}
}

// runMisfirePasses goes through the store, as often as topics ask for that.
func (s *Engine) runMisfirePasses() {
	for {
		s.mu.Lock()
		v := s.NewMisfirePassLocked(s.Misfires.wanted)
		s.Misfires.wanted = nil
		if len(v.Topics) > 0 {
			s.Misfires.wanted = make(map[*Topic]bool)
		}
		for t := range v.Topics {
			t.Undecided = false
		}
		s.Misfires.passing = v.Topics
		s.unlock()
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
	for !v.over {
		if len(v.newest) > 0 && !v.Breathe() {
			return false
		}
		if v.step(func(n uint32, sl *store.Slot) (cost int) {
			if sl.State != store.Pending && sl.State != store.Ready || !sl.Flags.IsWindowed() && sl.Flags&store.Misfired == 0 || !v.Topics[v.TopicTable.ByNumber[sl.Topic]] {
				return 0
			}
			v.visitLocked(n, sl, v.Now())
			return 1
		}) != nil {
			return false
		}
	}
	return v.LetGo()
}

func (v *MisfirePass) visitLocked(n uint32, sl *store.Slot, now int64) {
	t := v.TopicTable.ByNumber[sl.Topic]
	coalesces := sl.Flags&store.Misfired != 0 && t.Settings.Misfire == task.MisfireCoalesce && v.Store.Grouped(sl)
	switch {
	case coalesces && v.decides && !t.Stopped() && v.OwnedLocked(int(sl.Shard)).stage == active:
		if t.isTooLate(v.Store, sl, now) { // others must not be skipped for it
			v.DisarmLocked(sl)
			v.skipLocked(n, sl)
		} else {
			v.CompareLocked(n, sl)
		}
	case coalesces:
		t.Undecided = true
		// Replay has ended since this pass began: decideLocked has not seen this topic.
		if !v.decides && v.IsReplayed() {
			v.misfirePassLocked(t)
		}
	case sl.State == store.Pending: // by settings of before, perhaps
		v.DisarmLocked(sl)
		v.armLocked(n, sl, now, again)
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
	v.Figures.Coalesced++
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

// LetGo lets the newest of each group go, or holds it back until other nodes have been asked. It
// reports false if Close has begun.
func (v *MisfirePass) LetGo() bool {
	var peers recovery.Standing
	shared := v.Cluster.Shares()
	if shared {
		peers = v.Fleet.Standing()
		shared = !peers.Alone
	}
	eachIn(v.Engine, v.newest, func(key groupOf, c candidate) {
		switch sl := v.Store.Slot(c.slot); {
		case v.Ended, !v.standsLocked(key, c):
		case shared:
			v.holdChoiceLocked(sl, peers.FailoverAfter)
		case sl.State == store.Pending:
			v.letGoLocked(c.slot, sl, v.Now())
		default:
			sl.Flags &^= store.Misfired
		}
	})
	return !v.IsClosing()
}

// letGoLocked has a pending misfired task delivered.
func (s *Engine) letGoLocked(n uint32, sl *store.Slot, now int64) {
	sl.Flags &^= store.Misfired
	s.DisarmLocked(sl)
	s.armLocked(n, sl, now, again)
}

// holdChoiceLocked holds the newest task of a group back.
func (s *Engine) holdChoiceLocked(sl *store.Slot, failover time.Duration) {
	c := s.TopicTable.candidate(s.Store, sl)
	if known := s.Misfires.Board.OpenIn(c.Group); known != nil && known.Candidate == c && isUndecided(sl) {
		return
	}
	s.DisarmLocked(sl)
	if sl.State == store.Ready {
		s.SetLocked(sl, store.Pending)
	}
	s.Misfires.Board.Hold(coalesce.NewChoice(&c, s.Elapsed(), s.boundsLocked(sl, failover)))
	request(s.Misfires.Held)
}

// boundsLocked returns for how long a task may be held back.
func (s *Engine) boundsLocked(sl *store.Slot, failover time.Duration) coalesce.Bounds {
	t, rec := s.TopicTable.ByNumber[sl.Topic], s.Store.Record(sl)
	b := coalesce.Bounds{FailoverAfter: failover, Lease: t.Settings.Lease}
	if record.Flags(rec)&record.HasMaxLateness != 0 {
		f := s.Store.Fields(sl)
		b.Late = s.Elapsed() + millisDuration(t.deadline(s.Store, sl, f.Attempt == 0)+f.MaxLateness-s.Now())
	}
	return b
}

// candidate returns what a misfired task is to its group.
func (k *topicTable) candidate(b *store.Store, sl *store.Slot) coalesce.Candidate {
	rec := b.Record(sl)
	return coalesce.Candidate{
		Group: coalesce.Group{Topic: k.ByNumber[sl.Topic].Name, Name: string(record.Group(rec))},
		Due:   record.Due(rec), Created: record.Created(rec), ID: string(b.ID(sl)),
	}
}

// Choices are the misfired tasks that an engine has chosen in their groups, for package cluster.
type Choices struct{ *Engine }

// findLocked returns the task that is a candidate, if it is what it was then.
func (s Choices) findLocked(c *coalesce.Candidate) (uint32, *store.Slot, bool) {
	n, ok := s.Store.Find([]byte(c.ID))
	if !ok {
		return 0, nil, false
	}
	sl := s.Store.Slot(n)
	return n, sl, !sl.State.Undecided() && s.TopicTable.candidate(s.Store, sl) == *c
}

// Open returns how many tasks are held back until other nodes have been asked. It forgets what this
// node has let go too long ago.
func (s Choices) Open() int {
	for more := true; more; {
		s.mu.Lock()
		more = s.Misfires.Board.Forget(s.Elapsed(), AtOnce, s.comesLocked)
		s.unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Misfires.Board.Open()
}

// Take takes at most AtOnce choices that are held back, for package cluster to ask other nodes
// about them. It passes over those of topics that are stopped, whose wait begins anew, and drops
// those that are held back no more. It returns how many it has dealt with.
func (s Choices) Take() (taken []*coalesce.Choice, passed int) {
	s.mu.Lock()
	defer s.unlock()
	for ; passed < AtOnce && !s.Ended; passed++ {
		c := s.Misfires.Board.Next()
		if c == nil {
			break
		}
		_, sl, found := s.findLocked(&c.Candidate)
		switch {
		case !found || !isUndecided(sl):
			s.Misfires.Board.End(c)
		case s.TopicTable.ByNumber[sl.Topic].Stopped():
			c.Restart(s.Elapsed())
			s.Misfires.Board.Requeue(c)
		default:
			taken = append(taken, c)
		}
	}
	return taken, passed
}

// Decide decides about at most AtOnce choices that Take has returned, by what the other nodes
// know.
func (s Choices) Decide(choices []*coalesce.Choice, others []coalesce.Standing) {
	s.mu.Lock()
	defer s.unlock()
	if s.Ended {
		return
	}
	for i, c := range choices {
		s.decideOneLocked(c, others[i])
	}
}

func (s Choices) decideOneLocked(c *coalesce.Choice, others coalesce.Standing) {
	b := &s.Misfires.Board
	if !b.IsOpen(c) {
		return // another one has taken its place
	}
	n, sl, found := s.findLocked(&c.Candidate)
	if !found || !isUndecided(sl) {
		b.End(c)
		return
	}
	t, now := s.TopicTable.ByNumber[sl.Topic], s.Elapsed()
	st := max(others, s.standingLocked(&c.Candidate))
	switch {
	case t.Settings.Misfire != task.MisfireCoalesce: // any more; missedLocked decides
		b.End(c)
		s.DisarmLocked(sl)
		s.armLocked(n, sl, s.Now(), again)
	case t.Stopped(), s.OwnedLocked(int(sl.Shard)).stage != active, c.Waits(st, now):
		b.Requeue(c)
	case st == coalesce.Delivered:
		b.End(c)
		s.DisarmLocked(sl)
		s.skipLocked(n, sl)
		s.Figures.Coalesced++
	default:
		b.End(c)
		b.Remember(&c.Candidate, now)
		s.letGoLocked(n, sl, s.Now())
	}
}

// Standings returns what this node knows of candidates of other nodes. Errors: task.ErrClosed.
func (s Choices) Standings(of []coalesce.Candidate) (known []coalesce.Standing, err error) {
	for part := range slices.Chunk(of, AtOnce) {
		s.mu.Lock()
		if s.Ended {
			err = task.ErrClosed
		}
		for i := range part {
			known = append(known, s.standingLocked(&part[i]))
		}
		s.unlock()
	}
	return known, err
}

// standingLocked returns what this node knows of the candidates that are later than one.
func (s Choices) standingLocked(than *coalesce.Candidate) coalesce.Standing {
	waiting := false
	if c, acknowledged := s.Misfires.Board.Remembered(than.Group); c != nil && c.Later(than) {
		if acknowledged {
			return coalesce.Delivered
		}
		waiting = s.comesLocked(c)
	}
	if c := s.Misfires.Board.OpenIn(than.Group); c != nil && c.Later(than) {
		waiting = waiting || s.comesLocked(&c.Candidate)
	}
	t := s.TopicTable.ByName[than.Topic]
	switch {
	case waiting:
		return coalesce.Waiting
	case !s.IsReplayed() || s.Acquiring() || t != nil && (t.Undecided || s.Misfires.wanted[t] || s.Misfires.passing[t]):
		return coalesce.Unsettled
	}
	return coalesce.None
}

// comesLocked reports whether a candidate still waits for its delivery, or is being delivered.
func (s Choices) comesLocked(c *coalesce.Candidate) bool {
	_, sl, found := s.findLocked(c)
	return found && sl.Next != record.HeldUntil && sl.State != store.Finishing && sl.State != store.Burying
}
