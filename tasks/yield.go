package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// yield hands a shard over to a node that has asked for it. From its beginning nothing new
// is done with the shard's tasks; what is under way is finished, open deliveries are
// recorded with their leases, so that they count at the other node; and when the ledger
// has confirmed everything, the shard changes hands. If that does not come off, all is as
// it was: memory forgets nothing before.
//
// Errors: ErrUnavailable when this node does not hold the shard (it may the next time that
// it is asked), or is handing it over already; ErrReplaying while it is still being read;
// ErrClosed; why the ledger did not change its owner; or ErrUnknown when it has not answered.
func (s *Scheduler) yield(ctx context.Context, shardID recovery.Home, to string) error {
	ctx, cancel := s.within(ctx)
	defer cancel()
	n, h, err := s.beginYield(shardID)
	if errors.Is(err, errNotHeld) {
		// Whoever asks has read that this node does: its giver could not say so, or the
		// ledger has forgotten that this node gave it away. Both is put right by a look.
		if _, failed := s.fleet.Accept(ctx, shardID); failed != nil {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return err
	}
	began := s.elapsed()
	err = s.calm(ctx, n)
	if err == nil {
		err = s.giveAway(ctx, n, h, to)
	}
	switch {
	case errors.Is(err, recovery.ErrUnanswered):
		s.cfg.Log.Warn("a shard may have been handed over; it rests until that is known", "node", s.cfg.Node, "shard", n, "to", to, "error", err)
		s.background.Go(func() { s.insist(n, h, to) })
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case err != nil:
		s.unleave(n, h)
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	s.cfg.Log.Info("a shard was handed over", "node", s.cfg.Node, "shard", n, "to", to, "took", (s.elapsed() - began).Round(time.Microsecond))
	return nil
}

// beginYield has nothing more begun with a shard's tasks.
func (s *Scheduler) beginYield(shardID recovery.Home) (int, *ownedShard, error) {
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
	case h.stage == draining, h.returning:
		return n, h, errHandedOver
	case h.stage != active || !s.isFirstReplayed():
		return n, h, fmt.Errorf("%w: the shard is still being read", ErrReplaying)
	case h.rewinds > 0:
		return n, h, fmt.Errorf("%w: the shard is being restored", ErrUnavailable)
	}
	s.stageLocked(h, draining)
	return n, h, nil
}

// calm waits until nothing of a shard that is leaving is under way, and parks its open
// deliveries.
func (s *Scheduler) calm(ctx context.Context, n int) error {
	for s.movesInto(n) { // whose tasks are not the shard's yet
		if err := s.restWithin(ctx, busyPause); err != nil {
			return err
		}
	}
	var busy []uint32 // only these can be: nothing new is begun
	s.eachOf(n, func(slot uint32, sl *slot) {
		if s.unrestLocked(slot, sl) {
			busy = append(busy, slot)
		}
	})
	for pause := busyPause; ; pause = min(2*pause, busyPauseMax) {
		busy = s.stillOf(n, busy, s.unrestLocked)
		if len(busy) == 0 && s.committer.Queued(n) == 0 {
			return nil
		}
		if err := s.restWithin(ctx, pause); err != nil {
			return err
		}
	}
}

// unrestLocked tells that something is under way with a task of a shard that is leaving.
// A delivery it parks.
func (s *Scheduler) unrestLocked(n uint32, sl *slot) bool {
	switch sl.state {
	case checking: // its reader finds that the shard takes nothing in
		return false
	case parking, pending, ready:
		return sl.flags&writing != 0
	case delivering:
		if l, open := s.open[n]; open && sl.flags&writing == 0 {
			s.parkLocked(n, sl, l)
		}
	}
	return true
}

// yieldAttempts is how often the ledger is asked to change a shard's owner. An answer that
// was lost is given again.
const yieldAttempts = 3

// giveAway changes the owner of a shard that is calm, and begins to drop it.
func (s *Scheduler) giveAway(ctx context.Context, n int, h *ownedShard, to string) error {
	s.mu.Lock()
	switch {
	case s.ended:
		s.unlock()
		return ErrClosed
	case h.stage != draining:
		s.unlock()
		return errNotHeld
	case h.rewinds > 0:
		s.unlock()
		return errors.New("the ledger has lost confirmed writes of the shard")
	}
	h.yielding = true
	s.unlock()
	var backoff recovery.Backoff
	var err error
	for attempt := range yieldAttempts {
		err = s.fleet.Yield(ctx, n, to)
		if err == nil || errors.Is(err, recovery.ErrLost) || errors.Is(err, recovery.ErrClosed) || backoff.Wait(ctx, attempt) != nil {
			break
		}
	}
	if errors.Is(err, recovery.ErrUnanswered) {
		return err
	}
	return s.given(n, h, err)
}

// insist asks the ledger until it has answered whether a shard has changed hands. Nothing
// of it is delivered meanwhile: the other node may be doing that.
func (s *Scheduler) insist(n int, h *ownedShard, to string) {
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
	if err = s.given(n, h, err); err != nil {
		s.unleave(n, h)
	}
	s.cfg.Log.Info("it is known whether a shard was handed over", "node", s.cfg.Node, "shard", n, "to", to, "error", err)
}

// given is told whether the ledger has changed a shard's owner.
func (s *Scheduler) given(n int, h *ownedShard, err error) error {
	s.mu.Lock()
	defer s.unlock()
	h.yielding = false
	switch {
	case s.ended:
		return ErrClosed
	case err == nil:
		s.shardCounts.yielded++
		s.dropLocked(n, h)
	case errors.Is(err, recovery.ErrLost), h.told != nil:
		s.loseLocked(n, h, errors.Join(err, h.told))
	}
	return err
}

// unleave takes a hand-over back that did not come off.
func (s *Scheduler) unleave(n int, h *ownedShard) {
	s.mu.Lock()
	if h.stage != draining || s.ended {
		s.unlock()
		return
	}
	s.stageLocked(h, active)
	h.returning = true
	s.unlock()
	s.eachOf(n, func(slot uint32, sl *slot) {
		switch {
		case sl.state == parking:
			s.unparkLocked(slot, sl)
		case sl.state == pending && sl.timer == 0:
			s.armLocked(slot, sl, s.now()) // it was set aside
		}
	})
	s.mu.Lock()
	h.returning = false
	s.mu.Unlock()
	s.wakeAll()
}

// setAsideLocked keeps a task that was taken off its queue, whose shard is leaving, from
// being delivered: it is pending without a timer until it is known who has it.
func (s *Scheduler) setAsideLocked(sl *slot) {
	s.setLocked(sl, pending)
	sl.gen++
}

// isAsideLocked tells that a task must not be handed out because of its shard.
func (s *Scheduler) isAsideLocked(sl *slot) bool {
	return s.inactive > 0 && !s.ownedLocked(int(sl.shard)).takes()
}
