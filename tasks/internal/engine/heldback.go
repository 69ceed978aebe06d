package engine

import (
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A ledger that runs out of room takes no new tasks. It still takes the ends of those that it has,
// with what they leave: the dead, their follow-ups, and what TopicSettings.KeepFinished keeps.
// There is a reserve for that. Once it is used up (recovery.ErrReserveUsed), such ends are held
// back: they count in memory, their callers are told that they are not recorded, and they are
// written when there is room. Deletions and retries are written all the time. A process that ends
// meanwhile has its successor deliver these tasks again, as after an outage.
//
// A task has at most one write that is held back, so there are at most as many as tasks. Only a
// node without peers holds back: a shard changes hands when all its writes are answered.

// reserveUsedFor reports whether a write has to wait for room.
func (s *Engine) reserveUsedFor(w *Write) bool {
	return (w.keeps || w.op == opBury) && s.Fleet == nil && s.Writes.condition.reserveUsed()
}

// reserveUsed reports whether the ledger had no room for the ends of tasks when it was last asked.
func (c *condition) reserveUsed() bool { return errors.Is(c.err(), recovery.ErrReserveUsed) }

// holdBackLocked keeps a write until there is room, and answers its caller.
func (q *writes) holdBackLocked(w Write, sl *store.Slot) {
	if w.op == opCancel {
		sl.Flags |= store.Wanted // it holds, see cancelledLocked
	}
	if w.pending != nil {
		w.pending.resolve(w.index, task.ErrUnrecorded)
		w.pending = nil
	}
	q.HeldBack[w.slot] = w
}

// tellHeldBack logs how many ends this process did not record.
func (s *Engine) tellHeldBack() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.Writes.HeldBack); n > 0 {
		s.Config.Log.Error("closing before the ledger had room for the ends of tasks; they are delivered again", "node", s.Config.Node, "tasks", n)
	}
}

func (q *writes) isHeldBackLocked(n uint32) bool {
	_, is := q.HeldBack[n]
	return is
}

// sendHeldBack writes what was held back, in pieces, as long as there is room. It waits for the
// answer to each piece, but no longer than until the ledger is to be asked again.
func (s *Engine) sendHeldBack() {
	for !s.Writes.condition.reserveUsed() {
		c := s.sendPieceHeldBack()
		if c == nil {
			return
		}
		select {
		case <-c.done:
			s.Writes.condition.ask(s.Ledger)
		case <-time.After(conditionEvery):
			return
		case <-s.Life.Closing:
			return
		}
	}
}

// sendPieceHeldBack sends up to AtOnce writes. It returns nil if none is held back.
func (s *Engine) sendPieceHeldBack() *PendingWrite {
	s.mu.Lock()
	defer s.unlock()
	if len(s.Writes.HeldBack) == 0 || s.Ended {
		return nil
	}
	c := NewPendingWrite(0)
	c.Phase.Store(sent) // nothing takes them back
	for n, w := range s.Writes.HeldBack {
		if len(c.slots) == AtOnce {
			break
		}
		delete(s.Writes.HeldBack, n)
		w.pending, w.index = c, c.extend(n)
		s.writeLocked(w)
	}
	c.complete()
	return c
}
