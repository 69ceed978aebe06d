package engine

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A beginning is what Begin has in its hands: tasks that were taken off a topic's queue, on their
// way to deliveries.
type beginning struct {
	topic  *Topic
	by     Consumer
	term   time.Duration // of the leases
	limit  int
	taken  []uint32
	claims *PendingWrite // records the attempts; nil if the topic does not count crashes
	begun  []*Delivery

	checked bool // it may begin, see mayBeginLocked
	// Of a worker:
	deliverer task.Deliverer
	// Of a receiver of this node, whose topic is looked up by its name:
	place    *Turn
	name     string
	reserved bool
	err      error // why it may not begin
}

// Begin takes up to limit tasks off a topic's queue and begins to deliver them: it is the only
// way to a delivery, for whatever consumer. A term of 0 is the topic's lease. It returns none if
// there are none, or if nothing may be delivered now. It takes the lock itself.
//
// In a topic that counts crashes, an attempt is recorded before it is delivered: a
// task that kills its process then runs out of attempts like any other. Close
// waits for that.
func (s *Engine) Begin(ctx context.Context, t *Topic, limit int, term time.Duration, by Consumer) []*Delivery {
	b := beginning{topic: t, by: by, term: term, limit: limit}
	return s.run(ctx, &b)
}

// run carries a beginning out.
func (s *Engine) run(ctx context.Context, b *beginning) []*Delivery {
	for s.take(b) {
	}
	if b.claims == nil {
		return b.begun
	}
	_ = s.Await(ctx, b.claims) // what was not recorded by then is ready again, or will be
	s.Mu.Lock()
	defer s.Unlock()
	s.claimedLocked(b)
	s.handOutAllLocked(b)
	return b.begun
}

// take takes tasks, and begins either to record their attempts or to deliver them. It reports
// true if it has only met tasks that may not be delivered, and has to be called again: others get
// the lock in between.
func (s *Engine) take(b *beginning) (more bool) {
	s.Mu.Lock()
	defer s.Unlock()
	if !b.checked && !s.mayBeginLocked(b) {
		return false
	}
	b.checked = true
	if s.takePieceLocked(b) {
		s.WakeLocked(b.topic) // others may be faster
		return true
	}
	s.countTakenLocked(b)
	if !s.claimLocked(b) {
		s.handOutAllLocked(b)
	}
	return false
}

// mayBeginLocked reports whether a consumer may take tasks of a topic. Otherwise a worker's tasks
// are pulled from now on, or wait for better settings; or places of this worker, which makes fewer
// deliveries at once now, are for others. A receiver that stands in the queue leaves it.
func (s *Engine) mayBeginLocked(b *beginning) bool {
	switch b.by.kind {
	case aWorker:
		b.deliverer = b.topic.Deliverer
		return b.deliverer != nil && b.limit <= s.placesLocked(b.topic)
	case aReceiver:
		if p := b.place; p.topic != nil {
			p.topic.Reservers.Leave(p)
			p.topic = nil
		}
		b.topic, b.err = s.PullableLocked(b.name, b.reserved)
		return b.err == nil
	}
	return true
}

// takePieceLocked takes tasks off a topic's queue. It reports true if it has only met tasks that
// may not be delivered, and there may be more behind them.
func (s *Engine) takePieceLocked(b *beginning) (more bool) {
	t, by := b.topic, b.by
	if !by.fits(t) { // any more: it may change while the lock is released
		return false
	}
	if by.leases() || t.AsyncSettle {
		b.limit = min(b.limit, s.roomLocked())
	}
	b.limit = by.allowed(t, b.limit)
	passed, bytes := 0, by.bytes()
	for len(b.taken) < b.limit && bytes > 0 {
		n, ok := s.takeLocked(t, &passed)
		if !ok {
			break
		}
		b.taken = append(b.taken, n)
		bytes -= len(s.Store.Record(s.Store.Slot(n)))
	}
	if len(b.taken) > 0 || passed < AtOnce {
		by.spend(t, len(b.taken))
		return false
	}
	return true
}

// countTakenLocked takes the places of deliveries for the tasks that were taken.
func (s *Engine) countTakenLocked(b *beginning) {
	t := b.topic
	if b.term == 0 {
		b.term = t.Settings.Lease
	}
	if b.by.leases() {
		s.Dispatch.LeasedOut += len(b.taken)
		s.WakeLocked(t) // one task wakes one receiver; this one may have left some
		return
	}
	t.Busy += len(b.taken)
	if t.AsyncSettle {
		s.Dispatch.ReservedInFlight += len(b.taken)
	}
	if t.allotment.limiter != nil {
		s.WakeLocked(t) // it may have to rest from now on
	}
}

// claimLocked begins to record the attempts of the tasks that were taken. It reports false if
// they are not recorded beforehand. Otherwise the caller awaits the claims, and claimedLocked
// follows.
func (s *Engine) claimLocked(b *beginning) bool {
	if !b.topic.Settings.CountCrashes || len(b.taken) == 0 {
		return false
	}
	b.claims = NewPendingWrite(len(b.taken))
	for i, n := range b.taken {
		sl := s.Store.Slot(n)
		rec := s.Store.Record(sl)
		setAttempt(rec, record.Attempt(rec)+1, record.Flags(rec)|record.Claimed)
		s.SetLocked(sl, store.Claiming)
		b.claims.add(i, n)
		s.writeLocked(Write{slot: n, op: opClaim, pending: b.claims, index: i})
	}
	b.claims.Complete()
	s.Life.Handlers.Add(1)
	return true
}

// claimedLocked keeps those of the tasks whose attempts are recorded and that may still be handed
// out, and gives up the places of the others.
func (s *Engine) claimedLocked(b *beginning) {
	defer s.Life.Handlers.Done()
	t, now := b.topic, s.Now()
	claimed := b.taken[:0]
	for i, n := range b.taken {
		if b.claims.errs[i] != nil {
			continue
		}
		// Meanwhile Close may have begun, the topic may have been paused or be delivered
		// otherwise, the clock may have been set back, the shard be draining, or the ledger
		// have taken too long.
		sl := s.Store.Slot(n)
		if s.Ended || t.Stopped() || s.isAsideLocked(sl) || s.pausedLocked() || !b.by.fits(t) || sl.Next > now || s.tooLateLocked(t, sl, now) {
			s.putBackLocked(n, sl)
		} else {
			claimed = append(claimed, n)
		}
	}
	missed := len(b.taken) - len(claimed)
	b.taken = claimed
	switch {
	case b.by.leases():
		s.freeLocked(missed, 0)
	default:
		t.Busy -= missed
		if t.AsyncSettle {
			s.freeLocked(0, missed)
		}
	}
}

// deliverNowLocked makes n deliveries go by the settings that hold when they begin: these may have
// changed while the attempts were recorded.
func (b *beginning) deliverNowLocked(n int) {
	if now := b.topic.Deliverer; now != nil && (n == 1 || takesBatches(now)) {
		b.deliverer = now
	}
}

// handOutAllLocked begins the deliveries of the tasks that were taken.
func (s *Engine) handOutAllLocked(b *beginning) {
	if b.by.kind == aWorker {
		b.deliverNowLocked(len(b.taken))
	}
	b.begun = make([]*Delivery, len(b.taken))
	for i, n := range b.taken {
		b.begun[i] = s.handOutLocked(n, s.Store.Slot(n), b.term, b.claims != nil, b.by)
	}
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
