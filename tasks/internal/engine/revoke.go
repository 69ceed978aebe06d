package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// RevokeShard ends the term of a shard that has another owner, as the ledger or a refused batch
// says: its tasks leave memory, and nothing of it is begun any more.
func (s *Engine) RevokeShard(n int, err error) {
	s.mu.Lock()
	defer s.unlock()
	h := s.OwnedLocked(n)
	switch {
	case h == nil && s.Shards.granted:
		return // told again, by a batch or by the ledger: memory has forgotten it since
	case h == nil:
		h = s.beginTermLocked(n)
		close(h.read)
	}
	s.revokeLocked(n, h, err)
}

func (s *Engine) revokeLocked(n int, h *OwnedShard, err error) {
	switch {
	case h.stage == evicting || s.Ended:
		return
	case h.transferring: // which may be why
		h.revocation = err
		return
	}
	if errors.Is(err, recovery.ErrRetired) {
		s.Config.Log.Info("empty adopted shard retired", "node", s.Config.Node, "shard", n)
	} else {
		s.Figures.ShardsLost++
		s.Shards.noteMovedLocked("", n, err, s.Elapsed(), s.Elapsed())
	}
	h.revoked = true
	s.beginEvictionLocked(n, h)
}

// beginEvictionLocked begins to evict a shard that is another node's now.
func (s *Engine) beginEvictionLocked(n int, h *OwnedShard) {
	s.stageLocked(n, h, evicting)
	s.Life.Background.Go(func() { s.evictShard(n, h) })
}

const (
	// BusyPause is for how long a goroutine that waits for the busy tasks of a shard rests
	// at first, and busyPauseMax at most.
	BusyPause, busyPauseMax = 500 * time.Microsecond, 20 * time.Millisecond
)

// evictShard forgets a shard's tasks, some at a time, and then its number. It waits for those
// that are busy: their writes come back, and the goroutines that read them come to an end.
func (s *Engine) evictShard(n int, h *OwnedShard) {
	if !s.Life.Outlast(s.Life.Opened, h.read) {
		return
	}
	for s.movesInto(n) { // what was moved is the shard's from then on
		if !s.Life.Rest(BusyPause) {
			return
		}
	}
	var busy []uint32
	s.eachOf(n, func(slot uint32, sl *store.Slot) {
		if !s.evictTaskLocked(slot, sl) {
			busy = append(busy, slot)
		}
	})
	for pause := BusyPause; len(busy) > 0; pause = min(2*pause, busyPauseMax) {
		if !s.Life.Rest(pause) {
			return
		}
		busy = s.stillOf(n, busy, func(slot uint32, sl *store.Slot) bool { return !s.evictTaskLocked(slot, sl) })
	}
	s.evictDead(n, h)
	s.mu.Lock()
	if s.Ended {
		s.unlock()
		return
	}
	s.stageLocked(n, h, 0)
	s.Shards.forgotten++
	close(h.gone)
	s.unlock()
	s.Config.Log.Debug("a shard has left memory", "node", s.Config.Node, "shard", n, "tasks", h.evicted)
	s.Fleet.Forget(n)
}

// RestWithin waits, unless Close has begun or ctx has ended; then it is ErrClosed, or why
// ctx has; ErrUnavailable if that is ErrLate.
func (s *Engine) RestWithin(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.Life.Closing:
		return task.ErrClosed
	case <-ctx.Done():
		return Late(context.Cause(ctx))
	}
}

// eachOf calls visit, under the lock, for every task of a shard that is in memory all the time, or
// until Close has begun.
func (s *Engine) eachOf(shard int, visit func(n uint32, sl *store.Slot)) {
	w := s.walk(Pick{}, "")
	for !w.over && w.step(func(n uint32, sl *store.Slot) (cost int) {
		if int(sl.Shard) != shard {
			return 0
		}
		visit(n, sl)
		return 1
	}) == nil {
	}
}

// stillOf calls visit, under the lock, for those of the slots whose tasks are (still, or
// again) of a shard, and returns those for which it reports true.
func (s *Engine) stillOf(shard int, slots []uint32, visit func(n uint32, sl *store.Slot) bool) []uint32 {
	kept := slots[:0]
	for part := range slices.Chunk(slots, AtOnce) {
		s.mu.Lock()
		for _, n := range part {
			if sl := s.Store.Slot(n); sl.State != store.Vacant && int(sl.Shard) == shard && visit(n, sl) {
				kept = append(kept, n)
			}
		}
		s.Life.pieces.note(len(part))
		s.unlock()
		runtime.Gosched() // see InPieces
	}
	return kept
}

// evictTaskLocked forgets a task of a shard that is another node's. It reports false if it
// is busy.
func (s *Engine) evictTaskLocked(n uint32, sl *store.Slot) bool {
	l, open := s.Dispatch.Leases[n]
	switch {
	case sl.State == store.Checking, sl.State == store.Registering, sl.Flags&store.Writing != 0, sl.State == store.Delivering && !open:
		return false // the last one: the goroutine that had its attempt recorded has not looked yet
	case sl.State == store.Pending || sl.State == store.Ready:
		s.DisarmLocked(sl)
	}
	h := s.OwnedLocked(int(sl.Shard))
	if open {
		s.detachLocked(h, l)
		s.closeLocked(n)
	}
	h.evicted++
	s.Figures.TasksDropped++
	s.leaveLocked(n, sl)
	s.Writes.notifyLocked(n)
	return true
}

// failRefusedLocked ends a write that was refused because the shard is another node's.
func (s *Engine) failRefusedLocked(w *Write, sl *store.Slot, err error) {
	if w.op == opCreate || w.op == opCreateDead || w.op == opMove {
		s.Writes.Arriving--
	}
	if w.pending != nil {
		w.pending.resolve(w.index, revokedOutcome(w.pending, err))
	}
	if next, ok := s.Writes.Deferred[w.slot]; ok {
		delete(s.Writes.Deferred, w.slot)
		if next.op == opMove {
			s.Writes.Arriving--
		}
		if next.pending != nil {
			next.pending.resolve(next.index, revokedOutcome(next.pending, err))
		}
		w = &next
	}
	if w.op == opFinish || w.op == opRebury {
		s.passOnLocked(sl)
	}
	s.evictTaskLocked(w.slot, sl)
}

// revokedOutcome returns the error for the caller of a write to a lost shard: ErrNotHeld if the
// write was never sent or was dropped, and otherwise ErrUnknown, because a batch without an answer
// may have landed.
func revokedOutcome(c *PendingWrite, err error) error {
	if c.Phase.Load() == queued || errors.Is(err, recovery.ErrDropped) {
		return fmt.Errorf("%w (%w)", ErrNotHeld, err)
	}
	return fmt.Errorf("%w: %w", task.ErrUnknown, err)
}

// evictDead forgets the dead tasks of a shard, and its records that could not be read.
func (s *Engine) evictDead(n int, h *OwnedShard) {
	s.mu.Lock()
	dead := h.dead
	s.mu.Unlock()
	eachIn(s, dead, func(hash uint64, number uint32) {
		t := s.TopicTable.ByNumber[number]
		if s.Dead.Remove(dead, hash, t.of != nil) {
			t.lostDead()
		}
	})
	s.mu.Lock()
	defer s.unlock()
	h.dead = nil
	for hash, shard := range s.Reading.Illegible {
		if int(shard) == n {
			delete(s.Reading.Illegible, hash)
			s.Figures.UnknownRecords--
		}
	}
}
