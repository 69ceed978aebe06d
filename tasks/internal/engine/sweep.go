package engine

import (
	"cmp"
	"fmt"
	"runtime"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/hugepage"
	"github.com/lapsehq/lapse/tasks/internal/spelling"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// sweepState is where the sweep stands and what it has found so far.
type sweepState struct {
	slots        uint32        // where the search for overdue tasks goes on
	arena        uint32        // where tidying goes on
	alarmed      bool          // the search has just found something: all is searched next time
	raisedAt     time.Duration // when the last backlog began
	auditFailing bool          // the ledger could not be read when the audit asked last
	wheel        wheelFault

	clock clockWatch

	pages hugepage.Collapser // not guarded by the lock
}

// A fullSweep is one that looks at everything; when it began, on either clock.
type fullSweep struct {
	At    time.Time
	since time.Duration
}

const (
	// lostSlack is for how long a task must be overdue before the search asks whether the wheel has
	// lost it: a task that is on time costs no question.
	lostSlack = 100 * time.Millisecond
	// clockJitter is what two clocks that are read one after the other may differ by.
	clockJitter = time.Millisecond
	// clockSlack is how far the wall clock may drift from the monotonic one
	// between two sweeps before it counts as a step.
	clockSlack = 250 * time.Millisecond
	// Of the slots, so many are searched for overdue tasks in one sweep, but at
	// least an eighth.
	searchSlots = 16 * store.ChunkSlots
	// So many segments of the arena are emptied in one critical section, and so
	// many sections are entered in one sweep.
	tidyAtOnce, tidySections = 4, 256
	// So many blocks of 2 MiB go into huge pages in one sweep, but none once half of its period is
	// over. The kernel copies each, which takes 1 to 8 ms of processor time. After each the sweep
	// rests for pageRests times as long, but no longer than restMost: on few processors a copy
	// makes tasks late.
	pagesAtOnce, pageRests = 64, 3
)

// sweepLoop runs the sweep until Close: periodically, where it also looks whether
// one of the times for a full sweep has come, and at once when a backlog has begun.
// An error does not end it.
func (s *Engine) sweepLoop() {
	s.noteClock()
	s.Config.Times.Due(s.Config.Clock())
	s.Life.EveryOr(s.Config.SweepEvery, s.sweepNow, func(woken bool) {
		s.Life.pulse.Sweep(func() { s.SweepOnce(!woken && s.Config.Times.Due(s.Config.Clock())) })
	})
}

// SweepOnce makes sure that whatever should have moved on does so. Outside a fault
// it finds nothing. A full sweep looks at all of memory instead of a part, and asks
// for all of it to be compared with the ledger.
func (s *Engine) SweepOnce(full bool) {
	this := fullSweep{At: s.Config.Clock(), since: s.Elapsed()}
	now := s.noteClock()
	s.Cluster.BacklogJudged(s.judgeBacklog())
	late := s.Runner.Overdue(now.UnixMilli(), func(values []uint64) { s.fired(values, true) })
	lost := s.SearchOverdue(full)
	expired := s.expire()
	missed := s.wakeAll()
	s.mu.Lock()
	s.Figures.Rescued += int64(late + lost)
	s.Figures.LeasesReturned += int64(expired)
	s.Figures.MissedWakes += int64(missed)
	s.mu.Unlock()
	s.judgeWheel(late, lost)
	if missed > 0 {
		s.Config.Log.Warn("the sweep found topics with ready tasks whose receivers were not woken",
			"node", s.Config.Node, "missed_wakes", missed)
	}
	s.failures.Tell(s.Config.Log, s.Config.Node, s.Elapsed())
	s.tellMoved(false)
	s.tidy()
	s.usePages()
	if full {
		select {
		case s.everything <- this:
		default: // one that began earlier is still waiting for its turn
		}
	}
}

// A clockWatch notices steps of the wall clock, by the monotonic one.
type clockWatch struct {
	wall time.Time // when it looked last
	mono time.Duration
}

// step returns by how much the wall clock was set since the last call, or the machine has slept.
func (w *clockWatch) step(wall time.Time, mono time.Duration) (by time.Duration) {
	if !w.wall.IsZero() {
		by = wall.Round(0).Sub(w.wall.Round(0)) - (mono - w.mono)
	}
	w.wall, w.mono = wall, mono
	return by
}

// noteClock compares the wall clock, which it returns, with the monotonic one. After a step, or
// after the machine was suspended, the wheel must look at the clock again.
func (s *Engine) noteClock() (wall time.Time) {
	wall, mono := s.Config.Clock(), s.Elapsed()
	s.mu.Lock()
	step := s.Sweep.clock.step(wall, mono)
	s.TopicTable.History.Turn(wall, s.Elapsed())
	stepped := step.Abs() > clockSlack
	if stepped {
		s.Figures.ClockSteps++
	}
	s.mu.Unlock()
	if step.Abs() > clockJitter {
		s.Runner.Nudge() // so that nothing is overdue through no fault of the wheel
	}
	if stepped {
		s.Config.Log.Warn("the wall clock was set", "node", s.Config.Node, "by", step.Round(time.Millisecond))
	}
	return wall
}

// SearchOverdue looks through a part of the store, or all of it, for overdue pending tasks that
// the wheel has lost, and makes them ready. Once it has found one, it looks through everything the
// next time too.
func (s *Engine) SearchOverdue(all bool) (found int) {
	s.mu.Lock()
	w := s.walkLocked(Pick{}, "")
	if !all && !s.Sweep.alarmed {
		w.from = s.Sweep.slots
		w.end = min(w.end, w.from+max(searchSlots, w.end/8))
	}
	s.mu.Unlock()
	w.latest = s.Now() - lostSlack.Milliseconds() - 1
	for !w.over && w.step(func(n uint32, sl *store.Slot) (cost int) {
		if sl.State != store.Pending || isUndecided(sl) || s.isAsideLocked(sl) {
			return 0
		}
		if s.Runner.IsLost(sl.Timer) {
			s.emitLocked(task.EventRescued, sl, task.Event{})
			s.DisarmLocked(sl)
			s.dueLocked(n, sl, s.Now(), fresh)
			found++
		}
		return 1
	}) == nil {
		s.Life.pulse.Step()
	}
	s.mu.Lock()
	if w.from >= s.Store.Slots() {
		w.from = 0
	}
	s.Sweep.slots, s.Sweep.alarmed = w.from, found > 0
	s.mu.Unlock()
	return found
}

// wakeAll sees to it that workers and receivers take what the topics have ready, and returns
// how many of them had been forgotten. It is also how a backlog raises them.
func (s *Engine) wakeAll() (missed int) {
	unasked, first := 0, ""
	now := s.Elapsed()
	s.EachTopic(func(t *Topic) {
		if s.Dispatch.Neglected(&t.Line) {
			missed++
		}
		s.WakeLocked(t)
		if t.isUnasked(now) {
			t.told = true
			unasked++
			first = cmp.Or(first, t.Name)
		}
	})
	if unasked > 0 {
		warnUnasked(s, first, unasked)
	}
	return missed
}

// unaskedAfter is for how long tasks may be ready before their first receiver asks.
const unaskedAfter = 10 * time.Second

// isUnasked reports whether tasks of a topic have been ready for unaskedAfter, as the sweep has
// seen, and no receiver has asked for them since the start: its name may be misspelt.
func (t *Topic) isUnasked(now time.Duration) bool {
	switch {
	case t.told || t.asked:
		return false
	case t.Gauges[task.Ready] == 0 || t.Deliverer != nil || t.Stopped():
		t.unasked = 0
		return false
	case t.unasked == 0:
		t.unasked = now
	}
	return now-t.unasked >= unaskedAfter
}

// warnUnasked tells of a number of topics that no receiver has asked for, and which topic may have
// been meant in place of the first one.
func warnUnasked(s *Engine, first string, number int) {
	near := ""
	s.EachTopic(func(t *Topic) {
		if near == "" && (t.asked || t.Deliverer != nil) && spelling.Near(first, t.Name) {
			near = t.Name
		}
	})
	more := []any{"node", s.Config.Node, "topic", first, "topics", number}
	if near != "" {
		more = append(more, "did_you_mean", near)
	}
	s.Config.Log.Warn("tasks are ready, and no receiver has asked for their topic", more...)
}

// orderKept is how long the order of the store stays when no export asks for it.
const orderKept = time.Minute

// tidy empties sparse segments of the arena, and drops what no export needs any more.
func (s *Engine) tidy() {
	s.mu.Lock()
	s.Store.DropOrder(time.Now().Add(-orderKept))
	s.mu.Unlock()
	for range tidySections {
		s.mu.Lock()
		s.Sweep.arena = s.Store.Tidy(s.Sweep.arena, tidyAtOnce)
		done := s.Sweep.arena == 0
		s.mu.Unlock()
		runtime.Gosched() // as in Walk.step
		if done {
			return
		}
	}
}

// shardsComeIn reports whether tasks are read from the ledger, of this node's shards or of one that
// is about to be this node's. They would wait for the kernel, which copies memory beside them.
func (s *Engine) shardsComeIn() bool {
	if !s.IsReplayed() {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.Shards.ahead) > 0
}

// usePages has the kernel keep what tasks have taken in huge pages.
func (s *Engine) usePages() {
	s.mu.Lock()
	moves := s.Store.Moves()
	s.mu.Unlock()
	pages, began := &s.Sweep.pages, s.Elapsed()
	before := pages.Counts()
	pages.Note(moves)
	for range pagesAtOnce {
		block := s.Elapsed()
		if block-began > s.Config.SweepEvery/2 || s.shardsComeIn() || !pages.Collapse() {
			break
		}
		s.Life.pulse.Step()
		time.Sleep(min(pageRests*(s.Elapsed()-block), restMost))
	}
	switch now := pages.Counts(); {
	case before.Collapsed == 0 && now.Collapsed > 0:
		s.Config.Log.Info("memory of tasks is kept in huge pages", "node", s.Config.Node)
	case !before.Off && now.Off && now.Refused > 0:
		s.Config.Log.Info("the kernel gives no huge pages: memory of tasks stays in small ones", "node", s.Config.Node)
	}
}

// There is a backlog if more than Config.SweepBacklog tasks are ready of topics that this process
// delivers by itself. They are counted whenever a task becomes ready. The first task too many asks
// for a sweep at once. That sweep begins an episode: it raises the concurrency of topics that have
// none of their own. Only a sweep ends the episode, when half as many tasks are left and half a
// period is over. So a periodic sweep that comes right after the beginning, while the tasks still
// arrive, does not end it, and a backlog that hovers around its bound does not begin one episode
// after the other.
//
// Paused and pulled topics do not count: their tasks do not wait for concurrency, and a topic that
// no receiver pulls must not raise all others for ever.

// sweepNowLocked asks for a sweep at once if a backlog has begun.
func (s *Engine) sweepNowLocked() {
	if s.Dispatch.Raised || s.Dispatch.Backlog <= s.Config.SweepBacklog {
		return
	}
	request(s.sweepNow)
}

// judgeBacklog begins or ends an episode.
func (s *Engine) judgeBacklog() (is bool) {
	s.mu.Lock()
	was, waiting := s.Dispatch.Raised, s.Dispatch.Backlog
	switch {
	case !was && waiting > s.Config.SweepBacklog:
		s.Dispatch.Raised, s.Sweep.raisedAt = true, s.Elapsed()
		s.Figures.Backlogs++
	case was && waiting <= s.Config.SweepBacklog/2 && s.Elapsed()-s.Sweep.raisedAt >= s.Config.SweepEvery/2:
		s.Dispatch.Raised = false
	}
	is = s.Dispatch.Raised
	s.mu.Unlock()
	switch {
	case is && !was:
		s.Config.Log.Warn("backlog began; concurrency raised",
			"node", s.Config.Node, "ready", waiting, "concurrency", s.Config.SweepMaxConcurrency)
	case was && !is:
		s.Config.Log.Info("backlog ended", "node", s.Config.Node, "ready", waiting)
	}
	return is
}

// A wheelFault is what the sweep has found out about the wheel. While the wheel does not fire, the
// sweep delivers in its place, late by up to its own period: the node is slower, and loses nothing.
// So the fault does not make the node unready. It shows in Readiness, in the log and in
// SweepStats.Rescued. Only the sweep uses it.
type wheelFault struct {
	shown   bool          // in Readiness
	rescued int           // tasks since it was shown first
	at      time.Duration // when the sweep has rescued something last
}

const (
	// wheelWait names a faulty wheel in Readiness.
	wheelWait = "timing wheel"
	// wheelCalm is for how long the sweep must find nothing before the fault counts as over.
	wheelCalm = time.Minute
)

// judgeWheel shows that the wheel does not fire, by what the last sweep has rescued: late of what
// was still in the wheel, lost of what was not.
func (s *Engine) judgeWheel(late, lost int) {
	f := &s.Sweep.wheel
	switch {
	case late+lost > 0:
		f.rescued += late + lost
		f.at = s.Elapsed()
		s.Waits.Set(wheelWait, fmt.Sprintf("it does not fire: the sweep has delivered %d overdue tasks in its place, about %v late at most",
			f.rescued, s.Config.SweepEvery))
		if !f.shown {
			f.shown = true
			s.Config.Log.Error("the timing wheel does not fire: the sweep delivers overdue tasks in its place", "node", s.Config.Node,
				"rescued", late+lost, "lost_by_wheel", lost, "every", s.Config.SweepEvery)
		}
	case f.shown && s.Elapsed()-f.at >= wheelCalm && !s.Runner.Stalled():
		s.Waits.Clear(wheelWait)
		s.Config.Log.Info("the timing wheel fires again", "node", s.Config.Node, "rescued", f.rescued)
		*f = wheelFault{}
	}
}
