package engine

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/deadindex"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Write is one change of one task on its way through the committer.
type Write struct {
	slot  uint32
	op    op
	shard uint16 // opUnspool: where the record goes
	Fired bool   // opMove: by Fire
	audit bool   // opRecord: the audit has found that the ledger lacks the task
	keeps bool   // opFinish, opCancel: the record stays, see kept.go
	// followed: of opBury, its follow-up was made, or there is none; see ondead.go.
	followed bool
	minute   uint32 // opRequeue: of the deadline that the dead task had, Unix
	// after is, of the opCreate of a follow-up, the topic of the dead task; of an opRequeue that
	// replaces a task, the topic that this one counts in; of an opRebury, the topic under which the
	// ledger has an earlier burial of the task, nil if it has none.
	after   *Topic
	at      int64         // the time under which a put files the record
	rec     []byte        // opMove, opCancel that keeps: the new one; opPark: the one while parked
	pending *PendingWrite // of the caller, or nil; opUnspool: of its piece, see newPiece
	index   int           // of this write in pending
}

// op says what a write does, and so what its confirmation means.
type op uint8

// The kinds of writes, each with the state of the task before it and after its confirmation.
const (
	opCreate        op = iota // creating   -> pending
	opCreateDead              // creating   -> dead, or kept: it comes from another ledger
	opMove                    // moving     -> pending; replacing -> pending
	opRecord                  // a retry: the task is pending already
	opRecordAttempt           // claiming   -> delivering
	opPark                    // parking    -> (the process ends, or the shard leaves)
	opFinish                  // finishing  -> gone, or kept
	opCancel                  // cancelling -> gone, or kept
	opBury                    // burying    -> dead
	opRequeue                 // requeuing  -> pending, as it was or replaced
	opForget                  // finishing  -> gone, from among the dead
	opRebury                  // finishing  -> dead, or kept: once more, see rebury.go
	OpExpire                  // the same, because it was kept long enough
	opUnspool                 // stays where it is; its record goes from the spool to the ledger
	opUnspooled               // deletes what is left of a move: in the spool, or a second record
)

// writeLocked sends a task's next write, or keeps it until the one under way is answered. A write
// that was kept before gives way: the new one says all that it would have said. The burial of a
// spooled task is kept until the ledger has the task, and what needs room until there is some; see
// heldback.go.
func (s *Engine) writeLocked(w Write) {
	sl := s.Store.Slot(w.slot)
	w.keeps = w.keeps && sl.Shard != SpoolShard // which keeps nothing
	if sl.Flags&store.Writing != 0 || sl.Shard == SpoolShard && w.op == opBury {
		if old, ok := s.Writes.Deferred[w.slot]; ok && old.pending != nil {
			old.pending.resolve(old.index, errSuperseded)
		}
		s.Writes.Deferred[w.slot] = w
		return
	}
	if s.reserveUsedFor(&w) {
		s.Writes.holdBackLocked(w, sl)
		return
	}
	sl.Flags |= store.Writing
	if w.op == opBury && s.submitBuryLocked(w, sl) {
		return
	}
	c := s.changeOfLocked(&w, sl)
	switch {
	case w.op == opUnspool:
		s.Committer.Submit(int(w.shard), c, w)
	case sl.Shard == SpoolShard:
		s.Spool.submitLocked(c, w)
	case w.pending != nil && w.pending.single:
		if s.Committer.SubmitCarry(int(sl.Shard), c, w) {
			w.pending.carried = 1 + int(sl.Shard)
		}
	default:
		s.Committer.Submit(int(sl.Shard), c, w)
	}
}

// changeOfLocked returns the change of the ledger that a write makes. Its slices point into the
// arena.
func (s *Engine) changeOfLocked(w *Write, sl *store.Slot) recovery.Change {
	c := recovery.Change{ID: s.Store.ID(sl)}
	if sl.Stored != store.NotStored {
		c.From = recovery.Spot{Place: recovery.Pending, At: sl.Stored}
	}
	switch w.op {
	case opCreate, opRecord, opRecordAttempt:
		c.Data = s.Store.Record(sl)
		w.at = record.Next(c.Data)
		c.To = recovery.Spot{Place: recovery.Pending, At: w.at}
		if w.op == opCreate && w.after != nil {
			// A ledger without room would refuse a creation, and write the burial.
			c.From = c.To
		}
	case opPark:
		c.Data, w.at = w.rec, record.Next(w.rec)
		c.To = recovery.Spot{Place: recovery.Pending, At: w.at}
	case opMove:
		c.Data = w.rec
		c.To = recovery.Spot{Place: recovery.Pending, At: w.at}
	case opCreateDead:
		c.Data = s.Store.Record(sl)
		w.at = record.Next(c.Data)
		c.To = recovery.Spot{Place: recovery.Dead, At: w.at, Label: s.buriedAsLocked(sl).Name}
	case opBury:
		c.Data = s.Store.Record(sl)
		c.To = recovery.Spot{Place: recovery.Dead, At: w.at, Label: s.TopicTable.ByNumber[sl.Topic].Name}
	case opRebury:
		c.Data = s.Store.Record(sl)
		w.at = record.Next(c.Data)
		c.To = recovery.Spot{Place: recovery.Dead, At: w.at, Label: s.buriedAsLocked(sl).Name}
		if w.after != nil {
			c.From = recovery.Spot{Place: recovery.Dead, At: sl.Stored, Label: w.after.Name}
		}
	case opRequeue:
		c.Data = s.Store.Record(sl)
		w.at = record.Next(c.Data)
		c.From = recovery.Spot{Place: recovery.Dead, At: sl.Stored, Label: w.requeuedFrom(s.TopicTable.ByNumber[sl.Topic]).Name}
		c.To = recovery.Spot{Place: recovery.Pending, At: w.at}
	case opForget, OpExpire:
		c.From = recovery.Spot{Place: recovery.Dead, At: sl.Stored, Label: s.TopicTable.ByNumber[sl.Topic].Name}
	case opUnspool:
		s.unspoolChangeLocked(&c, w, sl)
	case opFinish, opCancel:
		if w.keeps {
			s.keptChangeLocked(&c, w, sl)
		}
	case opUnspooled:
	}
	return c
}

// requeuedFrom returns the topic in which a task of a topic counts among the dead, or the kept,
// until it is requeued or replaced.
func (w *Write) requeuedFrom(t *Topic) *Topic { return cmp.Or(w.after, t) }

// committed receives the outcomes of writes from the committer, in order.
func (s *Engine) committed(shard int, writes []Write, err error) {
	if errors.Is(err, recovery.ErrLost) && s.Fleet != nil {
		s.RevokeShard(shard, err)
	}
	for len(writes) > 0 {
		n := min(AtOnce, len(writes))
		s.mu.Lock()
		now := s.Now()
		for i := range writes[:n] {
			s.answeredLocked(&writes[i], err, now)
		}
		s.unlock()
		writes = writes[n:]
	}
	if errors.Is(err, recovery.ErrLost) && s.Fleet == nil {
		s.Revoke(err)
	}
}

func (s *Engine) answeredLocked(w *Write, err error, now int64) {
	if w.op == opUnspooled {
		return
	}
	sl := s.Store.Slot(w.slot)
	if w.op == opUnspool {
		delete(s.Spool.targets, w.slot)
		s.lineLocked(sl).Moving--
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
		err = task.ErrUnavailable
	case errors.Is(err, recovery.ErrFull): // of creations only
		if w.op == opUnspool {
			w.abandonPiece()
		}
		s.droppedLocked(w, sl)
		err = fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	case errors.Is(err, recovery.ErrLost) && s.Fleet != nil:
		if w.op == opUnspool {
			s.holdInDoubtLocked(w, sl)
		}
		s.failRefusedLocked(w, sl, err)
		return
	default:
		// The ledger is closed or lost: what was under way stays as it is, and
		// its outcome open.
		err = fmt.Errorf("%w: %w", task.ErrUnknown, err)
	}
	if w.pending != nil {
		w.pending.resolve(w.index, err)
	}
	if next, ok := s.Writes.Deferred[w.slot]; ok {
		delete(s.Writes.Deferred, w.slot)
		s.writeLocked(next)
	}
	if !sl.State.Busy() || sl.State == store.Vacant {
		s.Writes.notifyLocked(w.slot)
	}
}

// repeatLocked sends a write once more that the ledger has confirmed, and may have lost
// since. A creation is no longer one: the ledger may have it, and must not refuse it.
func (s *Engine) repeatLocked(w Write, sl *store.Slot) {
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
func (s *Engine) confirmedLocked(w *Write, sl *store.Slot, now int64) {
	t := s.TopicTable.ByNumber[sl.Topic]
	switch w.op {
	case opCreate:
		s.Writes.Arriving--
		sl.Stored = w.at
		if w.pending != nil && w.pending.abandoned && sl.Flags&store.Wanted == 0 {
			// Its caller was told that the outcome is unknown and did not ask again.
			s.SetLocked(sl, store.Cancelling)
			s.writeLocked(Write{slot: w.slot, op: opCancel})
			return
		}
		sl.Flags &^= store.Wanted
		if sl.Shard == SpoolShard {
			s.enterSpoolLocked(w.slot, sl)
		}
		if w.after != nil {
			w.after.Counts.FollowUps++
		}
		t.Counts.Scheduled++
		s.TopicTable.History.Now().Scheduled++
		s.emitLocked(task.EventScheduled, sl, task.Event{})
		s.armLocked(w.slot, sl, now, fresh)
		if sl.State != store.Ready {
			sl.Flags &^= store.Misfired // it has a place in a window, and is not late
		}
	case opCreateDead:
		s.Writes.Arriving--
		s.buriedLocked(s.buriedAsLocked(sl), sl, s.Store.Record(sl))
		s.leaveLocked(w.slot, sl)
	case opMove:
		s.Writes.Arriving--
		if sl.State == store.Replacing {
			// Neither the receipt nor the handler of the delivery can settle the new task, whose
			// revision is another one.
			delete(s.Detached.Verdicts, s.Dispatch.Leases[w.slot].Nonce)
			s.closeLocked(w.slot)
		}
		s.SetLocked(sl, store.Vacant)
		s.Store.Rewrite(w.slot, w.rec)
		sl.Topic = s.keptTopicLocked(record.Topic(w.rec)).Number
		sl.Stored, sl.Next = w.at, w.at
		sl.Flags &^= store.Windowed | store.Prompt | store.Misfired
		if w.Fired {
			sl.Flags |= store.Prompt
		}
		if due := record.Due(w.rec); record.Attempt(w.rec) > 0 && due <= now && w.at != record.HeldUntil {
			s.TopicTable.ByNumber[sl.Topic].enterMissed(sl, due)
		}
		s.armLocked(w.slot, sl, now, fresh)
	case opRecord:
		sl.Stored = w.at
		if w.audit {
			s.Figures.AuditRepaired++
		}
	case opRecordAttempt:
		sl.Stored = w.at
		if w.pending.abandoned {
			s.putBackLocked(w.slot, sl, returned, nil, 0)
		} else {
			s.SetLocked(sl, store.Delivering)
		}
	case opPark:
		sl.Stored = w.at
	case opCancel:
		t.Counts.Cancelled++
		s.TopicTable.ended(t, w.slot, record.Due(s.Store.Record(sl))).Cancelled++
		s.TopicTable.History.Now().Cancelled++
		s.Outcomes.Add(s.Store.Hash(s.Store.ID(sl)), store.Outcome{Kind: store.WasCancelled, Topic: 1 + sl.Topic, Created: record.Created(s.Store.Record(sl))})
		s.emitLocked(task.EventCancelled, sl, task.Event{})
		s.endedLocked(w, t, sl)
	case opFinish:
		s.endedLocked(w, t, sl)
	case opBury, opRebury:
		s.buriedLocked(s.buriedAsLocked(sl), sl, s.Store.Record(sl))
		s.leaveLocked(w.slot, sl)
	case opRequeue:
		from := w.requeuedFrom(t)
		s.removeDeadLocked(from, int(sl.Shard), s.Store.ID(sl), sl.Stored)
		sl.Stored = w.at
		if from.of == nil {
			s.TopicTable.endedIn(from, w.slot, int64(w.minute)).Dead--
		}
		if from.of != nil { // for its topic it is a new one
			t.Counts.Scheduled++
			s.TopicTable.History.Now().Scheduled++
			s.emitLocked(task.EventScheduled, sl, task.Event{})
		}
		s.armLocked(w.slot, sl, now, fresh)
	case opForget:
		s.removeDeadLocked(t, int(sl.Shard), s.Store.ID(sl), sl.Stored)
		s.Outcomes.Add(s.Store.Hash(s.Store.ID(sl)), store.Outcome{Kind: store.WasCancelled, Topic: 1 + sl.Topic, Created: record.Created(s.Store.Record(sl))})
		t.Counts.Cancelled++
		if t.of == nil {
			c := s.TopicTable.ended(t, w.slot, record.Due(s.Store.Record(sl)))
			c.Dead--
			c.Cancelled++
		}
		s.TopicTable.History.Now().Cancelled++
		s.emitLocked(task.EventCancelled, sl, task.Event{})
		s.Cluster.EndedLocked(sl)
		s.leaveLocked(w.slot, sl)
	case OpExpire:
		s.removeDeadLocked(t, int(sl.Shard), s.Store.ID(sl), deadindex.None)
		t.Counts.Expired++
		s.Cluster.EndedLocked(sl)
		s.leaveLocked(w.slot, sl)
	case opUnspool:
		s.unspooledLocked(w, sl)
	case opUnspooled:
	}
}

// droppedLocked ends a write that has not happened: it was never sent, because its caller had given
// it up, or the ledger had no room for it. If the task existed before, undoLocked has undone the
// change in memory by now.
func (s *Engine) droppedLocked(w *Write, sl *store.Slot) {
	switch w.op {
	case opCreate, opCreateDead:
		s.Writes.Arriving--
		s.Cluster.EndedLocked(sl)
		s.leaveLocked(w.slot, sl)
	case opMove:
		s.Writes.Arriving--
	case opRequeue, opForget, OpExpire:
		s.leaveLocked(w.slot, sl)
	case opRecordAttempt, opCancel, opRecord, opPark, opFinish, opBury, opRebury, opUnspool, opUnspooled:
	}
}

// leaveLocked forgets a task that memory has nothing more to do with.
func (s *Engine) leaveLocked(n uint32, sl *store.Slot) {
	if sl.Shard == SpoolShard {
		s.leaveSpoolLocked(n)
	}
	s.SetLocked(sl, store.Vacant)
	s.Store.Leave(n)
}

// SetLocked changes a task's state and its topic's gauges. Whether a task is retrying follows from
// its record, whose attempt may change only while the task is not shown as pending.
func (s *Engine) SetLocked(sl *store.Slot, to store.State) {
	t := s.TopicTable.ByNumber[sl.Topic]
	switch {
	case sl.State == store.Vacant && to != store.Vacant:
		t.countLocked(1)
	case to == store.Vacant && sl.State != store.Vacant:
		t.countLocked(-1)
	}
	before, after := sl.State.Shown(), to.Shown()
	t.Gauges[before]--
	t.Gauges[after]++
	switch {
	case before == after:
	case before == task.Pending && t.Retrying > 0 && s.Store.Attempted(sl):
		t.Retrying--
	case after == task.Pending && s.Store.Attempted(sl):
		t.Retrying++
	}
	if sl.Flags.IsMissed() {
		t.passMissed(s.Store, sl, to)
	}
	if t.Groups != nil && sl.State.Occupying() != to.Occupying() {
		s.groupOfLocked(t, sl, to)
	}
	if sl.Next == record.HeldUntil && before != after {
		t.countHeldLocked(before, after)
	}
	sl.State = to
}

// Overdue is a task whose deadline has passed and that is not delivered: it is ready and no attempt
// of it was made, or an attempt has failed, wherever the task stands now. Held tasks are not
// overdue, nor are dead ones, nor those that wait for their place in a spread. The first kind is
// counted by the gauges. A task of the second kind has the flag store.Missed from its first failure
// on, see Topic.Missed: nothing else on the way of a task looks at it.

// enterMissed counts a task of which an attempt has failed since its deadline. Its state is shown,
// or about to be.
func (t *Topic) enterMissed(sl *store.Slot, due int64) {
	sl.Flags |= store.Missed
	t.Missed.Enter(due)
	if sl.State.Shown() == task.Ready {
		t.Missed.Ready++
	}
}

// passMissed follows such a task into another state, of which some end it.
func (t *Topic) passMissed(b *store.Store, sl *store.Slot, to store.State) {
	if sl.State.Shown() == task.Ready {
		t.Missed.Ready--
	}
	switch shown := to.Shown(); {
	case shown == 0, to == store.Burying:
		sl.Flags &^= store.Missed
		t.Missed.Leave(record.Due(b.Record(sl)))
	case shown == task.Ready:
		t.Missed.Ready++
	}
}
