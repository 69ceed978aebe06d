package tasks

import (
	"time"

	"github.com/lapsehq/lapse/tasks/internal/store"
)

// sweepState is where the sweep stands and what it has found so far.
type sweepState struct {
	slots   uint32 // where the search for overdue tasks goes on
	arena   uint32 // where tidying goes on
	alarmed bool   // the search has just found something: all is searched next time
	raised  bool   // during a backlog
	called  bool   // the other nodes were told of it
	deaf    bool   // the ledger could not be read when the audit asked last

	lastWall time.Time // of the sweep before, to notice steps of the clock
	lastMono time.Duration

	rescued, leases   int64
	missedWakes       int64
	backlogs          int64
	checked, repaired int64
	clockSteps        int64
	rewinds           int64

	fulls    int64 // full sweeps that are over
	last     fullSweep
	lastTook time.Duration
}

// A fullSweep is one that looks at everything; when it began, on either clock.
type fullSweep struct {
	at    time.Time
	since time.Duration
}

const (
	// overdueSlack is how late the wheel may be before a task counts as rescued.
	overdueSlack = time.Second
	// clockSlack is how far the wall clock may drift from the monotonic one
	// between two sweeps before it counts as a step.
	clockSlack = 250 * time.Millisecond
	// Of the slots, so many are searched for overdue tasks in one sweep, but at
	// least an eighth.
	searchSlots = 16 * store.ChunkSlots
	// So many segments of the arena are emptied in one critical section, and so
	// many sections are entered in one sweep.
	tidyAtOnce, tidySections = 4, 256
)

// sweepLoop runs the sweep until Close: periodically, where it also looks whether
// one of the times for a full sweep has come, and at once when a backlog has begun.
// An error does not end it.
func (s *engine) sweepLoop() {
	tick := time.NewTicker(s.cfg.SweepEvery)
	defer tick.Stop()
	s.noteClock()
	s.cfg.Times.Due(s.cfg.Clock())
	for {
		select {
		case <-tick.C:
			s.sweepOnce(s.cfg.Times.Due(s.cfg.Clock()))
		case <-s.sweepNow:
			s.sweepOnce(false)
		case <-s.closing:
			return
		}
	}
}

// sweepOnce makes sure that whatever should have moved on does so. Outside a fault
// it finds nothing. A full sweep looks at all of memory instead of a part, and asks
// for all of it to be compared with the ledger.
func (s *engine) sweepOnce(full bool) {
	this := fullSweep{at: s.cfg.Clock(), since: s.elapsed()}
	s.noteClock()
	s.judgeBacklog()
	s.cluster.backlogJudged()
	late := s.runner.Overdue(overdueSlack)
	lost := s.searchOverdue(full)
	expired := s.expire()
	missed := s.wakeAll()
	s.mu.Lock()
	s.sweep.rescued += int64(late + lost)
	s.sweep.leases += int64(expired)
	s.sweep.missedWakes += int64(missed)
	s.mu.Unlock()
	if late+lost+missed > 0 {
		s.cfg.Log.Warn("the sweep found tasks overdue", "node", s.cfg.Node,
			"rescued", late+lost, "lost_by_wheel", lost, "missed_wakes", missed)
	}
	s.failures.tell(s.cfg.Log, s.cfg.Node, s.elapsed())
	s.tidy()
	if full {
		select {
		case s.everything <- this:
		default: // one that began earlier is still waiting for its turn
		}
	}
}

// noteClock compares the wall clock with the monotonic one. After a step, or
// after the machine was suspended, the wheel must look at the clock again.
func (s *engine) noteClock() {
	wall, mono := s.cfg.Clock(), s.elapsed()
	s.mu.Lock()
	step := wall.Round(0).Sub(s.sweep.lastWall.Round(0)) - (mono - s.sweep.lastMono)
	first := s.sweep.lastWall.IsZero()
	s.sweep.lastWall, s.sweep.lastMono = wall, mono
	stepped := !first && (step > clockSlack || step < -clockSlack)
	if stepped {
		s.sweep.clockSteps++
	}
	s.mu.Unlock()
	if stepped {
		s.cfg.Log.Warn("the wall clock was set", "node", s.cfg.Node, "by", step.Round(time.Millisecond))
		s.runner.Nudge()
	}
}

// searchOverdue looks through a part of the store, or all of it, for pending tasks that
// the wheel should have fired, and makes them ready. It does not trust the wheel:
// once it has found one, it looks through everything the next time too.
func (s *engine) searchOverdue(all bool) (found int) {
	s.mu.Lock()
	from, total := s.sweep.slots, s.store.Slots()
	count := max(searchSlots, total/8)
	if all || s.sweep.alarmed {
		from, count = 0, total
	}
	s.mu.Unlock()
	for end := uint64(from) + uint64(count); uint64(from) < end; {
		s.mu.Lock()
		if from >= s.store.Slots() {
			s.mu.Unlock()
			break
		}
		n, to := s.searchSomeLocked(from)
		s.unlock()
		found, from = found+n, to
	}
	s.mu.Lock()
	if from >= s.store.Slots() {
		from = 0
	}
	s.sweep.slots, s.sweep.alarmed = from, found > 0
	s.mu.Unlock()
	return found
}

// searchSomeLocked looks at one chunk of slots from there on, but ends early when it
// has made enough tasks ready. It returns where to go on.
func (s *engine) searchSomeLocked(from uint32) (found int, to uint32) {
	now := s.now()
	before := now - overdueSlack.Milliseconds()
	rest := s.store.Rest(from)
	for i := 0; i < len(rest) && found < atOnce; i++ {
		if sl := &rest[i]; sl.State == store.Pending && sl.Next < before && !heldBack(sl) && !s.isAsideLocked(sl) {
			s.emitLocked(EventRescued, sl, Event{})
			s.disarmLocked(sl)
			s.dueLocked(from, sl, now)
			found++
		}
		from++
	}
	return found, from
}

// wakeAll sees to it that workers and receivers take what the topics have ready, and returns
// how many of them had been forgotten. It is also how a backlog raises them.
func (s *engine) wakeAll() (missed int) {
	s.eachTopic(func(t *topic) {
		if s.neglectedLocked(t) {
			missed++
		}
		s.wakeLocked(t)
	})
	return missed
}

// tidy empties sparse segments of the arena.
func (s *engine) tidy() {
	for range tidySections {
		s.mu.Lock()
		s.sweep.arena = s.store.Tidy(s.sweep.arena, tidyAtOnce)
		done := s.sweep.arena == 0
		s.mu.Unlock()
		if done {
			return
		}
	}
}

// A backlog is more ready tasks, of the topics that this process delivers by itself,
// than Config.SweepBacklog. It is counted with every task that becomes ready; the
// first one too many asks for a sweep at once, which begins an episode: topics
// without a concurrency of their own are raised. Only a sweep ends it, when half as
// many are left: so there is at most one episode in a period, and a backlog that
// hovers around its bound does not begin one after the other.
//
// Paused topics do not count, nor those that are pulled: what they wait for is not
// concurrency, and one that no receiver pulls must not raise all others for ever.

// queuedLocked counts a task that has joined a topic's queue.
func (s *engine) queuedLocked(t *topic) {
	if !t.pushed {
		return
	}
	s.backlog++
	s.sweepNowLocked()
}

// unqueuedLocked tells a topic's queue, and the backlog, that one of its live tasks
// has been taken or has become stale.
func (s *engine) unqueuedLocked(t *topic) {
	t.queue.gone()
	if t.pushed {
		s.backlog--
	}
}

// countBacklogLocked is called when a topic may have begun or ceased to count.
func (s *engine) countBacklogLocked(t *topic) {
	pushed := t.deliverer != nil && !t.settings.Paused
	if pushed == t.pushed {
		return
	}
	t.pushed = pushed
	if !pushed {
		s.backlog -= t.queue.live
		return
	}
	s.backlog += t.queue.live
	s.sweepNowLocked()
}

// sweepNowLocked asks for a sweep at once if a backlog has begun.
func (s *engine) sweepNowLocked() {
	if s.sweep.raised || s.backlog <= s.cfg.SweepBacklog {
		return
	}
	select {
	case s.sweepNow <- struct{}{}:
	default: // it has been asked for
	}
}

// judgeBacklog begins or ends an episode.
func (s *engine) judgeBacklog() {
	s.mu.Lock()
	was, waiting := s.sweep.raised, s.backlog
	switch {
	case !was && waiting > s.cfg.SweepBacklog:
		s.sweep.raised = true
		s.sweep.backlogs++
	case was && waiting <= s.cfg.SweepBacklog/2:
		s.sweep.raised = false
	}
	is := s.sweep.raised
	s.mu.Unlock()
	switch {
	case is && !was:
		s.cfg.Log.Warn("a backlog: topics without a concurrency of their own are raised",
			"node", s.cfg.Node, "ready", waiting, "concurrency", s.cfg.SweepMaxConcurrency)
	case was && !is:
		s.cfg.Log.Info("the backlog is gone", "node", s.cfg.Node, "ready", waiting)
	}
}

// raisedLocked is what a backlog raises a topic's concurrency to, be it one that this node
// offloads from another one; 0 if there is none or if the topic has one of its own.
func (s *engine) raisedLocked(t *topic) int {
	if !s.sweep.raised && t.offloads == 0 || t.own || t.deliverer == nil {
		return 0
	}
	return s.cfg.SweepMaxConcurrency
}
