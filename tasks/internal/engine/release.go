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
	r, err := s.beginRelease(shardID, to)
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
	ctx, cancel = context.WithTimeout(ctx, s.Config.AnswerWithin/2)
	defer cancel()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return ErrHandingOver
	}
}

// A leaving is a shard that is being handed over to a node.
type leaving struct {
	*Engine
	n  int
	h  *OwnedShard
	to string
	at string // the position at which that node has read it
}

// handOver hands the shard over, or takes that back.
func (s *leaving) handOver() error {
	began := s.Elapsed()
	rest, cancel := s.Within(s.Life.Context)
	err := s.quiesce(rest)
	cancel()
	if err == nil {
		read, cancel := context.WithTimeout(s.Life.Context, handOverWithin)
		err = s.callReadAhead(read)
		cancel()
	}
	if err == nil {
		change, cancel := s.Within(s.Life.Context)
		err = s.transfer(change)
		cancel()
	}
	switch {
	case errors.Is(err, recovery.ErrUnanswered):
		s.Config.Log.Warn("shard transfer unanswered: the shard rests until it is resolved", "node", s.Config.Node, "shard", s.n, "to", s.to, "error", err)
		s.Life.Background.Go(s.resolve)
		return fmt.Errorf("%w: %w", task.ErrUnknown, err)
	case err != nil:
		s.abort()
		return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Shards.noteMovedLocked(s.to, s.n, nil, began, s.Elapsed())
	return nil
}

// tellMovedWithin bounds how long the log waits for the end of a move of many shards.
const tellMovedWithin = time.Minute

// movedShards are what a node was given, or other nodes have adopted, since the last line of the
// log about it. A process that was suspended finds all of its shards lost: that is one line.
type movedShards struct {
	number      int
	shard       int           // the first one
	err         error         // why that is lost
	began, last time.Duration // on the monotonic clock
}

// noteMovedLocked counts a shard for the log, which a node was given, or which is lost: then the
// name of the node is empty.
func (o *ownership) noteMovedLocked(to string, shard int, err error, began, now time.Duration) {
	m, known := o.moved[to]
	if !known {
		m = movedShards{shard: shard, err: err, began: began}
	}
	m.number, m.last = m.number+1, now
	o.moved[to] = m
}

// tellMoved writes a line for each node that was given no further shard for a period of the sweep,
// and one if no further shard was lost; or at once.
func (s *Engine) tellMoved(all bool) {
	s.mu.Lock()
	due, now := make(map[string]movedShards), s.Elapsed()
	for to, m := range s.Shards.moved {
		if all || now-m.last >= s.Config.SweepEvery || now-m.began >= tellMovedWithin {
			due[to] = m
			delete(s.Shards.moved, to)
		}
	}
	s.mu.Unlock()
	for _, to := range slices.Sorted(maps.Keys(due)) {
		if m := due[to]; to == "" {
			s.Config.Log.Error("shards lost to other nodes; their tasks leave memory", "node", s.Config.Node, "shards", m.number, "shard", m.shard, "error", m.err)
		} else {
			s.Config.Log.Info("shards were handed over", "node", s.Config.Node, "to", to, "shards", m.number, "took", (m.last - m.began).Round(time.Microsecond))
		}
	}
}

// beginRelease stops new work: nothing more is begun with a shard's tasks. It hands the shard over
// in the background, unless that node is getting it already.
func (s *Engine) beginRelease(shardID recovery.ShardID, to string) (*release, error) {
	s.mu.Lock()
	defer s.unlock()
	n := s.Shards.number(shardID)
	h := s.OwnedLocked(n)
	switch {
	case s.Ended:
		return nil, task.ErrClosed
	case h == nil:
		return nil, ErrNotHeld
	case h.release != nil && h.release.to == to:
		return h.release, nil
	case s.Unsure():
		return nil, ErrUnsure
	case h.stage == draining, h.aborting:
		return nil, ErrHandedOver
	case h.stage != active || !s.IsFirstReplayed():
		return nil, task.KindOf(task.ErrReplaying, "shard not active yet; retry")
	case h.reconciles > 0:
		return nil, task.KindOf(task.ErrUnavailable, "shard is being restored; retry")
	}
	s.stageLocked(n, h, draining)
	r := &release{to: to, done: make(chan struct{})}
	h.release = r
	s.Life.Background.Go(func() {
		err := (&leaving{Engine: s, n: n, h: h, to: to}).handOver()
		s.mu.Lock()
		h.release, r.err = nil, err
		s.mu.Unlock()
		close(r.done)
	})
	return r, nil
}

// quiesce waits until nothing of the shard is under way, and parks its open deliveries.
func (s *leaving) quiesce(ctx context.Context) error {
	for s.movesInto(s.n) { // whose tasks are not the shard's yet
		if err := s.RestWithin(ctx, BusyPause); err != nil {
			return err
		}
	}
	var busy []uint32 // only these can be: nothing new is begun
	s.eachOf(s.n, func(slot uint32, sl *store.Slot) {
		if s.quiesceTaskLocked(slot, sl) {
			busy = append(busy, slot)
		}
	})
	for pause := BusyPause; ; pause = min(2*pause, busyPauseMax) {
		busy = s.stillOf(s.n, busy, s.quiesceTaskLocked)
		if len(busy) == 0 && s.Committer.Queued(s.n) == 0 {
			return nil
		}
		if err := s.RestWithin(ctx, pause); err != nil {
			return err
		}
	}
}

// quiesceTaskLocked reports whether something is under way with a task of a shard that is
// draining. A delivery it parks.
func (s *leaving) quiesceTaskLocked(n uint32, sl *store.Slot) bool {
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

// transfer changes the owner of the shard, which quiesce has brought to rest, and begins to evict
// it.
func (s *leaving) transfer(ctx context.Context) error {
	s.mu.Lock()
	switch {
	case s.Ended:
		s.unlock()
		return task.ErrClosed
	case s.h.stage != draining:
		s.unlock()
		return ErrNotHeld
	}
	s.h.transferring = true
	s.unlock()
	var backoff recovery.Backoff
	var err error
	for attempt := range transferAttempts {
		err = s.Fleet.Transfer(ctx, s.n, s.to, s.at)
		if err == nil || errors.Is(err, recovery.ErrLost) || errors.Is(err, recovery.ErrClosed) || backoff.Wait(ctx, attempt) != nil {
			break
		}
	}
	if errors.Is(err, recovery.ErrUnanswered) {
		return err
	}
	return s.transferred(err)
}

// resolve asks the ledger until it has answered whether the shard has changed hands. Nothing of it
// is delivered meanwhile: the other node may be doing that.
func (s *leaving) resolve() {
	var backoff recovery.Backoff
	err := recovery.ErrUnanswered
	for attempt := 0; errors.Is(err, recovery.ErrUnanswered); attempt++ {
		if backoff.Wait(s.Life.Context, attempt) != nil {
			return // Close has begun
		}
		ctx, cancel := s.Within(s.Life.Context)
		err = s.Fleet.Transfer(ctx, s.n, s.to, s.at)
		cancel()
	}
	if err = s.transferred(err); err != nil {
		s.abort()
	}
	s.Config.Log.Info("shard transfer resolved", "accepted", err == nil, "node", s.Config.Node, "shard", s.n, "to", s.to, "error", err)
}

// transferred enters whether the ledger has changed the shard's owner.
func (s *leaving) transferred(err error) error {
	s.mu.Lock()
	defer s.unlock()
	s.h.transferring = false
	switch {
	case s.Ended:
		return task.ErrClosed
	case err == nil:
		s.Figures.ShardsYielded++
		s.beginEvictionLocked(s.n, s.h)
	case errors.Is(err, recovery.ErrLost), s.h.revocation != nil:
		s.revokeLocked(s.n, s.h, errors.Join(err, s.h.revocation))
	}
	return err
}

// abort takes a hand-over back that did not come off.
func (s *leaving) abort() {
	s.mu.Lock()
	if s.h.stage != draining || s.Ended {
		s.unlock()
		return
	}
	s.stageLocked(s.n, s.h, active)
	s.h.aborting = true
	s.unlock()
	s.eachOf(s.n, func(slot uint32, sl *store.Slot) {
		switch {
		case sl.State == store.Parking:
			s.unparkLocked(slot, sl)
		case sl.State == store.Pending && sl.Timer == 0:
			s.armLocked(slot, sl, s.Now(), fresh) // it was set aside
		}
	})
	s.mu.Lock()
	s.h.aborting = false
	s.mu.Unlock()
	s.wakeAll()
}

// park records the open deliveries that can be settled by their receipts, with the rest of their
// leases. So they count after the next Open, and are not delivered a second time before their
// leases are over.
func (s *Engine) park() {
	s.mu.Lock()
	defer s.unlock()
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
