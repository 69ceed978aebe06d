package tasks

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// A lease is one delivery that is not settled yet.
type lease struct {
	nonce     uint64        // tells its receipt from those of other deliveries
	attempt   uint32        // of this delivery
	until     time.Duration // on the monotonic clock
	leasedOut bool          // only its receipt can settle it; counts against MaxInFlight
}

// handOutLocked begins a delivery of a task that was taken off its queue, and
// claimed if its topic counts crashes. Its place among the deliveries is taken
// already.
func (s *engine) handOutLocked(n uint32, sl *store.Slot, term time.Duration, claimed bool, by consumer) *delivery {
	t := s.byNumber[sl.Topic]
	rec := s.store.Record(sl)
	l := lease{nonce: newNonce(s.ownedLocked(int(sl.Shard))), attempt: record.Attempt(rec), until: s.elapsed() + term, leasedOut: by.leases()}
	if !claimed {
		// A claim that the record still has is that of an earlier attempt, which
		// ended with its process.
		setAttempt(rec, l.attempt, record.Flags(rec)&^record.Claimed)
		l.attempt++
	}
	s.open[n] = l
	s.setLocked(sl, store.Delivering)
	if s.unsure() {
		s.shardCounts.unsure++
	}
	task := s.taskLocked(n)
	wall := s.cfg.Clock()
	e := Event{Attempt: task.Attempt, By: by.node}
	if task.Attempt == 1 {
		e.Lateness = max(0, wall.Sub(fromMillis(s.deadlineLocked(t, sl, true))))
		t.counts.Lateness.Observe(e.Lateness)
	}
	s.emitLocked(EventStarted, sl, e)
	return newDelivery(delivery{slot: n, lease: l, shard: sl.Shard, shardID: s.shardIDLocked(sl), signer: s.signer}, task, wall.Add(term).UTC())
}

// newNonce makes a nonce that shows, in its high half, in which term of the shard it
// was made: only a delivery of an earlier one can be resumed by its receipt.
func newNonce(h *ownedShard) uint64 { return uint64(h.run)<<32 | uint64(rand.Uint32()) }

// leaveOpenLocked leaves a delivery that a handler has begun to its receipt.
func (s *engine) leaveOpenLocked(n uint32) {
	l := s.open[n]
	l.leasedOut = true
	s.open[n] = l
	s.leasedOut++
}

// closeLocked takes a delivery off the open ones.
func (s *engine) closeLocked(n uint32) {
	if s.open[n].leasedOut {
		s.freeLocked(1, 0)
	}
	delete(s.open, n)
}

// roomLocked is how many more deliveries MaxInFlight allows that only a receipt can
// settle. It may be negative: receipts of before a restart are honoured beyond it.
func (s *engine) roomLocked() int { return s.cfg.MaxInFlight - s.leasedOut - s.reservedInFlight }

// holdLocked remembers a topic that finds no room, for freeLocked.
func (s *engine) holdLocked(t *topic) {
	if !t.held {
		t.held = true
		s.held = append(s.held, t)
	}
}

// freeLocked gives up places that counted against MaxInFlight. A topic that was
// kept waiting by that bound may go on.
func (s *engine) freeLocked(away, pledged int) {
	bound := s.roomLocked() <= 0
	s.leasedOut -= away
	s.reservedInFlight -= pledged
	if !bound || s.roomLocked() <= 0 {
		return
	}
	held := s.held
	s.held = nil // some may be held again
	for _, t := range held {
		t.held = false
		s.wakeLocked(t)
	}
}

// leasesAtOnce is how many open deliveries are looked at before others get the lock.
const leasesAtOnce = 4 * atOnce

// expire returns the tasks whose leases have run out and tells how many.
func (s *engine) expire() int {
	type delivery struct {
		slot  uint32
		nonce uint64
	}
	var over []delivery
	s.mu.Lock()
	now, seen := s.elapsed(), 0
	for n, l := range s.open { // others may change it while the lock is free: the loop allows that
		if l.until <= now {
			over = append(over, delivery{n, l.nonce})
		}
		if seen++; seen%leasesAtOnce == 0 {
			s.unlock()
			s.mu.Lock()
		}
	}
	s.unlock()
	count := 0
	for part := range slices.Chunk(over, atOnce) {
		s.mu.Lock()
		for _, d := range part {
			// It may have been settled or extended meanwhile.
			sl := s.store.Slot(d.slot)
			if l, ok := s.open[d.slot]; ok && l.nonce == d.nonce && l.until <= now && sl.State == store.Delivering {
				s.byNumber[sl.Topic].counts.LeaseExpired++
				s.failLocked(d.slot, sl, "the lease ran out", nil, nil, 0)
				count++
			}
		}
		s.unlock()
	}
	return count
}

// undoDeliveryLocked makes a task ready again whose delivery no receiver has seen. It reports
// false if that delivery is not open here, or is being handed over.
func (s *engine) undoDeliveryLocked(d *delivery) bool {
	l, ok := s.open[d.slot]
	if !ok || l.nonce != d.lease.nonce || s.store.Slot(d.slot).State != store.Delivering {
		return false
	}
	s.putBackLocked(d.slot, s.store.Slot(d.slot))
	return true
}

// A leaseContext is the context of one attempt: it ends with the lease, with the
// attempt, or with the scheduler. What that takes (a timer, and a place in the
// scheduler's context) is made when the deliverer first asks for it. Most handlers are
// over in no time and never do, and making it would be a seventh of the work of a
// delivery.
type leaseContext struct {
	parent   context.Context
	deadline time.Time // with a monotonic reading

	mu     sync.Mutex // guards the rest
	ended  bool
	inner  context.Context
	cancel context.CancelFunc
}

// end is called when the attempt is over.
func (c *leaseContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *leaseContext) get() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithDeadline(c.parent, c.deadline)
		if c.ended {
			c.cancel()
		}
	}
	return c.inner
}

// Deadline implements context.Context.
func (c *leaseContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Done implements context.Context.
func (c *leaseContext) Done() <-chan struct{} { return c.get().Done() }

// Err implements context.Context.
func (c *leaseContext) Err() error { return c.get().Err() }

// Value implements context.Context. It asks the inner context, by which package
// context knows its own: contexts made of this one need no goroutine.
func (c *leaseContext) Value(key any) any { return c.get().Value(key) }
