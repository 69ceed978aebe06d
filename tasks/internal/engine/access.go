package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// lockTask waits until nothing is under way with a task, and returns its slot with Engine.mu held.
// On an error the lock is not held: ErrNotFound, ErrKept, ErrDead, ErrReplaying, ErrUnavailable
// (ErrContended and errBeingCancelled among them), ErrClosed.
func (s *Engine) lockTask(ctx context.Context, id string) (uint32, *store.Slot, error) {
	key := []byte(id)
	for waits, rechecked := 0, false; ; {
		s.mu.Lock()
		n, at := s.LookupLocked(key)
		switch known := at == InMemory; {
		case s.Ended:
			s.unlock()
			return 0, nil, task.ErrClosed
		case s.Unsure() && !s.knownSpooledLocked(id):
			s.unlock()
			return 0, nil, ErrUnsure
		case known && !s.Store.Slot(n).State.Busy():
			if sl := s.Store.Slot(n); s.OwnedLocked(int(sl.Shard)).mine() {
				return n, sl, nil
			}
			s.unlock()
			return 0, nil, ErrNotHeld
		case known && s.cancelledLocked(n, s.Store.Slot(n)):
			err := s.TopicTable.permit(task.ConditionsOf(ctx), s.Store, s.Store.Slot(n))
			s.unlock()
			if err == nil {
				err = errBeingCancelled
			}
			return 0, nil, err
		case known:
			ch := s.WatchLocked(n)
			s.unlock()
			if err := s.WaitBusy(ctx, ch, waits); err != nil {
				return 0, nil, err
			}
			waits++
		case at == Illegible && !rechecked:
			s.unlock()
			if !s.Recheck(ctx, id, ErrIllegible) {
				return 0, nil, ErrIllegible
			}
			rechecked = true
		case at == Unread:
			s.unlock()
			switch load := s.loadByID(ctx, id); {
			case load.Err != nil:
				return 0, nil, load.Err
			case load.Absent:
				return 0, nil, task.ErrNotFound
			}
		default:
			s.unlock()
			return 0, nil, refusals[at]
		}
	}
}

// actOnDead acts on those that memory takes for dead, and the ledger may not have.
func (s *Engine) actOnDead(ctx context.Context, q *query.Act, ids []string, dead []int, c *PendingWrite, sent []int, errs []error) {
	again := make([]string, len(dead))
	for k, i := range dead {
		again[k] = ids[i]
	}
	if s.RecheckDead(ctx, again) != nil {
		return
	}
	for _, i := range dead {
		sent[i], errs[i] = s.actOn(ctx, q, ids[i], c)
	}
}

// areBusy reports which of the tasks are busy.
func (s *Engine) areBusy(ids []string) []bool {
	busy := make([]bool, 0, len(ids))
	for some := range slices.Chunk(ids, AtOnce) {
		s.mu.Lock()
		for _, id := range some {
			n, known := s.Store.Find([]byte(id))
			busy = append(busy, known && s.Store.Slot(n).State.Busy())
		}
		s.mu.Unlock()
	}
	return busy
}

// actOnBusy is actOn for a task that was busy. It waits for half of the time that is left, so that
// a task that stays busy leaves time for others, and for their writes.
func (s *Engine) actOnBusy(ctx context.Context, q *query.Act, id string, c *PendingWrite) (write int, err error) {
	if ctx.Err() != nil {
		return 0, fmt.Errorf("%w: %w", task.ErrUnavailable, context.Cause(ctx))
	}
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Until(deadline)/2, ErrLate)
		defer cancel()
	}
	return s.actOn(ctx, q, id, c)
}

// cancelledLocked reports whether a task is cancelled for good, and the ledger is known not
// to answer or has no room: there is no point in waiting.
func (s *Engine) cancelledLocked(n uint32, sl *store.Slot) bool {
	if sl.State != store.Cancelling || sl.Flags&store.Wanted == 0 {
		return false
	}
	return s.LedgerDown(int(sl.Shard)) || s.Writes.isHeldBackLocked(n)
}

// errBeingCancelled is answered while a cancellation cannot be recorded.
var errBeingCancelled = task.KindOf(task.ErrUnavailable, "cancellation not recorded yet")

// ErrIllegible is returned for an id whose record this version cannot read.
var ErrIllegible = task.KindOf(task.ErrUnavailable, "this version cannot read the record of this id")

// WatchLocked returns a channel that is closed when the task is no longer busy.
func (s *Engine) WatchLocked(n uint32) <-chan struct{} {
	ch, ok := s.Writes.Waiting[n]
	if !ok {
		ch = make(chan struct{})
		s.Writes.Waiting[n] = ch
	}
	return ch
}

// WaitBusy waits until a task is no longer busy. The caller has not begun anything, so giving up
// changes nothing. waits is how many earlier changes of the task the caller has seen end: if it
// has seen some, and no server is known not to answer, giving up is ErrContended.
func (s *Engine) WaitBusy(ctx context.Context, ch <-chan struct{}, waits int) error {
	select {
	case <-ch:
		return nil
	case <-s.Life.Done:
		return task.ErrClosed
	case <-ctx.Done():
		if waits > 0 && !s.anyDown() {
			return fmt.Errorf("%w: %d of them ended", task.ErrContended, waits)
		}
		return fmt.Errorf("%w: an earlier change of this task still waits: %w", task.ErrUnavailable, context.Cause(ctx))
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

// request puts a request into a channel that holds one, unless there is one.
func request(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// IsClosing reports whether Close has begun.
func (s *Engine) IsClosing() bool { return isClosed(s.Life.Closing) }

// IsFirstReplayed reports whether memory knows every id of the shards that this process held at
// first.
func (s *Engine) IsFirstReplayed() bool { return isClosed(s.Reading.Replayed) }

// IsReplayed reports whether memory knows every id of the shards that this process holds.
func (s *Engine) IsReplayed() bool {
	return s.IsFirstReplayed() && s.Shards.view.Load().unread == 0
}

// opensLocked reports whether this process holds a shard whose dead tasks memory does not know
// yet.
func (s *Engine) opensLocked() bool {
	return !isClosed(s.Reading.deadRead) || s.Shards.view.Load().unread > 0 && slices.ContainsFunc(s.Shards.List, func(h *OwnedShard) bool { return h != nil && h.stage == acquired })
}

// UncheckLocked gives an id up that was locked for reading.
func (s *Engine) UncheckLocked(n uint32) {
	s.Store.Leave(n)
	s.Writes.notifyLocked(n)
}

// notifyLocked wakes the callers that wait for a task.
func (q *writes) notifyLocked(n uint32) {
	if ch, ok := q.Waiting[n]; ok {
		close(ch)
		delete(q.Waiting, n)
	}
}

// AwaitRead waits until memory knows every task of this node, and which are dead. Errors:
// ErrReplaying, ErrClosed.
func (s *Engine) AwaitRead(ctx context.Context) error {
	select {
	case <-s.Reading.deadRead:
		return s.waitReplayed(ctx)
	case <-s.Life.Closing:
		return task.ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errDeadUnread, context.Cause(ctx))
	}
}

// replayedWithin waits as long as Within allows until memory knows every task of this node. Errors:
// ErrReplaying, ErrClosed.
func (s *Engine) replayedWithin(ctx context.Context) error {
	ctx, cancel := s.Within(ctx)
	defer cancel()
	return s.waitReplayed(ctx)
}

func (s *Engine) waitReplayed(ctx context.Context) error {
	over := s.Reading.Replayed
	for {
		select {
		case <-over:
		case <-s.Life.Closing:
			return task.ErrClosed
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", task.ErrReplaying, context.Cause(ctx))
		}
		s.mu.Lock()
		is := s.IsReplayed()
		over = s.Reading.caughtUp
		s.mu.Unlock()
		if is {
			return nil
		}
	}
}

// AbortLocked gives the slot of an id claim up.
func (s *Engine) AbortLocked(n uint32, sl *store.Slot) {
	s.Writes.Arriving--
	s.leaveLocked(n, sl)
	s.Writes.notifyLocked(n)
}

// WaitCreated waits for an earlier change of the same id. If that is a creation
// which has become this caller's too, giving up leaves its outcome open.
func (s *Engine) WaitCreated(ctx context.Context, ch <-chan struct{}, wanted bool, waits int) error {
	err := s.WaitBusy(ctx, ch, waits)
	if wanted && errors.Is(err, task.ErrUnavailable) {
		return fmt.Errorf("%w: an earlier request for the same task still waits for its answer", task.ErrUnknown)
	}
	return err
}

// StartLocked sends the first write of a task that has been entered.
func (s *Engine) StartLocked(n uint32, sl *store.Slot, c *PendingWrite, i int) {
	s.SetLocked(sl, store.Creating)
	c.add(i, n)
	w := Write{slot: n, op: opCreate, pending: c, index: i}
	if record.State(s.Store.Record(sl)) >= record.Dead {
		w.op = opCreateDead
	}
	s.writeLocked(w)
}

// AdmitLocked returns nil if there is room for so many more tasks and bytes of records, and the
// ledger takes them. Errors: ErrOverloaded without room; those of Writable and conditionOf.
func (s *Engine) AdmitLocked(shard, more, bytes int) error {
	switch {
	case more > 0 && s.Store.Len()+more > s.Config.MaxPending:
		return fmt.Errorf("%w: %d tasks are pending", task.ErrOverloaded, s.Store.Len())
	case bytes > 0 && s.Store.Live()+int64(bytes) > s.Config.MaxBytes:
		return fmt.Errorf("%w: the tasks use %d bytes", task.ErrOverloaded, s.Store.Live())
	case s.Writes.Arriving >= s.Config.MaxInFlight:
		return fmt.Errorf("%w: %d tasks wait for the ledger", task.ErrOverloaded, s.Writes.Arriving)
	}
	if err := s.writableLocked(shard); err != nil {
		return err
	}
	if bytes > 0 {
		return s.conditionOf(shard)
	}
	return nil
}

// admitPlanLocked is AdmitLocked for a planned task. One that is dead or finished stays in memory
// only until the ledger has it.
func (s *Engine) admitPlanLocked(shard int, p *Plan) error {
	state := record.State(p.Rec)
	if record.IsFinished(state) && len(s.Dead.Kept) >= s.Config.MaxPending {
		return fmt.Errorf("%w: %d finished tasks are kept", task.ErrOverloaded, len(s.Dead.Kept))
	}
	more := 1
	if state >= record.Dead {
		more = 0
	}
	return s.AdmitLocked(shard, more, len(p.Rec))
}

// Condition returns ErrUnavailable when the ledger has said, when it was last
// asked, that it takes no new records. Those that it has already are still written.
func (s *Engine) Condition() error { return s.conditionOf(0) }

func (s *Engine) conditionOf(shard int) error {
	condition := &s.Writes.condition
	if shard == SpoolShard {
		condition = &s.Spool.condition
	}
	if err := condition.err(); err != nil {
		return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return nil
}

// room is how many records more memory takes, when a shard could be adopted.
func (s *Engine) room() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roomForMoreLocked()
}

// roomForMoreLocked returns how many records more memory takes.
func (s *Engine) roomForMoreLocked() int {
	if s.Ended || s.Draining {
		return 0
	}
	return max(0, s.Config.MaxPending-s.Store.Len())
}

// AtRest reports whether nothing is under way with a task that the ledger has.
func AtRest(sl *store.Slot) bool {
	return sl.State != store.Vacant && !sl.State.Busy() && sl.Flags&store.Writing == 0 && sl.Stored != store.NotStored
}
