package engine

import (
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// concludeLocked ends a delivery as it was judged.
func (s *Engine) concludeLocked(t *Topic, n uint32, v task.Judgement) {
	sl := s.Store.Slot(n)
	switch v.Verb {
	case task.Ack:
		s.ackLocked(n, sl, nil, 0)
	case task.Bury:
		s.buryLocked(n, sl, v.Reason, nil, 0)
	case task.Release:
		s.failLocked(n, sl, record.Failed, v.Reason, v.Pause, nil, 0)
	case task.Return:
		t.Counts.Returned++
		s.putBackLocked(n, sl, returnOf(s, t, n, v.Aside, again), nil, 0)
	default:
		if !t.AsyncSettle {
			t.AsyncSettle = true
			s.Dispatch.ReservedInFlight += t.Busy
		}
		s.leaveOpenLocked(n)
	}
}

// lookAgainAfter is how long the workers of a topic rest whose deliverer has no receiver.
const lookAgainAfter = time.Second

// judgeReceiverLocked has the workers of a topic rest if its deliverer has found no receiver for
// any of the deliveries that it was given together, and otherwise ends their rest. arrivals is that
// of the topic when they began: a receiver that has come since is tried at once.
func (s *Engine) judgeReceiverLocked(t *Topic, arrivals uint64, vs []task.Judgement) {
	if slices.ContainsFunc(vs, func(v task.Judgement) bool { return v.Verb != task.Return || v.Aside }) {
		if t.Lacks() {
			t.received()
			endLackLocked(s, t)
		}
		return
	}
	if arrivals != t.arrivals {
		return
	}
	s.Dispatch.Lack(&t.Line)
	t.lacking = strings.Clone(task.Cut(vs[0].Reason, task.MaxTopicError))
	s.countBacklogLocked(t)
	s.returnStaleLocked(t)
	if t.lookAgain == nil {
		t.lookAgain = time.AfterFunc(lookAgainAfter, func() {
			s.mu.Lock()
			defer s.unlock()
			if t.arrivals == arrivals { // else this timer was stopped too late
				t.lookAgain = nil
				s.carryOutLocked(s.Dispatch.Probe(&t.Line))
			}
		})
	}
}

// receiverCameLocked ends the rest of a topic's workers, if they rest, and has the tasks tried that
// none wanted: there may be a receiver.
func (s *Engine) receiverCameLocked(t *Topic) {
	t.received()
	seekLocked(s, t)
	if t.Lacks() {
		endLackLocked(s, t)
	}
}

// endLackLocked ends the rest of a topic's workers: its deliverer has a receiver.
func endLackLocked(s *Engine, t *Topic) {
	actions := s.Dispatch.Receive(&t.Line)
	s.countBacklogLocked(t)
	s.carryOutLocked(actions)
}

// received notes that there may be a receiver from now on.
func (t *Topic) received() {
	t.arrivals++
	t.lacking = ""
	if t.lookAgain != nil {
		t.lookAgain.Stop()
		t.lookAgain = nil
	}
}

// ackLocked finishes a task. From here on this process never delivers it again,
// recorded or not.
func (s *Engine) ackLocked(n uint32, sl *store.Slot, c *PendingWrite, i int) {
	t := s.TopicTable.ByNumber[sl.Topic]
	t.Counts.Delivered++
	t.recentAt(s.TopicTable.History.Turned).Delivered++ // no clock is read for it
	s.TopicTable.ended(t, n, record.Due(s.Store.Record(sl))).Delivered++
	s.TopicTable.History.Now().Delivered++
	l := s.Dispatch.Leases[n]
	s.Outcomes.Add(s.Store.Hash(s.Store.ID(sl)), store.Outcome{Kind: store.WasDelivered, Topic: 1 + sl.Topic, Nonce: l.Nonce, Created: record.Created(s.Store.Record(sl))})
	s.emitLocked(task.EventDelivered, sl, task.Event{Attempt: int(l.Attempt)})
	if t.Settings.Misfire == task.MisfireCoalesce {
		s.Misfires.Board.Acknowledged(t.Name, s.Store.Group(sl), s.Store.ID(sl))
	}
	w := Write{slot: n, op: opFinish}
	if t.Settings.KeepFinished > 0 {
		s.keepLocked(t, sl, &w, record.Delivered, l)
	}
	s.closeLocked(n)
	s.SetLocked(sl, store.Finishing)
	s.sendLocked(w, c, i)
}

// failLocked ends an attempt that its receiver has failed, or its process by ending. outcome is one
// of package record.
func (s *Engine) failLocked(n uint32, sl *store.Slot, outcome uint8, reason string, pause *time.Duration, c *PendingWrite, i int) {
	counts := &s.TopicTable.ByNumber[sl.Topic].Counts
	if s.missLocked(n, sl, outcome, reason, pause, c, i) {
		counts.Exhausted++
	} else {
		counts.Retried++
	}
}

// missLocked ends an attempt without success: the task waits for the next one, or is dead if that
// was the last, which it reports.
func (s *Engine) missLocked(n uint32, sl *store.Slot, outcome uint8, reason string, pause *time.Duration, c *PendingWrite, i int) (last bool) {
	t := s.TopicTable.ByNumber[sl.Topic]
	s.countFailureLocked(t, reason)
	l := s.Dispatch.Leases[n]
	retry := t.retryOf(s.Store.Record(sl))
	if retry.Over(l.Attempt, s.Now()-record.Due(s.Store.Record(sl))) {
		s.deadLocked(n, sl, record.Exhausted, outcome, reason, c, i)
		return true
	}
	d := retry.Pause(l.Attempt)
	if pause != nil {
		d = *pause
	}
	now := s.Now()
	s.emitLocked(task.EventRetried, sl, task.Event{Attempt: int(l.Attempt), Err: reason})
	// Not before the deadline either, if the clock was set back since.
	sl.Next = max(now+record.RoundUpMillis(d), record.Due(s.Store.Record(sl)))
	s.endAttemptLocked(n, sl, record.Pending, outcome, sl.Next, reason)
	if !sl.Flags.IsMissed() {
		t.enterMissed(sl, record.Due(s.Store.Record(sl)))
	}
	s.armLocked(n, sl, now, fresh)
	s.sendLocked(Write{slot: n, op: opRecord}, c, i)
	return false
}

// countFailureLocked counts an attempt that has failed.
func (s *Engine) countFailureLocked(t *Topic, reason string) {
	t.Counts.Failed++
	s.TopicTable.History.Now().Failed++
	t.recentAt(s.Elapsed()).Failed++
	s.failures.Failed(t.Name, reason)
	t.lastError, t.lastFail = strings.Clone(task.Cut(reason, task.MaxTopicError)), s.Now()
}

// buryLocked ends an attempt for good because its receiver said so.
func (s *Engine) buryLocked(n uint32, sl *store.Slot, reason string, c *PendingWrite, i int) {
	t := s.TopicTable.ByNumber[sl.Topic]
	t.Counts.Buried++
	s.countFailureLocked(t, reason)
	s.deadLocked(n, sl, record.Buried, record.GivenUp, reason, c, i)
}

// deadLocked ends an attempt, and with it the task. The state of its record says why.
func (s *Engine) deadLocked(n uint32, sl *store.Slot, state, outcome uint8, reason string, c *PendingWrite, i int) {
	t := s.TopicTable.ByNumber[sl.Topic]
	t.Counts.Died++
	s.TopicTable.ended(t, n, record.Due(s.Store.Record(sl))).Dead++
	s.TopicTable.History.Now().Died++
	s.failures.Died(t.Name, reason)
	s.emitLocked(task.EventDied, sl, task.Event{Attempt: int(s.Dispatch.Leases[n].Attempt), Err: reason})
	died := s.Now()
	s.SetLocked(sl, store.Burying)
	s.endAttemptLocked(n, sl, state, outcome, died, reason)
	s.sendLocked(Write{slot: n, op: opBury, at: died}, c, i)
}

// endAttemptLocked closes the delivery and writes its end into the task's record.
func (s *Engine) endAttemptLocked(n uint32, sl *store.Slot, state, outcome uint8, next int64, reason string) {
	f := s.Store.Fields(sl)
	l := s.Dispatch.Leases[n]
	f.State, f.Next, f.Attempt = state, next, l.Attempt
	f.Flags &^= record.Claimed | record.HasLease
	f.LastError = []byte(task.Cut(reason, task.MaxReason))
	s.addAttemptLocked(&f, s.pastAttemptLocked(sl, l, outcome, reason))
	s.Writes.scratch = f.Append(s.Writes.scratch[:0])
	s.Store.Rewrite(n, s.Writes.scratch)
	s.closeLocked(n)
}

// sendLocked writes for a caller, if there is one.
func (s *Engine) sendLocked(w Write, c *PendingWrite, i int) {
	if c != nil {
		c.add(i, w.slot)
		w.pending, w.index = c, i
	}
	s.writeLocked(w)
}
