package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// revokeShard ends the term of a shard that has another owner, as the ledger or a refused batch
// says: its tasks leave memory, and nothing of it is begun any more.
func (s *engine) revokeShard(n int, err error) {
	s.mu.Lock()
	defer s.unlock()
	h := s.ownedLocked(n)
	switch {
	case h == nil && s.granted:
		return // told again, by a batch or by the ledger: memory has forgotten it since
	case h == nil:
		h = s.beginTermLocked(n)
		close(h.read)
	}
	s.revokeLocked(n, h, err)
}

func (s *engine) revokeLocked(n int, h *ownedShard, err error) {
	switch {
	case h.stage == evicting || s.ended:
		return
	case h.transferring: // which may be why
		h.revocation = err
		return
	}
	if errors.Is(err, recovery.ErrRetired) {
		s.cfg.Log.Info("an adopted shard is given up: nothing was left in it, and its node is gone", "node", s.cfg.Node, "shard", n)
	} else {
		s.shardCounts.revoked++
		s.cfg.Log.Error("a shard has passed to another node; its tasks leave memory", "node", s.cfg.Node, "shard", n, "error", err)
	}
	h.revoked = true
	s.beginEvictionLocked(n, h)
}

// beginEvictionLocked begins to evict a shard that is another node's now.
func (s *engine) beginEvictionLocked(n int, h *ownedShard) {
	s.stageLocked(h, evicting)
	s.background.Go(func() { s.evictShard(n, h) })
}

const (
	// busyPause is for how long a goroutine that waits for the busy tasks of a shard rests
	// at first, and busyPauseMax at most.
	busyPause, busyPauseMax = 500 * time.Microsecond, 20 * time.Millisecond
)

// evictShard forgets a shard's tasks, some at a time, and then its number. It waits for those
// that are busy: their writes come back, and the goroutines that read them come to an end.
func (s *engine) evictShard(n int, h *ownedShard) {
	if !s.outlast(s.opened, h.read) {
		return
	}
	for s.movesInto(n) { // what was moved is the shard's from then on
		if !s.rest(busyPause) {
			return
		}
	}
	var busy []uint32
	s.eachOf(n, func(slot uint32, sl *store.Slot) {
		if !s.evictTaskLocked(slot, sl) {
			busy = append(busy, slot)
		}
	})
	for pause := busyPause; len(busy) > 0; pause = min(2*pause, busyPauseMax) {
		if !s.rest(pause) {
			return
		}
		busy = s.stillOf(n, busy, func(slot uint32, sl *store.Slot) bool { return !s.evictTaskLocked(slot, sl) })
	}
	s.evictDead(n, h)
	s.mu.Lock()
	if s.ended {
		s.unlock()
		return
	}
	s.stageLocked(h, 0)
	s.shards[n] = nil
	s.shardCounts.forgotten++
	close(h.gone)
	s.unlock()
	s.cfg.Log.Info("a shard has left memory", "node", s.cfg.Node, "shard", n, "tasks", h.evicted)
	s.fleet.Forget(n)
}

// rest waits; it reports false when Close has begun.
func (s *engine) rest(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-s.closing:
		return false
	}
}

// restWithin waits, unless Close has begun or ctx has ended; then it is ErrClosed, or why
// ctx has.
func (s *engine) restWithin(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.closing:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// eachOf calls visit, under the lock, for every task of a shard that is in memory all the
// time, and gives the lock up now and then. It reports false when Close has begun.
func (s *engine) eachOf(shard int, visit func(n uint32, sl *store.Slot)) bool {
	for from := uint32(0); ; {
		s.mu.Lock()
		if s.ended || from >= s.store.Slots() {
			defer s.unlock()
			return !s.ended
		}
		rest := s.store.Rest(from)
		for i, visited := 0, 0; i < len(rest) && visited < atOnce; i++ {
			if sl := &rest[i]; sl.State != store.Vacant && int(sl.Shard) == shard {
				visit(from, sl)
				visited++
			}
			from++
		}
		s.unlock()
	}
}

// stillOf calls visit, under the lock, for those of the slots whose tasks are (still, or
// again) of a shard, and returns those for which it reports true.
func (s *engine) stillOf(shard int, slots []uint32, visit func(n uint32, sl *store.Slot) bool) []uint32 {
	kept := slots[:0]
	s.mu.Lock()
	defer func() { s.unlock() }()
	for i, n := range slots {
		if i%atOnce == atOnce-1 {
			s.unlock()
			s.mu.Lock()
		}
		if sl := s.store.Slot(n); sl.State != store.Vacant && int(sl.Shard) == shard && visit(n, sl) {
			kept = append(kept, n)
		}
	}
	return kept
}

// evictTaskLocked forgets a task of a shard that is another node's. It reports false if it
// is busy.
func (s *engine) evictTaskLocked(n uint32, sl *store.Slot) bool {
	l, open := s.open[n]
	switch {
	case sl.State == store.Checking, sl.State == store.Registering, sl.Flags&store.Writing != 0, sl.State == store.Delivering && !open:
		return false // the last one: the goroutine that had its attempt recorded has not looked yet
	case sl.State == store.Pending || sl.State == store.Ready:
		s.disarmLocked(sl)
	}
	h := s.ownedLocked(int(sl.Shard))
	if open {
		s.detachLocked(h, l)
		s.closeLocked(n)
	}
	h.evicted++
	s.shardCounts.evicted++
	s.leaveLocked(n, sl)
	s.notifyLocked(n)
	return true
}

// failRefusedLocked ends a write that was refused because the shard is another node's.
func (s *engine) failRefusedLocked(w *write, sl *store.Slot, err error) {
	if w.op == opCreate || w.op == opMove {
		s.arriving--
	}
	if w.pending != nil {
		w.pending.resolve(w.index, revokedOutcome(w.pending, err))
	}
	if next, ok := s.deferred[w.slot]; ok {
		delete(s.deferred, w.slot)
		if next.op == opMove {
			s.arriving--
		}
		if next.pending != nil {
			next.pending.resolve(next.index, revokedOutcome(next.pending, err))
		}
		w = &next
	}
	if w.op == opFinish {
		s.passOnLocked(sl)
	}
	s.evictTaskLocked(w.slot, sl)
}

// lostAnswer is what the caller of a write is told whose shard was lost. A batch that
// was not answered may have landed before.
func revokedOutcome(c *pendingWrite, err error) error {
	if c.phase.Load() == queued || errors.Is(err, recovery.ErrDropped) {
		return fmt.Errorf("%w: %w", errNotHeld, err)
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// evictDead forgets which tasks were dead in a shard, and what could not be read.
func (s *engine) evictDead(n int, h *ownedShard) {
	s.mu.Lock()
	defer func() { s.unlock() }()
	count := 0
	for hash, number := range h.dead {
		if count++; count%atOnce == 0 {
			s.unlock()
			s.mu.Lock()
		}
		delete(s.dead.ids, hash)
		s.byNumber[number].lostDead()
	}
	h.dead = nil
	for hash, shard := range s.illegible {
		if int(shard) == n {
			delete(s.illegible, hash)
			s.unknown--
		}
	}
}
