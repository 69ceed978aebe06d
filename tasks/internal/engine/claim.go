package engine

import (
	"context"
	"slices"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A beginning is tasks that were taken off a topic's queue, on their way to deliveries.
type beginning struct {
	topic     *Topic
	by        dispatch.Consumer
	lease     time.Duration // of the leases
	limit     int
	taken     []uint32
	recording *PendingWrite // records the attempts; nil if the topic does not count crashes
	begun     []*Delivery

	checked bool      // it may begin, see mayBeginLocked
	wall    time.Time // when the lock was taken
	// Of a worker:
	worker    *worker
	deliverer task.Deliverer
	arrivals  uint64 // of the topic, when the deliveries begin
	// Of receivers, whose topic is looked up by its name:
	place    *Waiter // where they stand in queues; nil if nowhere
	name     string
	receiver string // its own name
	reserved bool
	err      error // why it may not begin
}

// run takes up to limit tasks off a topic's queue and begins to deliver them: it is the only way
// to a delivery, for whatever consumer. A lease of 0 is the topic's lease. It returns none if there
// are none, or if nothing may be delivered now. It takes the lock itself.
//
// In a topic that counts crashes, an attempt is recorded before it is delivered: a
// task that kills its process then runs out of attempts like any other. Close
// waits for that.
func (s *Engine) run(ctx context.Context, b *beginning) []*Delivery {
	for s.take(b) {
	}
	if b.recording != nil {
		_ = s.Await(ctx, b.recording) // what was not recorded by then is ready again, or will be
		s.mu.Lock()
		s.attemptsRecordedLocked(b)
		s.handOutAllLocked(b)
		s.unlock()
	}
	for _, d := range b.begun {
		d.describe()
	}
	return b.begun
}

// take takes tasks, and begins either to record their attempts or to deliver them. It reports
// true if it has only met tasks that may not be delivered, and has to be called again: others get
// the lock in between.
func (s *Engine) take(b *beginning) (more bool) {
	if b.worker != nil {
		s.lockForWorker(b.topic)
	} else {
		s.mu.Lock()
	}
	defer s.unlock()
	if !b.checked && !s.mayBeginLocked(b) {
		return false
	}
	b.checked, b.wall = true, s.Config.Clock()
	if s.takePieceLocked(b) {
		s.WakeLocked(b.topic) // others may be faster
		return true
	}
	s.countTakenLocked(b)
	if !s.recordAttemptLocked(b) {
		s.handOutAllLocked(b)
	}
	return false
}

// mayBeginLocked reports whether a consumer may take tasks of a topic. It reports false for a
// worker, whose deliveries it has ended, if the worker should end, if the topic has no deliverer
// any more, or if the worker has more places than the topic now gives one worker. It reports false
// for a receiver if PullableLocked fails; b.err then says why. A receiver that stands in the queue
// leaves it.
func (s *Engine) mayBeginLocked(b *beginning) bool {
	if b.place != nil {
		b.place.leaveLocked()
	}
	switch {
	case b.by == dispatch.ByWorker:
		if !s.endWorkLocked(b.worker) {
			return false
		}
		b.deliverer, b.limit = b.topic.Deliverer, b.worker.places
		return b.deliverer != nil && b.limit <= s.Dispatch.PlacesOfOne(&b.topic.Line)
	case b.topic == nil:
		b.topic, b.err = s.PullableLocked(b.name, b.reserved)
		return b.err == nil
	}
	return true
}

// takePieceLocked takes tasks off a topic's queue. It reports true if it has only met tasks that
// may not be delivered, and there may be more behind them.
func (s *Engine) takePieceLocked(b *beginning) (more bool) {
	t, by := b.topic, b.by
	if !by.Fits(&t.Line) { // any more: it may change while the lock is released
		return false
	}
	if by.Leases() || t.AsyncSettle {
		b.limit = min(b.limit, s.Dispatch.Room())
	}
	b.limit = by.Allowed(&t.Line, b.limit)
	passed, bytes, now := 0, by.Bytes(), b.wall.UnixMilli()
	for len(b.taken) < b.limit && bytes > 0 {
		n, ok := s.takeLocked(t, now, &passed)
		if !ok {
			break
		}
		b.taken = append(b.taken, n)
		bytes -= len(s.Store.Record(s.Store.Slot(n)))
	}
	if len(b.taken) > 0 || passed < AtOnce {
		by.Spend(&t.Line, len(b.taken))
		return false
	}
	return true
}

// countTakenLocked takes the places of deliveries for the tasks that were taken.
func (s *Engine) countTakenLocked(b *beginning) {
	t := b.topic
	if b.lease == 0 {
		b.lease = t.Settings.Lease
	}
	if b.by.Leases() {
		s.Dispatch.LeasedOut += len(b.taken)
		s.WakeLocked(t) // one task wakes one receiver; this one may have left some
		return
	}
	t.Busy += len(b.taken)
	if t.AsyncSettle {
		s.Dispatch.ReservedInFlight += len(b.taken)
	}
	if t.Limited() {
		s.WakeLocked(t) // it may have to rest from now on
	}
}

// recordAttemptLocked begins to record the attempts of the tasks that were taken. It reports false
// if they are not recorded beforehand. Otherwise the caller awaits the claims, and
// attemptsRecordedLocked follows.
func (s *Engine) recordAttemptLocked(b *beginning) bool {
	if !b.topic.Settings.CountCrashes || len(b.taken) == 0 {
		return false
	}
	b.recording = NewPendingWrite(len(b.taken))
	for i, n := range b.taken {
		sl := s.Store.Slot(n)
		rec := s.Store.Record(sl)
		if record.Flags(rec)&record.Claimed != 0 {
			rec = s.logCrashLocked(n, sl)
		}
		setAttempt(rec, record.Attempt(rec)+1, record.Flags(rec)|record.Claimed)
		s.SetLocked(sl, store.Claiming)
		b.recording.add(i, n)
		s.writeLocked(Write{slot: n, op: opRecordAttempt, pending: b.recording, index: i})
	}
	b.recording.complete()
	s.Life.Handlers.Add(1)
	return true
}

// attemptsRecordedLocked keeps those of the tasks whose attempts are recorded and that may still be
// handed out, and gives up the places of the others.
func (s *Engine) attemptsRecordedLocked(b *beginning) {
	defer s.Life.Handlers.Done()
	b.wall = s.Config.Clock()
	t, now := b.topic, b.wall.UnixMilli()
	claimed := b.taken[:0]
	for i, n := range b.taken {
		if b.recording.errs[i] != nil {
			continue
		}
		// Meanwhile Close may have begun, the topic may have been paused or be delivered
		// otherwise, the clock may have been set back, the shard be draining, or the ledger
		// have taken too long.
		sl := s.Store.Slot(n)
		if s.Ended || t.Stopped() || s.isAsideLocked(sl) || s.outagePausesLocked() || !b.by.Fits(&t.Line) || sl.Next > now || t.isTooLate(s.Store, sl, now) || t.isStray(s.Store.Record(sl)) {
			s.putBackLocked(n, sl, returned, nil, 0)
		} else {
			claimed = append(claimed, n)
		}
	}
	missed := len(b.taken) - len(claimed)
	b.taken = claimed
	switch {
	case b.by.Leases():
		s.freeLocked(missed, 0)
	default:
		t.Busy -= missed
		if t.AsyncSettle {
			s.freeLocked(0, missed)
		}
	}
}

// deliverNowLocked makes n deliveries go by the settings that hold when they begin: these may have
// changed while the attempts were recorded.
func (b *beginning) deliverNowLocked(n int) {
	if now := b.topic.Deliverer; now != nil && (n == 1 || takesBatches(now)) {
		b.deliverer = now
	}
	b.arrivals = b.topic.arrivals
}

// handOutAllLocked begins the deliveries of the tasks that were taken.
func (s *Engine) handOutAllLocked(b *beginning) {
	if b.by == dispatch.ByWorker {
		b.deliverNowLocked(len(b.taken))
	}
	b.begun = slices.Grow(b.begun[:0], len(b.taken))
	receiver, now := b.receiverName(s.Config.Node), s.Elapsed()
	if b.place != nil && len(b.taken) > 0 {
		b.place.Number = 0 // it was its turn: next time it stands at the end
	}
	for _, n := range b.taken {
		b.begun = append(b.begun, s.handOutLocked(n, b, now, receiver))
	}
}

// putBackLocked makes a task ready again whose delivery no receiver has begun, and has
// it recorded that a claimed attempt does not count.
func (s *Engine) putBackLocked(n uint32, sl *store.Slot, how arrival, c *PendingWrite, i int) {
	attempt := s.Dispatch.Leases[n].Attempt
	s.closeLocked(n)
	rec := s.Store.Record(sl)
	if record.Flags(rec)&record.HasLease != 0 {
		// It was parked: its record has the lease, and counts the attempt.
		f := s.Store.Fields(sl)
		f.State, f.Attempt, f.LeaseRest, f.Nonce = record.Pending, attempt-1, 0, 0
		f.Flags &^= record.Claimed | record.HasLease
		s.Writes.scratch = f.Append(s.Writes.scratch[:0])
		s.Store.Rewrite(n, s.Writes.scratch)
		s.armLocked(n, sl, s.Now(), how)
		s.sendLocked(Write{slot: n, op: opRecord}, c, i)
		return
	}
	if s.unclaimLocked(n, sl, how) {
		s.sendLocked(Write{slot: n, op: opRecord}, c, i)
	}
}

// unclaimLocked makes a task ready again that was not handed out, and reports
// whether an attempt had been counted for it.
func (s *Engine) unclaimLocked(n uint32, sl *store.Slot, how arrival) bool {
	rec := s.Store.Record(sl)
	flags := record.Flags(rec)
	if flags&record.Claimed != 0 {
		setAttempt(rec, record.Attempt(rec)-1, flags&^record.Claimed)
	}
	s.armLocked(n, sl, s.Now(), how)
	return flags&record.Claimed != 0
}

// spentLocked reports whether a task's last attempt was claimed by a process that ended during it.
func (s *Engine) spentLocked(t *Topic, sl *store.Slot) bool {
	rec := s.Store.Record(sl)
	return record.Flags(rec)&record.Claimed != 0 && t.retryOf(rec).Over(record.Attempt(rec), s.Now()-record.Due(rec))
}

func setAttempt(rec []byte, attempt uint32, flags uint16) {
	record.SetAttempt(rec, attempt)
	record.SetFlags(rec, flags)
}

// takeLocked takes the next task that may be delivered off a topic's queue. It stays
// ready until the caller says otherwise, which must be before the lock is given up.
// passed counts those that may not be delivered: it gives up at AtOnce of them.
func (s *Engine) takeLocked(t *Topic, now int64, passed *int) (uint32, bool) {
	for ; *passed < AtOnce && !t.Stopped() && !s.Ended && !s.outagePausesLocked(); *passed++ {
		it, grouped, ok := t.Pop(s.Store.Stale)
		if !ok {
			break
		}
		n, sl, live := s.Store.Unpack(it.Value, store.Ready)
		switch {
		case grouped:
			s.groupsChangedLocked(t)
			if !live {
				continue
			}
			sl.Flags &^= store.InGroup
		case !live:
			continue
		default:
			s.unqueuedLocked(t)
			if t.Groups != nil && s.joinGroupLocked(n, t, sl, again) {
				continue // it became ready before there was a bound
			}
		}
		if s.isAsideLocked(sl) {
			// It is pending without a timer until it is known which node has the shard.
			s.SetLocked(sl, store.Pending)
			sl.Gen++
			continue
		}
		if sl.Next > now {
			// The clock was set back: on the new clock it is not due yet.
			s.armLocked(n, sl, now, fresh)
			continue
		}
		if t.isTooLate(s.Store, sl, now) {
			s.skipLocked(n, sl)
			continue
		}
		if t.isStray(s.Store.Record(sl)) {
			strayLocked(n, t, sl)
			continue
		}
		if sl.Flags&store.Misfired != 0 && s.missedLocked(n, t, sl) {
			continue
		}
		if s.spentLocked(t, sl) {
			s.Dispatch.Leases[n] = Lease{Attempt: record.Attempt(s.Store.Record(sl)), Began: notKnown}
			s.failLocked(n, sl, record.ProcessEnded, "the process ended during the last attempt", nil, nil, 0)
			continue
		}
		sl.Gen++
		if t.Groups != nil {
			s.occupyLocked(t, sl)
		}
		return n, true
	}
	return 0, false
}

func (s *Engine) skipLocked(n uint32, sl *store.Slot) {
	t := s.TopicTable.ByNumber[sl.Topic]
	t.Counts.Skipped++
	s.TopicTable.ended(t, n, record.Due(s.Store.Record(sl))).Skipped++
	s.Outcomes.Add(s.Store.Hash(s.Store.ID(sl)), store.Outcome{Kind: store.WasSkipped, Topic: 1 + sl.Topic, Created: record.Created(s.Store.Record(sl))})
	s.emitLocked(task.EventSkipped, sl, task.Event{})
	w := Write{slot: n, op: opFinish}
	if t.Settings.KeepFinished > 0 {
		s.keepLocked(t, sl, &w, record.Skipped, Lease{Attempt: record.Attempt(s.Store.Record(sl))})
	}
	s.SetLocked(sl, store.Finishing)
	s.writeLocked(w)
}

// isAsideLocked reports whether a task must not be handed out because of its shard's stage.
func (s *Engine) isAsideLocked(sl *store.Slot) bool {
	return s.Shards.view.Load().idle > 0 && !s.OwnedLocked(int(sl.Shard)).takes()
}
