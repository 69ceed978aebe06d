package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A release is a hand-over that is under way.
type release struct {
	to   string
	done chan struct{}
	err  error // once done is closed
}

// handOverWithin bounds how long the content of one shard may take to the next owner.
const handOverWithin = time.Minute

// ReleaseShard hands a shard over to a node that has asked for it. From its beginning nothing new
// is begun with the shard's tasks. Writes under way are finished, and open deliveries are recorded
// with their leases, so that they count at the other node. When the ledger has confirmed
// everything, and the other node has it in memory, the shard changes hands. If the release fails
// before, this node keeps the shard as it was: memory forgets nothing until then. The hand-over
// goes on when ctx ends; another call for the same node waits for the same hand-over.
//
// Errors: ErrHandingOver when it takes longer than a call may; ErrUnavailable when this node does
// not hold the shard (it may the next time that it is asked), or is handing it over to another
// node; ErrReplaying while it is still being read; ErrClosed; why the ledger did not change its
// owner; or ErrUnknown when it has not answered.
func (s *Engine) ReleaseShard(ctx context.Context, shardID recovery.ShardID, to string) error {
	ctx, cancel := s.Within(ctx)
	defer cancel()
	n, h, r, err := s.beginRelease(shardID, to)
	if errors.Is(err, ErrNotHeld) {
		// The requester believes that this node owns the shard. Either the previous owner's answer
		// was lost, or the ledger lost the transfer away from here. Accept resolves both.
		if _, failed := s.Fleet.Accept(ctx, shardID); failed != nil {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return err
	}
	if r == nil {
		r = s.startRelease(n, h, to)
	}
	ctx, cancel = context.WithTimeout(ctx, s.Config.AnswerWithin/2)
	defer cancel()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ErrHandingOver
	}
}

// startRelease hands a shard over in the background.
func (s *Engine) startRelease(n int, h *OwnedShard, to string) *release {
	r := &release{to: to, done: make(chan struct{})}
	s.Mu.Lock()
	h.release = r
	s.Mu.Unlock()
	s.Life.Background.Go(func() {
		err := s.handOver(n, h, to)
		s.Mu.Lock()
		h.release, r.err = nil, err
		s.Mu.Unlock()
		close(r.done)
	})
	return r
}

// handOver hands a shard over whose release has begun, or takes that back.
func (s *Engine) handOver(n int, h *OwnedShard, to string) error {
	began := s.Elapsed()
	rest, cancel := s.Within(s.Life.Context)
	err := s.quiesce(rest, n)
	cancel()
	if err == nil {
		read, cancel := context.WithTimeout(s.Life.Context, handOverWithin)
		err = s.callReadAhead(read, n, h, to)
		cancel()
	}
	if err == nil {
		change, cancel := s.Within(s.Life.Context)
		err = s.transfer(change, n, h, to)
		cancel()
	}
	switch {
	case errors.Is(err, recovery.ErrUnanswered):
		s.Config.Log.Warn("shard transfer unanswered: the shard rests until it is resolved", "node", s.Config.Node, "shard", n, "to", to, "error", err)
		s.Life.Background.Go(func() { s.resolveTransfer(n, h, to) })
		return fmt.Errorf("%w: %w", task.ErrUnknown, err)
	case err != nil:
		s.abortRelease(n, h)
		return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	s.noteHandOver(to, began)
	return nil
}

// A handOver is what another node was given since the last line of the log about it.
type handOver struct {
	shards      int
	began, last time.Duration // on the monotonic clock
}

// noteHandOver counts a shard that was handed over. The log has one line of many: see
// tellHandOvers.
func (s *Engine) noteHandOver(to string, began time.Duration) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Shards.handed == nil {
		s.Shards.handed = make(map[string]handOver)
	}
	h := s.Shards.handed[to]
	if h.shards == 0 {
		h.began = began
	}
	h.shards, h.last = h.shards+1, s.Elapsed()
	s.Shards.handed[to] = h
}

// tellHandOvers writes a line for each node that was given no further shard since the sweep before,
// or for each node.
func (s *Engine) tellHandOvers(all bool) {
	s.Mu.Lock()
	due, now := make(map[string]handOver), s.Elapsed()
	for to, h := range s.Shards.handed {
		if all || now-h.last >= s.Config.SweepEvery || now-h.began >= tellHandOverWithin {
			due[to] = h
			delete(s.Shards.handed, to)
		}
	}
	s.Mu.Unlock()
	for _, to := range slices.Sorted(maps.Keys(due)) {
		h := due[to]
		s.Config.Log.Info("shards were handed over", "node", s.Config.Node, "to", to, "shards", h.shards, "took", (h.last - h.began).Round(time.Microsecond))
	}
}

// tellHandOverWithin bounds how long the log waits for the end of a hand-over of many shards.
const tellHandOverWithin = time.Minute

// beginRelease stops new work: nothing more is begun with a shard's tasks. If the shard is being
// handed over to that node already, it returns the release.
func (s *Engine) beginRelease(shardID recovery.ShardID, to string) (int, *OwnedShard, *release, error) {
	s.Mu.Lock()
	defer s.Unlock()
	n := s.ShardNumberLocked(shardID)
	h := s.OwnedLocked(n)
	switch {
	case s.Ended:
		return n, h, nil, task.ErrClosed
	case h == nil:
		return n, h, nil, ErrNotHeld
	case h.release != nil && h.release.to == to:
		return n, h, h.release, nil
	case s.Unsure():
		return n, h, nil, ErrUnsure
	case h.Stage == draining, h.aborting:
		return n, h, nil, ErrHandedOver
	case h.Stage != Active || !s.IsFirstReplayed():
		return n, h, nil, task.KindOf(task.ErrReplaying, "shard not active yet; retry")
	case h.reconciles > 0:
		return n, h, nil, task.KindOf(task.ErrUnavailable, "shard is being restored; retry")
	}
	s.stageLocked(h, draining)
	return n, h, nil, nil
}

// quiesce waits until nothing of a shard that is draining is under way, and parks its open
// deliveries.
func (s *Engine) quiesce(ctx context.Context, n int) error {
	for s.movesInto(n) { // whose tasks are not the shard's yet
		if err := s.RestWithin(ctx, BusyPause); err != nil {
			return err
		}
	}
	var busy []uint32 // only these can be: nothing new is begun
	s.eachOf(n, func(slot uint32, sl *store.Slot) {
		if s.quiesceTaskLocked(slot, sl) {
			busy = append(busy, slot)
		}
	})
	for pause := BusyPause; ; pause = min(2*pause, busyPauseMax) {
		busy = s.stillOf(n, busy, s.quiesceTaskLocked)
		if len(busy) == 0 && s.Committer.Queued(n) == 0 {
			return nil
		}
		if err := s.RestWithin(ctx, pause); err != nil {
			return err
		}
	}
}

// quiesceTaskLocked reports whether something is under way with a task of a shard that is
// draining. A delivery it parks.
func (s *Engine) quiesceTaskLocked(n uint32, sl *store.Slot) bool {
	switch sl.State {
	case store.Checking: // its reader finds that the shard takes nothing in
		return false
	case store.Parking, store.Pending, store.Ready:
		return sl.Flags&store.Writing != 0
	case store.Delivering:
		if l, open := s.Dispatch.Leases[n]; open && sl.Flags&store.Writing == 0 {
			s.parkLocked(n, sl, l)
		}
	}
	return true
}

// transferAttempts is how often the ledger is asked to change a shard's owner. An answer that
// was lost is given again.
const transferAttempts = 3

// transfer changes the owner of a shard that quiesce has come to rest, and begins to evict it.
func (s *Engine) transfer(ctx context.Context, n int, h *OwnedShard, to string) error {
	s.Mu.Lock()
	switch {
	case s.Ended:
		s.Unlock()
		return task.ErrClosed
	case h.Stage != draining:
		s.Unlock()
		return ErrNotHeld
	case h.reconciles > 0:
		s.Unlock()
		return errors.New("the ledger has lost confirmed writes of the shard")
	}
	h.transferring = true
	s.Unlock()
	var backoff recovery.Backoff
	var err error
	for attempt := range transferAttempts {
		err = s.Fleet.Transfer(ctx, n, to)
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
func (s *Engine) resolveTransfer(n int, h *OwnedShard, to string) {
	var backoff recovery.Backoff
	err := recovery.ErrUnanswered
	for attempt := 0; errors.Is(err, recovery.ErrUnanswered); attempt++ {
		if backoff.Wait(s.Life.Context, attempt) != nil {
			return // Close has begun
		}
		ctx, cancel := s.Within(s.Life.Context)
		err = s.Fleet.Transfer(ctx, n, to)
		cancel()
	}
	if err = s.transferred(n, h, err); err != nil {
		s.abortRelease(n, h)
	}
	s.Config.Log.Info("shard transfer resolved", "accepted", err == nil, "node", s.Config.Node, "shard", n, "to", to, "error", err)
}

// transferred enters whether the ledger has changed a shard's owner.
func (s *Engine) transferred(n int, h *OwnedShard, err error) error {
	s.Mu.Lock()
	defer s.Unlock()
	h.transferring = false
	switch {
	case s.Ended:
		return task.ErrClosed
	case err == nil:
		s.Shards.Counts.Transferred++
		s.beginEvictionLocked(n, h)
	case errors.Is(err, recovery.ErrLost), h.revocation != nil:
		s.revokeLocked(n, h, errors.Join(err, h.revocation))
	}
	return err
}

// abortRelease takes a hand-over back that did not come off.
func (s *Engine) abortRelease(n int, h *OwnedShard) {
	s.Mu.Lock()
	if h.Stage != draining || s.Ended {
		s.Unlock()
		return
	}
	s.stageLocked(h, Active)
	h.aborting = true
	s.Unlock()
	s.eachOf(n, func(slot uint32, sl *store.Slot) {
		switch {
		case sl.State == store.Parking:
			s.unparkLocked(slot, sl)
		case sl.State == store.Pending && sl.Timer == 0:
			s.armLocked(slot, sl, s.Now()) // it was set aside
		}
	})
	s.Mu.Lock()
	h.aborting = false
	s.Mu.Unlock()
	s.wakeAll()
}

// setAsideLocked keeps a task of a draining shard, which was taken off its queue, from being
// delivered: it is pending without a timer until it is known which node has the shard.
func (s *Engine) setAsideLocked(sl *store.Slot) {
	s.SetLocked(sl, store.Pending)
	sl.Gen++
}

// park records the open deliveries that can be settled by their receipts, with the rest of their
// leases. So they count after the next Open, and are not delivered a second time before their
// leases are over.
func (s *Engine) park() {
	s.Mu.Lock()
	defer s.Unlock()
	for n, l := range s.Dispatch.Leases {
		if sl := s.Store.Slot(n); l.LeasedOut && sl.State == store.Delivering {
			s.parkLocked(n, sl, l)
		}
	}
}

// parkLocked records a delivery with its lease. Memory's own record stays as it is.
func (s *Engine) parkLocked(n uint32, sl *store.Slot, l Lease) {
	f := s.Store.Fields(sl)
	f.State, f.Attempt = record.Parked, l.Attempt
	f.LeaseRest, f.Nonce = max(0, (l.Until-s.Elapsed()).Milliseconds()), l.Nonce
	f.Flags = f.Flags&^record.Claimed | record.HasLease
	s.SetLocked(sl, store.Parking)
	s.writeLocked(Write{slot: n, op: opPark, rec: f.Append(nil)})
}

// unparkLocked goes on with a delivery that was parked in vain.
func (s *Engine) unparkLocked(n uint32, sl *store.Slot) {
	s.SetLocked(sl, store.Delivering)
	s.writeLocked(Write{slot: n, op: opRecord})
	s.Writes.notifyLocked(n)
	s.honourVerdictLocked(n, sl)
}
