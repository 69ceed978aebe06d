package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// releaseShard hands a shard over to a node that has asked for it. From its beginning nothing new
// is done with the shard's tasks; what is under way is finished, open deliveries are
// recorded with their leases, so that they count at the other node; and when the ledger
// has confirmed everything, the shard changes hands. If that does not come off, all is as
// it was: memory forgets nothing before.
//
// Errors: ErrUnavailable when this node does not hold the shard (it may the next time that
// it is asked), or is handing it over already; ErrReplaying while it is still being read;
// ErrClosed; why the ledger did not change its owner; or ErrUnknown when it has not answered.
func (s *engine) releaseShard(ctx context.Context, shardID recovery.Home, to string) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	n, h, err := s.beginRelease(shardID)
	if errors.Is(err, errNotHeld) {
		// The requester believes that this node owns the shard. Either the previous owner's answer
		// was lost, or the ledger lost the transfer away from here. Accept resolves both.
		if _, failed := s.fleet.Accept(ctx, shardID); failed != nil {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return err
	}
	began := s.elapsed()
	err = s.quiesce(ctx, n)
	if err == nil {
		err = s.transfer(ctx, n, h, to)
	}
	switch {
	case errors.Is(err, recovery.ErrUnanswered):
		s.cfg.Log.Warn("shard transfer unanswered: the shard rests until it is resolved", "node", s.cfg.Node, "shard", n, "to", to, "error", err)
		s.background.Go(func() { s.resolveTransfer(n, h, to) })
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case err != nil:
		s.abortRelease(n, h)
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	s.cfg.Log.Info("a shard was handed over", "node", s.cfg.Node, "shard", n, "to", to, "took", (s.elapsed() - began).Round(time.Microsecond))
	return nil
}

// beginRelease stops new work: nothing more is begun with a shard's tasks.
func (s *engine) beginRelease(shardID recovery.Home) (int, *ownedShard, error) {
	s.mu.Lock()
	defer s.unlock()
	n := s.shardNumberLocked(shardID)
	h := s.ownedLocked(n)
	switch {
	case s.ended:
		return n, h, ErrClosed
	case h == nil:
		return n, h, errNotHeld
	case s.unsure():
		return n, h, errUnsure
	case h.stage == draining, h.aborting:
		return n, h, errHandedOver
	case h.stage != active || !s.isFirstReplayed():
		return n, h, fmt.Errorf("%w: the shard is still being read", ErrReplaying)
	case h.reconciles > 0:
		return n, h, fmt.Errorf("%w: the shard is being restored", ErrUnavailable)
	}
	s.stageLocked(h, draining)
	return n, h, nil
}

// quiesce waits until nothing of a shard that is draining is under way, and parks its open
// deliveries.
func (s *engine) quiesce(ctx context.Context, n int) error {
	for s.movesInto(n) { // whose tasks are not the shard's yet
		if err := s.restWithin(ctx, busyPause); err != nil {
			return err
		}
	}
	var busy []uint32 // only these can be: nothing new is begun
	s.eachOf(n, func(slot uint32, sl *store.Slot) {
		if s.quiesceTaskLocked(slot, sl) {
			busy = append(busy, slot)
		}
	})
	for pause := busyPause; ; pause = min(2*pause, busyPauseMax) {
		busy = s.stillOf(n, busy, s.quiesceTaskLocked)
		if len(busy) == 0 && s.committer.Queued(n) == 0 {
			return nil
		}
		if err := s.restWithin(ctx, pause); err != nil {
			return err
		}
	}
}

// quiesceTaskLocked reports whether something is under way with a task of a shard that is
// draining. A delivery it parks.
func (s *engine) quiesceTaskLocked(n uint32, sl *store.Slot) bool {
	switch sl.State {
	case store.Checking: // its reader finds that the shard takes nothing in
		return false
	case store.Parking, store.Pending, store.Ready:
		return sl.Flags&store.Writing != 0
	case store.Delivering:
		if l, open := s.open[n]; open && sl.Flags&store.Writing == 0 {
			s.parkLocked(n, sl, l)
		}
	}
	return true
}

// transferAttempts is how often the ledger is asked to change a shard's owner. An answer that
// was lost is given again.
const transferAttempts = 3

// transfer changes the owner of a shard that quiesce has come to rest, and begins to evict it.
func (s *engine) transfer(ctx context.Context, n int, h *ownedShard, to string) error {
	s.mu.Lock()
	switch {
	case s.ended:
		s.unlock()
		return ErrClosed
	case h.stage != draining:
		s.unlock()
		return errNotHeld
	case h.reconciles > 0:
		s.unlock()
		return errors.New("the ledger has lost confirmed writes of the shard")
	}
	h.transferring = true
	s.unlock()
	var backoff recovery.Backoff
	var err error
	for attempt := range transferAttempts {
		err = s.fleet.Yield(ctx, n, to)
		if err == nil || errors.Is(err, recovery.ErrLost) || errors.Is(err, recovery.ErrClosed) || backoff.Wait(ctx, attempt) != nil {
			break
		}
	}
	if errors.Is(err, recovery.ErrUnanswered) {
		return err
	}
	return s.transferred(n, h, err)
}

// resolveTransfer asks the ledger until it has answered whether a shard has changed hands. Nothing
// of it is delivered meanwhile: the other node may be doing that.
func (s *engine) resolveTransfer(n int, h *ownedShard, to string) {
	var backoff recovery.Backoff
	err := recovery.ErrUnanswered
	for attempt := 0; errors.Is(err, recovery.ErrUnanswered); attempt++ {
		if backoff.Wait(s.ctx, attempt) != nil {
			return // Close has begun
		}
		ctx, cancel := s.within(s.ctx)
		err = s.fleet.Yield(ctx, n, to)
		cancel()
	}
	if err = s.transferred(n, h, err); err != nil {
		s.abortRelease(n, h)
	}
	s.cfg.Log.Info("shard transfer resolved", "accepted", err == nil, "node", s.cfg.Node, "shard", n, "to", to, "error", err)
}

// transferred enters whether the ledger has changed a shard's owner.
func (s *engine) transferred(n int, h *ownedShard, err error) error {
	s.mu.Lock()
	defer s.unlock()
	h.transferring = false
	switch {
	case s.ended:
		return ErrClosed
	case err == nil:
		s.shardCounts.transferred++
		s.beginEvictionLocked(n, h)
	case errors.Is(err, recovery.ErrLost), h.revocation != nil:
		s.revokeLocked(n, h, errors.Join(err, h.revocation))
	}
	return err
}

// abortRelease takes a hand-over back that did not come off.
func (s *engine) abortRelease(n int, h *ownedShard) {
	s.mu.Lock()
	if h.stage != draining || s.ended {
		s.unlock()
		return
	}
	s.stageLocked(h, active)
	h.aborting = true
	s.unlock()
	s.eachOf(n, func(slot uint32, sl *store.Slot) {
		switch {
		case sl.State == store.Parking:
			s.unparkLocked(slot, sl)
		case sl.State == store.Pending && sl.Timer == 0:
			s.armLocked(slot, sl, s.now()) // it was set aside
		}
	})
	s.mu.Lock()
	h.aborting = false
	s.mu.Unlock()
	s.wakeAll()
}

// setAsideLocked keeps a task that was taken off its queue, whose shard is draining, from
// being delivered: it is pending without a timer until it is known who has it.
func (s *engine) setAsideLocked(sl *store.Slot) {
	s.setLocked(sl, store.Pending)
	sl.Gen++
}

// isAsideLocked tells that a task must not be handed out because of its shard.
func (s *engine) isAsideLocked(sl *store.Slot) bool {
	return s.inactive > 0 && !s.ownedLocked(int(sl.Shard)).takes()
}

// park writes down the deliveries that are still open and can be settled by their
// receipts, with what is left of their leases, so that they count after the next
// Open and are not delivered a second time before.
func (s *engine) park() {
	s.mu.Lock()
	defer s.unlock()
	for n, l := range s.open {
		if sl := s.store.Slot(n); l.leasedOut && sl.State == store.Delivering {
			s.parkLocked(n, sl, l)
		}
	}
}

// parkLocked records a delivery with its lease. Memory's own record stays as it is.
func (s *engine) parkLocked(n uint32, sl *store.Slot, l lease) {
	f := s.store.Fields(sl)
	f.State, f.Attempt = record.Parked, l.attempt
	f.LeaseRest, f.Nonce = max(0, (l.until-s.elapsed()).Milliseconds()), l.nonce
	f.Flags = f.Flags&^record.Claimed | record.HasLease
	s.setLocked(sl, store.Parking)
	s.writeLocked(write{slot: n, op: opPark, rec: f.Append(nil)})
}

// unparkLocked goes on with a delivery that was parked in vain.
func (s *engine) unparkLocked(n uint32, sl *store.Slot) {
	s.setLocked(sl, store.Delivering)
	s.writeLocked(write{slot: n, op: opRecord})
	s.notifyLocked(n)
	if u, ok := s.pendingVerdicts[s.open[n].nonce]; ok {
		delete(s.pendingVerdicts, s.open[n].nonce)
		s.concludeLocked(s.byNumber[sl.Topic], n, u.judgement)
	}
}
