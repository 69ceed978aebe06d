package tasks

import (
	"time"
)

// sweepState is where the sweep stands and what it has found so far.
type sweepState struct {
	slots  uint32   // where the search for overdue tasks goes on
	arena  uint32   // where tidying goes on
	sample []uint32 // where the audit of each shard goes on

	lastWall time.Time // of the sweep before, to notice steps of the clock
	lastMono time.Duration

	rescued, leases   int64
	checked, repaired int64
	clockSteps        int64
	rewinds           int64
}

const (
	// overdueSlack is how late the wheel may be before a task counts as rescued.
	overdueSlack = time.Second
	// clockSlack is how far the wall clock may drift from the monotonic one
	// between two sweeps before it counts as a step.
	clockSlack = 250 * time.Millisecond
	// Of the slots, so many are searched for overdue tasks in one sweep, but at
	// least an eighth.
	searchSlots = 16 * chunkSlots
	// So many segments of the arena are emptied in one critical section, and so
	// many sections are entered in one sweep.
	tidyAtOnce, tidySections = 4, 256
)

// sweepLoop runs the sweep until Close. An error does not end it.
func (s *Scheduler) sweepLoop() {
	tick := time.NewTicker(s.cfg.SweepEvery)
	defer tick.Stop()
	s.noteClock()
	for {
		select {
		case <-tick.C:
			s.sweepOnce()
		case <-s.closing:
			return
		}
	}
}

// sweepOnce makes sure that whatever should have moved on does so. Outside a
// fault it finds nothing.
func (s *Scheduler) sweepOnce() {
	s.noteClock()
	rescued := s.runner.Overdue(overdueSlack)
	rescued += s.searchOverdue()
	expired := s.expire()
	s.mu.Lock()
	s.sweep.rescued += int64(rescued)
	s.sweep.leases += int64(expired)
	for _, t := range s.byNumber {
		s.wakeLocked(t) // a receiver that was missed
	}
	s.unlock()
	if rescued > 0 {
		s.cfg.Log.Warn("the sweep found tasks overdue", "node", s.cfg.Node, "rescued", rescued)
	}
	s.tidy()
}

// noteClock compares the wall clock with the monotonic one. After a step, or
// after the machine was suspended, the wheel must look at the clock again.
func (s *Scheduler) noteClock() {
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

// searchOverdue looks through a part of the book for pending tasks that the wheel
// should have fired, and makes them ready. It does not trust the wheel.
func (s *Scheduler) searchOverdue() int {
	s.mu.Lock()
	from := s.sweep.slots
	count := max(searchSlots, uint32(len(s.book.chunks)*chunkSlots/8))
	s.mu.Unlock()
	found := 0
	for ; count > 0; count -= min(count, chunkSlots) {
		s.mu.Lock()
		if int(from) >= len(s.book.chunks)*chunkSlots {
			from = 0
			s.mu.Unlock()
			break
		}
		before := s.now() - overdueSlack.Milliseconds()
		chunk := s.book.chunks[from/chunkSlots]
		for i := range chunk {
			if sl := &chunk[i]; sl.state == pending && sl.next < before {
				s.noteLocked(EventRescued, sl, Event{})
				s.disarmLocked(sl)
				s.readyLocked(from+uint32(i), sl)
				found++
			}
		}
		from += chunkSlots
		s.unlock()
	}
	s.mu.Lock()
	s.sweep.slots = from
	s.mu.Unlock()
	return found
}

// tidy empties sparse segments of the arena.
func (s *Scheduler) tidy() {
	for range tidySections {
		s.mu.Lock()
		s.sweep.arena = s.book.tidy(s.sweep.arena, tidyAtOnce)
		done := s.sweep.arena == 0
		s.mu.Unlock()
		if done {
			return
		}
	}
}
