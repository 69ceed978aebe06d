package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// lockTask waits until nothing is under way with a task, and returns its slot with s.mu held.
// On an error the lock is not held: ErrNotFound,
// ErrDead, ErrReplaying, ErrUnavailable (ErrContended and errBeingCancelled among them),
// ErrClosed.
func (s *engine) lockTask(ctx context.Context, id string) (uint32, *store.Slot, error) {
	key := []byte(id)
	for waits, rechecked := 0, false; ; {
		s.mu.Lock()
		n, known := s.store.Find(key)
		switch {
		case s.ended:
			s.unlock()
			return 0, nil, ErrClosed
		case s.unsure() && !s.knownSpooledLocked(id):
			s.unlock()
			return 0, nil, errUnsure
		case known && !s.store.Slot(n).State.Busy():
			if sl := s.store.Slot(n); s.ownedLocked(int(sl.Shard)).mine() {
				return n, sl, nil
			}
			s.unlock()
			return 0, nil, errNotHeld
		case known && s.cancelledLocked(s.store.Slot(n)):
			err := s.permitLocked(task.TermsOf(ctx), s.store.Slot(n))
			s.unlock()
			if err == nil {
				err = errBeingCancelled
			}
			return 0, nil, err
		case known:
			ch := s.watchLocked(n)
			s.unlock()
			if err := s.waitBusy(ctx, ch, waits); err != nil {
				return 0, nil, err
			}
			waits++
		case s.buriedLocked(key):
			s.unlock()
			return 0, nil, ErrDead
		case s.illegibleLocked(key):
			s.unlock()
			if rechecked || !s.recheck(ctx, id, errIllegible) {
				return 0, nil, errIllegible
			}
			rechecked = true
		case s.isReplayed():
			s.unlock()
			return 0, nil, ErrNotFound
		default:
			s.unlock()
			switch absent, err := s.loadByID(ctx, id); {
			case err != nil:
				return 0, nil, err
			case absent:
				return 0, nil, ErrNotFound
			}
		}
	}
}

func (s *engine) buriedLocked(id []byte) bool {
	_, dead := s.dead.ids[s.store.Hash(id)]
	return dead
}

// illegibleLocked tells that the ledger has a record with this id that this
// version cannot read, and that must be kept.
func (s *engine) illegibleLocked(id []byte) bool {
	_, ok := s.illegible[s.store.Hash(id)]
	return ok
}

// cancelledLocked reports whether a task is cancelled for good, and the ledger is known not
// to answer: there is no point in waiting.
func (s *engine) cancelledLocked(sl *store.Slot) bool {
	return sl.State == store.Cancelling && sl.Flags&store.Wanted != 0 && s.ledgerDown(int(sl.Shard))
}

// errBeingCancelled is answered while a cancellation cannot be recorded.
var errBeingCancelled = fmt.Errorf("%w: the task is cancelled in this process, which is not recorded yet", ErrUnavailable)

var errIllegible = fmt.Errorf("%w: the record of this id cannot be read by this version", ErrUnavailable)

// watchLocked returns a channel that is closed when the task is no longer busy.
func (s *engine) watchLocked(n uint32) <-chan struct{} {
	ch, ok := s.waiting[n]
	if !ok {
		ch = make(chan struct{})
		s.waiting[n] = ch
	}
	return ch
}

// waitBusy waits until a task is no longer busy. The caller has not begun anything, so giving up
// changes nothing. waits is how many earlier changes of the task the caller has seen end: if it
// has seen some, and no server is known not to answer, giving up is ErrContended.
func (s *engine) waitBusy(ctx context.Context, ch <-chan struct{}, waits int) error {
	select {
	case <-ch:
		return nil
	case <-s.done:
		return ErrClosed
	case <-ctx.Done():
		if waits > 0 && !s.anyDown() {
			return fmt.Errorf("%w: %d of them ended", ErrContended, waits)
		}
		return fmt.Errorf("%w: an earlier change of this task still waits: %w", ErrUnavailable, context.Cause(ctx))
	}
}

// isClosed reports whether a channel that carries nothing is closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (s *engine) isClosing() bool { return isClosed(s.closing) }

// isFirstReplayed tells that memory knows every id of what this process held at first.
func (s *engine) isFirstReplayed() bool { return isClosed(s.replayed) }

// isReplayed tells that memory knows every id of what this process holds.
func (s *engine) isReplayed() bool {
	return s.isFirstReplayed() && s.catchingUp.Load() == 0
}

// opensLocked tells that there is a shard of which memory does not know yet which of its tasks
// are dead.
func (s *engine) opensLocked() bool {
	return !isClosed(s.deadRead) || s.catchingUp.Load() > 0 && slices.ContainsFunc(s.shards, func(h *ownedShard) bool { return h != nil && h.stage == acquired })
}

// checkLocked locks an id that memory does not know, so that its record can be
// read while no other caller changes it.
func (s *engine) checkLocked(id []byte, why store.Flags) uint32 {
	n, sl := s.store.Enter(id, nil)
	sl.State, sl.Flags = store.Checking, why
	return n
}

// uncheckLocked gives an id up that was locked for reading.
func (s *engine) uncheckLocked(n uint32) {
	s.store.Leave(n)
	s.notifyLocked(n)
}

// notifyLocked wakes the callers that wait for a task.
func (s *engine) notifyLocked(n uint32) {
	if ch, ok := s.waiting[n]; ok {
		close(ch)
		delete(s.waiting, n)
	}
}

func (s *engine) waitReplayed(ctx context.Context) error {
	over := s.replayed
	for {
		select {
		case <-over:
		case <-s.closing:
			return ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrReplaying, context.Cause(ctx))
		}
		s.mu.Lock()
		is := s.isReplayed()
		over = s.caughtUp
		s.mu.Unlock()
		if is {
			return nil
		}
	}
}

// abortLocked gives the slot of an id claim up.
func (s *engine) abortLocked(n uint32, sl *store.Slot) {
	s.arriving--
	s.leaveLocked(n, sl)
	s.notifyLocked(n)
}

// waitCreated waits for an earlier change of the same id. If that is a creation
// which has become this caller's too, giving up leaves its outcome open.
func (s *engine) waitCreated(ctx context.Context, ch <-chan struct{}, wanted bool, waits int) error {
	err := s.waitBusy(ctx, ch, waits)
	if wanted && errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: an earlier request for the same task still waits for its answer", ErrUnknown)
	}
	return err
}

// startLocked sends the first write of a task that has been entered.
func (s *engine) startLocked(n uint32, sl *store.Slot, c *pendingWrite, i int) {
	s.setLocked(sl, store.Creating)
	c.add(i, n)
	s.writeLocked(write{slot: n, op: opCreate, pending: c, index: i})
}

// admitLocked tells whether there is room for so many more tasks and bytes of
// records, and whether the ledger takes them.
func (s *engine) admitLocked(shard, more, bytes int) error {
	switch {
	case more > 0 && s.store.Len()+more > s.cfg.MaxPending:
		return fmt.Errorf("%w: %d tasks are pending", ErrOverloaded, s.store.Len())
	case bytes > 0 && s.store.Live()+int64(bytes) > s.cfg.MaxBytes:
		return fmt.Errorf("%w: the tasks use %d bytes", ErrOverloaded, s.store.Live())
	case s.arriving >= s.cfg.MaxInFlight:
		return fmt.Errorf("%w: %d tasks wait for the ledger", ErrOverloaded, s.arriving)
	}
	if err := s.writable(shard); err != nil {
		return err
	}
	if bytes > 0 {
		return s.conditionOf(shard)
	}
	return nil
}

// condition returns ErrUnavailable when the ledger has said, when it was last
// asked, that it takes no new records. Those that it has already are still written.
func (s *engine) condition() error { return s.conditionOf(0) }

func (s *engine) conditionOf(shard int) error {
	refusal := &s.refusal
	if shard == spoolShard {
		refusal = &s.spool.refusal
	}
	if err := refusal.Load(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, *err)
	}
	return nil
}

// room is how many records more memory takes, when a shard could be adopted.
func (s *engine) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomForMoreLocked()
}

func (s *engine) roomForMoreLocked() int {
	if s.ended || s.draining {
		return 0
	}
	return max(0, s.cfg.MaxPending-s.store.Len())
}
