package tasks

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery"
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
}

const (
	// overdueSlack is how late the wheel may be before a task counts as rescued.
	overdueSlack = time.Second
	// clockSlack is how far the wall clock may drift from the monotonic one
	// between two sweeps before it counts as a step.
	clockSlack = 250 * time.Millisecond
	// Of every shard, so many tasks are compared with the ledger in one sweep.
	auditSlice = 256
	// Of the slots, so many are searched for overdue tasks in one sweep, but at
	// least an eighth.
	searchSlots = 16 * chunkSlots
	// So many segments of the arena are emptied in one critical section, and so
	// many sections are entered in one sweep.
	tidyAtOnce, tidySections = 4, 256
)

// sweepLoop runs the sweep until Close. An error does not end it.
func (s *Scheduler) sweepLoop() {
	defer s.background.Done()
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
	s.mu.Lock()
	s.sweep.rescued += int64(rescued)
	s.sweep.leases += int64(s.expireLocked(s.elapsed()))
	for _, t := range s.byNumber {
		s.wakeLocked(t) // a receiver that was missed
	}
	s.unlock()
	if rescued > 0 {
		s.cfg.Log.Warn("the sweep found tasks overdue", "node", s.cfg.Node, "rescued", rescued)
	}
	s.tidy()
	s.audit()
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

// audit compares a slice of memory with the ledger.
func (s *Scheduler) audit() {
	if !s.isReplayed() {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.AnswerWithin)
	defer cancel()
	checked, repaired, err := recovery.Audit(ctx, s.ledger, (*auditee)(s), s.terms.Shards, auditSlice)
	s.mu.Lock()
	s.sweep.checked += int64(checked)
	s.sweep.repaired += int64(repaired)
	s.mu.Unlock()
	if err != nil && s.ctx.Err() == nil {
		s.cfg.Log.Warn("the audit could not read the ledger", "node", s.cfg.Node, "error", err)
	}
	if repaired > 0 {
		s.cfg.Log.Error("the audit found tasks missing in the ledger and wrote them again", "node", s.cfg.Node, "repaired", repaired)
	}
}

// auditee is the side of a Scheduler that is compared with the ledger.
type auditee Scheduler

// Sample returns tasks with no write under way.
func (a *auditee) Sample(shard int, n int) []recovery.Ref {
	s := (*Scheduler)(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sweep.sample == nil {
		s.sweep.sample = make([]uint32, s.terms.Shards)
	}
	total := uint32(len(s.book.chunks) * chunkSlots)
	refs := make([]recovery.Ref, 0, n)
	at := s.sweep.sample[shard]
	for range min(total, chunkSlots) {
		if at >= total {
			at = 0
		}
		if sl := s.book.slot(at); int(sl.shard) == shard && atRest(sl) {
			refs = append(refs, recovery.Ref{ID: string(s.book.id(sl)), Next: sl.stored})
		}
		at++
		if len(refs) == n {
			break
		}
	}
	s.sweep.sample[shard] = at
	return refs
}

func atRest(sl *slot) bool {
	return sl.state != vacant && !sl.state.busy() && sl.flags&writing == 0 && sl.stored != notStored
}

// Repair writes tasks again that the ledger has lost.
func (a *auditee) Repair(_ int, missing []recovery.Ref) int {
	s := (*Scheduler)(a)
	s.mu.Lock()
	defer s.unlock()
	repaired := 0
	for _, ref := range missing {
		n, ok := s.book.find([]byte(ref.ID))
		if !ok {
			continue
		}
		if sl := s.book.slot(n); atRest(sl) && sl.stored == ref.Next {
			s.writeLocked(write{slot: n, op: opRecord})
			repaired++
		}
	}
	return repaired
}
