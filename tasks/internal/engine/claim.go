package engine

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// BeginLocked takes up to limit tasks off a topic's queue and begins to deliver them:
// it is the only way to a delivery, for whatever consumer. It
// returns none if there are none, or if nothing may be delivered now. It may give
// the lock up meanwhile.
//
// In a topic that counts crashes, an attempt is recorded before it is delivered: a
// task that kills its process then runs out of attempts like any other. Close
// waits for that.
func (s *Engine) BeginLocked(ctx context.Context, t *Topic, limit int, term time.Duration, by Consumer) []*Delivery {
	if term == 0 {
		term = t.Settings.Lease
	}
	taken := s.takeSomeLocked(t, limit, by)
	// Their places are taken from here on.
	if by.leases() {
		s.Dispatch.LeasedOut += len(taken)
		s.WakeLocked(t) // one task wakes one receiver; this one may have left some
	} else {
		t.Busy += len(taken)
		if t.AsyncSettle {
			s.Dispatch.ReservedInFlight += len(taken)
		}
		if t.limiter != nil {
			s.WakeLocked(t) // it may have to rest from now on
		}
	}
	claimed := t.Settings.CountCrashes // which may change while attempts are recorded
	if claimed && len(taken) > 0 {
		asked := len(taken)
		taken = s.claimLocked(ctx, t, taken, by)
		switch missed := asked - len(taken); {
		case by.leases():
			s.freeLocked(missed, 0)
		default:
			t.Busy -= missed
			if t.AsyncSettle {
				s.freeLocked(0, missed)
			}
		}
	}
	ds := make([]*Delivery, len(taken))
	for i, n := range taken {
		ds[i] = s.handOutLocked(n, s.Store.Slot(n), term, claimed, by)
	}
	return ds
}

// takeSomeLocked takes up to limit tasks off a topic's queue. Where many may not be
// delivered, it gives the lock up in between, but never with a task in its hands.
func (s *Engine) takeSomeLocked(t *Topic, limit int, by Consumer) (taken []uint32) {
	for by.fits(t) { // which may change while the lock is given up
		if by.leases() || t.AsyncSettle {
			limit = min(limit, s.roomLocked())
		}
		limit = by.allowed(t, limit)
		passed, bytes := 0, by.bytes()
		for len(taken) < limit && bytes > 0 {
			n, ok := s.takeLocked(t, &passed)
			if !ok {
				break
			}
			taken = append(taken, n)
			bytes -= len(s.Store.Record(s.Store.Slot(n)))
		}
		if len(taken) > 0 || passed < AtOnce {
			by.spend(t, len(taken))
			return taken
		}
		s.WakeLocked(t) // others may be faster
		s.Unlock()
		s.Mu.Lock()
	}
	return nil
}

// claimLocked records the attempts of tasks that were taken off their queue, and
// returns those that may be handed out. It gives the lock up meanwhile.
func (s *Engine) claimLocked(ctx context.Context, t *Topic, taken []uint32, by Consumer) []uint32 {
	c := NewPendingWrite(len(taken))
	for i, n := range taken {
		sl := s.Store.Slot(n)
		rec := s.Store.Record(sl)
		setAttempt(rec, record.Attempt(rec)+1, record.Flags(rec)|record.Claimed)
		s.SetLocked(sl, store.Claiming)
		c.add(i, n)
		s.writeLocked(Write{slot: n, op: opClaim, pending: c, index: i})
	}
	c.Complete()
	s.Life.Handlers.Add(1)
	defer s.Life.Handlers.Done()
	s.Unlock()
	_ = s.Await(ctx, c) // what was not recorded by then is ready again, or will be
	s.Mu.Lock()

	now := s.Now()
	claimed := taken[:0]
	for i, n := range taken {
		if c.errs[i] != nil {
			continue
		}
		// Meanwhile Close may have begun, the topic may have been paused or be delivered
		// otherwise, the clock may have been set back, the shard be draining, or the ledger
		// have taken too long.
		sl := s.Store.Slot(n)
		if s.Ended || t.Stopped() || s.isAsideLocked(sl) || s.pausedLocked() || !by.fits(t) || sl.Next > now || s.tooLateLocked(t, sl, now) {
			s.putBackLocked(n, sl)
		} else {
			claimed = append(claimed, n)
		}
	}
	return claimed
}

// putBackLocked makes a task ready again whose delivery no receiver has seen, and has
// it recorded that a claimed attempt does not count.
func (s *Engine) putBackLocked(n uint32, sl *store.Slot) {
	attempt := s.Dispatch.Leases[n].Attempt
	s.closeLocked(n)
	rec := s.Store.Record(sl)
	if record.Flags(rec)&record.HasLease != 0 {
		// It was parked: its record has the lease, and counts the attempt.
		f := s.Store.Fields(sl)
		f.State, f.Attempt, f.LeaseRest, f.Nonce = record.Pending, attempt-1, 0, 0
		f.Flags &^= record.Claimed | record.HasLease
		s.Writes.scratch = f.Append(s.Writes.scratch[:0])
		s.Store.Rewrite(n, s.Writes.scratch)
		s.armLocked(n, sl, s.Now())
		s.writeLocked(Write{slot: n, op: opRecord})
		return
	}
	if s.unclaimLocked(n, sl) {
		s.writeLocked(Write{slot: n, op: opRecord})
	}
}

// unclaimLocked makes a task ready again that was not handed out, and reports
// whether an attempt had been counted for it.
func (s *Engine) unclaimLocked(n uint32, sl *store.Slot) bool {
	rec := s.Store.Record(sl)
	flags := record.Flags(rec)
	if flags&record.Claimed != 0 {
		setAttempt(rec, record.Attempt(rec)-1, flags&^record.Claimed)
	}
	s.armLocked(n, sl, s.Now())
	return flags&record.Claimed != 0
}

// spent tells that a task's last attempt was claimed by a process that ended in it.
func (s *Engine) spent(t *Topic, sl *store.Slot) bool {
	rec := s.Store.Record(sl)
	return record.Flags(rec)&record.Claimed != 0 && t.Settings.Retry.Over(record.Attempt(rec), s.Now()-record.Due(rec))
}

// expendLocked ends that attempt.
func (s *Engine) expendLocked(n uint32, sl *store.Slot) {
	s.Dispatch.Leases[n] = Lease{Attempt: record.Attempt(s.Store.Record(sl))}
	s.failLocked(n, sl, "the process ended during the last attempt", nil, nil, 0)
}

func setAttempt(rec []byte, attempt uint32, flags uint16) {
	record.SetAttempt(rec, attempt)
	record.SetFlags(rec, flags)
}
