package tasks

import (
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// A write is one change of one task on its way through the committer.
type write struct {
	slot    uint32
	op      op
	shard   uint16        // opUnspool: where the record goes
	fired   bool          // opMove: by Fire
	audit   bool          // opRecord: the audit has found that the ledger lacks the task
	at      int64         // the time under which a put files the record
	rec     []byte        // opMove: the record that takes the old one's place; opPark: what is recorded meanwhile
	pending *pendingWrite // the caller that waits for it; may be nil. opUnspool: its piece, see newPiece
	index   int           // of this write in pending
}

// op says what a write does, and so what its confirmation means.
type op uint8

const (
	opCreate    op = iota // creating   -> pending
	opMove                // moving     -> pending
	opRecord              // a retry: the task is pending already
	opClaim               // claiming   -> delivering
	opPark                // parking    -> (the process ends, or the shard leaves)
	opFinish              // finishing  -> gone
	opCancel              // cancelling -> gone
	opBury                // burying    -> dead
	opRequeue             // requeuing  -> pending
	opForget              // finishing  -> gone, from among the dead
	opExpire              // the same, because it was kept long enough
	opUnspool             // stays where it is; its record goes from the spool to the ledger
	opUnspooled           // that record is deleted in the spool, or a second record in the ledger; of no task any more
)

// writeLocked sends a task's next write, or keeps it until the one under way is
// answered. A write that was kept before gives way: the new one says all that it
// would have said. The burial of a spooled task is kept until the ledger has the task.
func (s *engine) writeLocked(w write) {
	sl := s.store.Slot(w.slot)
	if sl.Flags&store.Writing != 0 || sl.Shard == spoolShard && w.op == opBury {
		if old, ok := s.deferred[w.slot]; ok && old.pending != nil {
			old.pending.resolve(old.index, errSuperseded)
		}
		s.deferred[w.slot] = w
		return
	}
	sl.Flags |= store.Writing
	c := s.changeOf(&w, sl)
	switch {
	case w.op == opUnspool:
		s.committer.Submit(int(w.shard), c, w)
	case sl.Shard == spoolShard:
		s.spool.submitLocked(c, w)
	default:
		s.committer.Submit(int(sl.Shard), c, w)
	}
}

// changeOf says what a write means to the ledger. Its slices point into the arena.
func (s *engine) changeOf(w *write, sl *store.Slot) recovery.Change {
	c := recovery.Change{ID: s.store.ID(sl)}
	if sl.Stored != store.NotStored {
		c.From = recovery.Spot{Place: recovery.Pending, At: sl.Stored}
	}
	switch w.op {
	case opCreate, opRecord, opClaim:
		c.Data = s.store.Record(sl)
		w.at = record.Next(c.Data)
		c.To = recovery.Spot{Place: recovery.Pending, At: w.at}
	case opPark:
		c.Data, w.at = w.rec, record.Next(w.rec)
		c.To = recovery.Spot{Place: recovery.Pending, At: w.at}
	case opMove:
		c.Data = w.rec
		c.To = recovery.Spot{Place: recovery.Pending, At: w.at}
	case opBury:
		c.Data = s.store.Record(sl)
		c.To = recovery.Spot{Place: recovery.Dead, At: w.at, Label: s.byNumber[sl.Topic].name}
	case opRequeue:
		c.Data = s.store.Record(sl)
		w.at = record.Next(c.Data)
		c.From = recovery.Spot{Place: recovery.Dead, At: sl.Stored, Label: s.byNumber[sl.Topic].name}
		c.To = recovery.Spot{Place: recovery.Pending, At: w.at}
	case opForget, opExpire:
		c.From = recovery.Spot{Place: recovery.Dead, At: sl.Stored, Label: s.byNumber[sl.Topic].name}
	case opUnspool:
		s.unspoolChangeLocked(&c, w, sl)
	case opFinish, opCancel, opUnspooled:
	}
	return c
}

// committed is told by the committer what has become of writes, in order.
func (s *engine) committed(shard int, writes []write, err error) {
	if errors.Is(err, recovery.ErrLost) && s.fleet != nil {
		s.revokeShard(shard, err)
	}
	for len(writes) > 0 {
		n := min(atOnce, len(writes))
		s.mu.Lock()
		now := s.now()
		for i := range writes[:n] {
			s.answeredLocked(&writes[i], err, now)
		}
		s.unlock()
		writes = writes[n:]
	}
	if errors.Is(err, recovery.ErrLost) && s.fleet == nil {
		s.revoke(err)
	}
}

func (s *engine) answeredLocked(w *write, err error, now int64) {
	if w.op == opUnspooled {
		return
	}
	sl := s.store.Slot(w.slot)
	if w.op == opUnspool {
		s.landedLocked(w.slot, sl)
	}
	again := err == nil && sl.Flags&store.Doubtful != 0
	sl.Flags &^= store.Writing | store.Doubtful
	switch {
	case again:
		s.repeatLocked(*w, sl)
		return
	case err == nil:
		s.confirmedLocked(w, sl, now)
	case errors.Is(err, recovery.ErrDropped):
		s.droppedLocked(w, sl)
		err = ErrUnavailable
	case errors.Is(err, recovery.ErrFull): // of creations only
		if w.op == opUnspool {
			w.abandonPiece()
		}
		s.droppedLocked(w, sl)
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, recovery.ErrLost) && s.fleet != nil:
		if w.op == opUnspool {
			s.holdInDoubtLocked(w, sl)
		}
		s.failRefusedLocked(w, sl, err)
		return
	default:
		// The ledger is closed or lost: what was under way stays as it is, and
		// its outcome open.
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if w.pending != nil {
		w.pending.resolve(w.index, err)
	}
	if next, ok := s.deferred[w.slot]; ok {
		delete(s.deferred, w.slot)
		s.writeLocked(next)
	}
	if !sl.State.Busy() || sl.State == store.Vacant {
		s.notifyLocked(w.slot)
	}
}

// repeatLocked sends a write once more that the ledger has confirmed, and may have lost
// since. A creation is no longer one: the ledger may have it, and must not refuse it.
func (s *engine) repeatLocked(w write, sl *store.Slot) {
	switch w.op {
	case opUnspool:
		s.repeatMoveLocked(w, sl)
		return
	case opCreate:
		sl.Stored = w.at
	}
	s.writeLocked(w)
}

// confirmedLocked takes a task to where its recorded write leads.
func (s *engine) confirmedLocked(w *write, sl *store.Slot, now int64) {
	t := s.byNumber[sl.Topic]
	switch w.op {
	case opCreate:
		s.arriving--
		sl.Stored = w.at
		if w.pending.abandoned && sl.Flags&store.Wanted == 0 {
			// Its caller was told that the outcome is unknown and did not ask again.
			s.setLocked(sl, store.Cancelling)
			s.writeLocked(write{slot: w.slot, op: opCancel})
			return
		}
		sl.Flags &^= store.Wanted
		if sl.Shard == spoolShard {
			s.enterSpoolLocked(w.slot, sl)
		}
		t.counts.Scheduled++
		s.emitLocked(EventScheduled, sl, Event{})
		s.armLocked(w.slot, sl, now)
	case opMove:
		s.arriving--
		s.store.Rewrite(w.slot, w.rec)
		s.setLocked(sl, store.Vacant)
		sl.Topic = s.keptTopic(record.Topic(w.rec)).number
		sl.Stored, sl.Next = w.at, w.at
		sl.Flags &^= store.Windowed | store.Prompt | store.Misfired
		if w.fired {
			sl.Flags |= store.Prompt
		}
		s.armLocked(w.slot, sl, now)
	case opRecord:
		sl.Stored = w.at
		if w.audit {
			s.sweep.repaired++
		}
	case opClaim:
		sl.Stored = w.at
		if w.pending.abandoned {
			s.putBackLocked(w.slot, sl)
		} else {
			s.setLocked(sl, store.Delivering)
		}
	case opPark:
		sl.Stored = w.at
	case opCancel:
		t.counts.Cancelled++
		s.outcomes.Add(s.store.Hash(s.store.ID(sl)), store.Outcome{Kind: store.WasCancelled})
		s.emitLocked(EventCancelled, sl, Event{})
		s.cluster.endedLocked(sl)
		s.leaveLocked(w.slot, sl)
	case opFinish:
		s.cluster.endedLocked(sl)
		s.leaveLocked(w.slot, sl)
	case opBury:
		s.addDeadLocked(t, int(sl.Shard), s.store.ID(sl), w.at)
		s.leaveLocked(w.slot, sl)
	case opRequeue:
		s.removeDeadLocked(t, int(sl.Shard), s.store.ID(sl), sl.Stored)
		sl.Stored = w.at
		s.armLocked(w.slot, sl, now)
	case opForget:
		s.removeDeadLocked(t, int(sl.Shard), s.store.ID(sl), sl.Stored)
		s.outcomes.Add(s.store.Hash(s.store.ID(sl)), store.Outcome{Kind: store.WasCancelled})
		t.counts.Cancelled++
		s.emitLocked(EventCancelled, sl, Event{})
		s.cluster.endedLocked(sl)
		s.leaveLocked(w.slot, sl)
	case opExpire:
		s.removeDeadLocked(t, int(sl.Shard), s.store.ID(sl), noneDead)
		t.counts.Expired++
		s.cluster.endedLocked(sl)
		s.leaveLocked(w.slot, sl)
	case opUnspool:
		s.unspooledLocked(w, sl)
	case opUnspooled:
	}
}

// droppedLocked ends a write that has not happened: it was never sent, because its
// caller had given it up, or the ledger had no room for it. What it did to a task that existed
// before was undone then (see undoLocked).
func (s *engine) droppedLocked(w *write, sl *store.Slot) {
	switch w.op {
	case opCreate:
		s.arriving--
		s.cluster.endedLocked(sl)
		s.leaveLocked(w.slot, sl)
	case opMove:
		s.arriving--
	case opRequeue, opForget, opExpire:
		s.leaveLocked(w.slot, sl)
	case opClaim, opCancel, opRecord, opPark, opFinish, opBury, opUnspool, opUnspooled:
	}
}

// leaveLocked forgets a task that memory has nothing more to do with.
func (s *engine) leaveLocked(n uint32, sl *store.Slot) {
	if sl.Shard == spoolShard {
		s.leaveSpoolLocked(n)
	}
	s.setLocked(sl, store.Vacant)
	s.store.Leave(n)
}

// setLocked changes a task's state and its topic's gauges.
func (s *engine) setLocked(sl *store.Slot, to store.State) {
	t := s.byNumber[sl.Topic]
	switch {
	case sl.State == store.Vacant && to != store.Vacant:
		t.countLocked(1)
	case to == store.Vacant && sl.State != store.Vacant:
		t.countLocked(-1)
	}
	t.gauges[sl.State.Shown()]--
	t.gauges[to.Shown()]++
	sl.State = to
}
