package tasks

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// auditSlice is how many tasks of every shard are compared with the ledger in one
// period of the sweep.
const auditSlice = 256

// conditionEvery is how often the ledger is asked whether it takes new records. What
// is accepted in between must fit into what it keeps in reserve.
const conditionEvery = 100 * time.Millisecond

// watchLoops ask the ledger whether it takes new records, and compare, once in every
// period of the sweep, a slice of memory with it. They have goroutines of their own:
// when the ledger does not answer, the sweep goes on.
func (s *Scheduler) watchLoops() {
	s.background.Go(func() { s.every(conditionEvery, s.askCondition) })
	s.background.Go(func() { s.every(s.cfg.SweepEvery, s.audit) })
}

// every calls do periodically until Close begins.
func (s *Scheduler) every(period time.Duration, do func()) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			do()
		case <-s.closing:
			return
		}
	}
}

func (s *Scheduler) askCondition() {
	c, ok := s.ledger.(recovery.Conditioner)
	if !ok {
		return
	}
	if err := c.Condition(); err != nil {
		s.refusal.Store(&err)
	} else {
		s.refusal.Store(nil)
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
