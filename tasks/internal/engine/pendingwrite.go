package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine/deadline"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A PendingWrite is a caller that waits for one or more writes, all of one kind, or is told.
type PendingWrite struct {
	Phase    atomic.Int32 // queued, sent or withdrawn
	done     chan struct{}
	answered func(error) // in the place of done, of one write: told its outcome, under Engine.mu

	// Guarded by Engine.mu.
	slots     []uint32 // by index: whose write it is
	errs      []error  // by index: the answer; ErrOpen until it has come
	left      int      // writes without an answer, and one more until the caller has sent all
	cancels   bool     // its writes are cancellations
	single    bool     // it has one write, and its caller waits next: it may write that itself
	carried   int      // 1 + the shard whose batch the caller has to write first; 0: none
	abandoned bool     // the caller has left: no caller reads outcomes that come now
}

// How far the first write of a caller has come.
const (
	queued int32 = iota
	sent
	withdrawn
)

// ErrOpen stands for an answer that has not come, errSuperseded for that of a
// write that has given way to a later one: it counts, and is not recorded yet.
var (
	ErrOpen       = errors.New("no answer yet")
	errSuperseded = errors.New("not recorded yet")
)

// NewPendingWrite returns a caller that waits for up to n writes.
func NewPendingWrite(n int) *PendingWrite {
	return &PendingWrite{left: 1, done: make(chan struct{}), errs: make([]error, n), slots: make([]uint32, n)}
}

// newSingleWrite returns a caller that waits for one write, and for nothing else before.
func newSingleWrite(n int) *PendingWrite {
	c := NewPendingWrite(n)
	c.single = true
	return c
}

// add announces the write with index i. resolve records its outcome, and complete says that no more
// writes follow. Engine.mu is held for each.
func (c *PendingWrite) add(i int, slot uint32) {
	c.errs[i], c.slots[i] = ErrOpen, slot
	c.left++
}

// extend announces one write more than were planned for, and returns its index.
// Engine.mu is held.
func (c *PendingWrite) extend(slot uint32) int {
	c.errs, c.slots = append(c.errs, ErrOpen), append(c.slots, slot)
	c.left++
	return len(c.errs) - 1
}

func (c *PendingWrite) resolve(i int, err error) {
	if c.abandoned {
		return
	}
	c.errs[i] = err
	c.complete()
}

// complete says that no further write is added.
func (c *PendingWrite) complete() {
	if c.left--; c.left > 0 {
		return
	}
	if c.answered != nil {
		c.answered(c.errs[0])
	} else {
		close(c.done)
	}
}

// keepCancelled notes that its cancellations hold: they were sent, and nothing takes them back. A
// caller that asks again while the ledger is known not to answer need not wait. Engine.mu is held.
func (c *PendingWrite) keepCancelled(b *store.Store) {
	for i, n := range c.slots {
		if sl := b.Slot(n); errors.Is(c.errs[i], ErrOpen) && sl.State == store.Cancelling {
			sl.Flags |= store.Wanted
		}
	}
}

// admit reports whether a write may be sent. The committer calls it right before it sends the
// write: a caller that has given up by then has taken its writes back.
func admit(w Write) bool {
	return w.pending == nil || w.pending.Phase.CompareAndSwap(queued, sent) || w.pending.Phase.Load() == sent
}

// ErrLate is the cause of a context whose call has waited for the ledger long enough.
var ErrLate = errors.New("the ledger did not answer in time")

// Within bounds a public method by Config.AnswerWithin, however many waits it has. A call that
// never waits has no timer.
func (s *Engine) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	c := s.calls.New(ctx, time.Now().Add(s.Config.AnswerWithin))
	return c, c.End
}

// Late returns the error of a call that has begun no write: ErrUnavailable for ErrLate.
func Late(err error) error {
	if errors.Is(err, ErrLate) && !errors.Is(err, task.ErrUnknown) && !errors.Is(err, task.ErrUnavailable) {
		return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return err
}

// Await waits until all writes of a PendingWrite are answered, or ctx ends. Then writes
// that were not sent yet are taken back (ErrUnavailable), and the outcome of the
// others is open (ErrUnknown). Its outcomes do not change any more.
func (s *Engine) Await(ctx context.Context, c *PendingWrite) error {
	s.carry(ctx, c)
	if cause := deadline.Wait(ctx, c.done); cause != nil {
		return s.GiveUp(c, cause)
	}
	return nil
}

// GiveUp ends the wait for writes before all are answered, as Await does, whose error it returns.
// Error nil: they are answered.
func (s *Engine) GiveUp(c *PendingWrite, cause error) error {
	s.mu.Lock()
	defer s.unlock()
	if c.left == 0 {
		return nil
	}
	c.abandoned = true
	if !c.Phase.CompareAndSwap(queued, withdrawn) {
		if c.cancels {
			c.keepCancelled(s.Store)
		}
		return fmt.Errorf("%w: %w", task.ErrUnknown, cause)
	}
	now := s.Now()
	for i, n := range c.slots {
		if errors.Is(c.errs[i], ErrOpen) {
			s.undoLocked(n, c, now)
		}
	}
	return fmt.Errorf("%w: %w", task.ErrUnavailable, cause)
}

// carry writes the batch of a lone caller on its own goroutine, see recovery.Committer.Carry.
func (s *Engine) carry(ctx context.Context, c *PendingWrite) {
	if c.carried > 0 {
		s.Committer.Carry(ctx, c.carried-1)
		c.carried = 0
	}
}

// undoLocked returns a task to where it stood before a write that was not sent.
// The committer may hold that write for long, behind one that is not answered; a
// task that exists must not wait for it. One that does not exist yet may: its
// slot cannot be given up before the write comes back.
func (s *Engine) undoLocked(n uint32, c *PendingWrite, now int64) {
	sl := s.Store.Slot(n)
	w, behind := s.Writes.Deferred[n]
	if behind = behind && w.pending == c; behind {
		delete(s.Writes.Deferred, n)
		if w.op == opMove {
			s.Writes.Arriving-- // otherwise when the committer gives it back
		}
	}
	was := sl.State
	switch was {
	case store.Moving, store.Cancelling:
		s.armLocked(n, sl, now, fresh)
	case store.Replacing:
		s.SetLocked(sl, store.Delivering)
	case store.Claiming:
		s.unclaimLocked(n, sl, returned)
	default:
		return
	}
	if behind || sl.Stored != record.Next(s.Store.Record(sl)) {
		// A retry's own write may have given way to the one that is undone.
		s.writeLocked(Write{slot: n, op: opRecord})
	}
	s.Writes.notifyLocked(n)
	if was == store.Replacing {
		s.honourVerdictLocked(n, sl)
	}
}

// OutcomesOf returns the outcomes of writes that no caller waits for any more.
func (s *Engine) OutcomesOf(c *PendingWrite) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.errs
}

// heldLocked returns nil, or ErrUnavailable when the shard is another node's or about to be.
func (s *Engine) heldLocked(shard int) error {
	switch h := s.OwnedLocked(shard); {
	case h != nil && h.stage == draining:
		return ErrHandedOver
	case !h.takes():
		return ErrNotHeld
	}
	return nil
}

// writableLocked returns nil, or ErrUnavailable when the shard is another node's or about to
// be, or when the ledger has not answered for so long that another write would only wait
// behind.
func (s *Engine) writableLocked(shard int) error {
	if err := s.heldLocked(shard); err != nil {
		return err
	}
	if d := s.stalled(shard); d > s.Config.AnswerWithin {
		return fmt.Errorf("%w: no answer for %v", task.ErrUnavailable, d.Round(time.Millisecond))
	}
	return nil
}

// anyDown reports whether LedgerDown is true for some shard. It is cheap.
func (s *Engine) anyDown() bool {
	return s.Committer.AnyDown() || s.Spool != nil && s.Spool.committer.AnyDown()
}

// awaitSettled waits until the writes of settlements are answered, or ctx ends, or all that
// is open is for servers that are known not to answer. Nothing is taken back.
func (s *Engine) awaitSettled(ctx context.Context, c *PendingWrite) {
	for {
		next := s.Committer.NextDown() // before the look, so that none is missed
		if s.anyDown() && s.abandon(c) {
			return
		}
		select {
		case <-c.done:
			return
		case <-next:
		case <-ctx.Done():
			_ = s.Await(ctx, c)
			return
		}
	}
}
