package engine

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Lease is one delivery that is not settled yet.
type Lease struct {
	Nonce uint64        // tells its receipt from those of other deliveries
	Until time.Duration // on the monotonic clock
	// Began is when it was handed out, on the same clock; notKnown if that was another process, or
	// another term of the shard.
	Began     time.Duration
	By        string // its receiver, for the log of attempts; "" if it is not known
	Attempt   uint32 // of this delivery
	LeasedOut bool   // only its receipt can settle it; counts against MaxInFlight
}

// notKnown stands for a time before the process began.
const notKnown time.Duration = -1

// handOutLocked begins a delivery of a task that was taken off its queue, and
// claimed if its topic counts crashes. Its place among the deliveries is taken
// already.
func (s *Engine) handOutLocked(n uint32, b *beginning, now time.Duration, receiver string) *Delivery {
	sl := s.Store.Slot(n)
	t, rec := s.TopicTable.ByNumber[sl.Topic], s.Store.Record(sl)
	l := Lease{Nonce: newNonce(s.OwnedLocked(int(sl.Shard))), Attempt: record.Attempt(rec), Until: now + b.lease, LeasedOut: b.by.Leases(), Began: now, By: receiver}
	if b.recording == nil {
		// A claim that the record still has is that of an earlier attempt, which
		// ended with its process.
		setAttempt(rec, l.Attempt, record.Flags(rec)&^record.Claimed)
		l.Attempt++
	}
	if own := record.TargetOf(rec); len(own.Receiver) > 0 {
		l.By = string(own.Receiver)
	}
	s.Dispatch.Leases[n] = l
	s.SetLocked(sl, store.Delivering)
	if s.Unsure() {
		s.Figures.UnsureDeliveries++
	}
	e := task.Event{Attempt: int(l.Attempt), By: b.by.Node}
	if l.Attempt == 1 {
		e.Lateness = max(0, b.wall.Sub(record.FromMillis(t.deadline(s.Store, sl, true))))
		s.TopicTable.observe(t, now, e.Lateness)
	}
	s.emitLocked(task.EventStarted, sl, e)
	id := s.Store.ID(sl)
	d := &Delivery{Slot: n, Lease: l, Shard: sl.Shard, shardID: s.ShardIDLocked(sl), signer: s.Signer, idSize: len(id)}
	d.stored = append(append(make([]byte, 0, len(id)+len(rec)), id...), rec...)
	d.Delivery = task.NewDelivery(task.Task{Topic: t.Name, Next: record.FromMillis(sl.Next), Node: s.Config.Node}, b.wall.Add(b.lease).UTC(), d)
	return d
}

// describe completes a delivery that handOutLocked has begun. It needs no lock: its bytes were
// copied. The payload stays in that copy.
func (d *Delivery) describe() {
	next, f := d.Next, store.FieldsOf(d.stored[d.idSize:])
	d.ID = string(d.stored[:d.idSize])
	fillTask(&d.Task, &f, task.Delivering)
	d.Next, d.Attempt, d.Spooled = next, int(d.Lease.Attempt), d.Shard == SpoolShard
	d.stored = nil
}

// newNonce makes a nonce that shows, in its high half, in which term of the shard it
// was made: only a delivery of an earlier one can be resumed by its receipt.
func newNonce(h *OwnedShard) uint64 { return uint64(h.run)<<32 | uint64(rand.Uint32()) }

// leaveOpenLocked leaves a delivery that a handler has begun to its receipt.
func (s *Engine) leaveOpenLocked(n uint32) {
	l := s.Dispatch.Leases[n]
	l.LeasedOut = true
	s.Dispatch.Leases[n] = l
	s.Dispatch.LeasedOut++
}

// closeLocked takes a delivery off the open ones.
func (s *Engine) closeLocked(n uint32) {
	if s.Dispatch.Leases[n].LeasedOut {
		s.freeLocked(1, 0)
	}
	delete(s.Dispatch.Leases, n)
}

// freeLocked gives up places that counted against MaxInFlight. A topic that was kept waiting by
// that bound may go on.
func (s *Engine) freeLocked(leasedOut, reserved int) {
	s.carryOutLocked(s.Dispatch.Free(leasedOut, reserved))
}

// expire returns the tasks whose leases have run out and tells how many.
func (s *Engine) expire() int {
	type delivery struct {
		slot  uint32
		nonce uint64
	}
	var over []delivery
	now := s.Elapsed()
	eachIn(s, s.Dispatch.Leases, func(n uint32, l Lease) {
		if l.Until <= now {
			over = append(over, delivery{n, l.Nonce})
		}
	})
	count := 0
	for part := range slices.Chunk(over, AtOnce) {
		s.mu.Lock()
		for _, d := range part {
			// It may have been settled or extended meanwhile.
			sl := s.Store.Slot(d.slot)
			if l, ok := s.Dispatch.Leases[d.slot]; ok && l.Nonce == d.nonce && l.Until <= now && sl.State == store.Delivering {
				s.TopicTable.ByNumber[sl.Topic].Counts.LeaseExpired++
				s.missLocked(d.slot, sl, record.LeaseExpired, "the lease ran out", nil, nil, 0)
				count++
			}
		}
		s.unlock()
		runtime.Gosched()
	}
	return count
}

// TakeBack makes tasks ready again whose deliveries no receiver has seen. It returns the deliveries
// that are not open here any more, or are being handed over.
func (s *Engine) TakeBack(ds []*Delivery) (moved []*Delivery) {
	for part := range slices.Chunk(ds, AtOnce) {
		s.mu.Lock()
		for _, d := range part {
			if !s.undoDeliveryLocked(d) {
				moved = append(moved, d)
			}
		}
		s.unlock()
	}
	return moved
}

// undoDeliveryLocked makes a task ready again whose delivery no receiver has seen. It reports
// false if that delivery is not open here, or is being handed over.
func (s *Engine) undoDeliveryLocked(d *Delivery) bool {
	l, ok := s.Dispatch.Leases[d.Slot]
	if !ok || l.Nonce != d.Lease.Nonce || s.Store.Slot(d.Slot).State != store.Delivering {
		return false
	}
	s.putBackLocked(d.Slot, s.Store.Slot(d.Slot), returned, nil, 0)
	return true
}

// A Delivery is an attempt that this node has begun, or that another node has begun and has
// sent here. The embedded part is what a deliverer or a receiver gets.
type Delivery struct {
	task.Delivery
	Slot    uint32
	Shard   uint16
	shardID recovery.ShardID
	Lease   Lease
	signer  *receipt.Signer
	stored  []byte // until it is described: a copy of the task's id, of idSize bytes, and record
	idSize  int

	// Of a delivery that another node has begun:
	Given  string // its receipt
	Source *Source
}

// Receipt implements Token.
func (d *Delivery) Receipt() string {
	if d.Given != "" {
		return d.Given
	}
	return d.signer.Sign(&receipt.Receipt{
		ShardID: d.shardID, Attempt: d.Lease.Attempt, Revision: uint32(d.Revision),
		Created: d.Created.UnixNano(), Nonce: d.Lease.Nonce, ID: d.ID,
	})
}

// A Source says where a delivery comes from that another node has begun.
type Source struct {
	Node  string        // that holds the task
	Lease time.Duration // as it was when the delivery left there
	Work  any           // what brought it here for a worker; nil: it is for a receiver
	Began time.Duration // for a worker: when it began with it
}

// A WireDelivery is a delivery on its way to another node, whose receivers or workers make it.
// It stays open here, as a delivery that only its receipt can settle.
type WireDelivery struct {
	Task    task.Task
	Receipt string
	Lease   time.Duration // what is left of it
}

// EncodeDeliveries makes the wire form of deliveries for another node.
func EncodeDeliveries(ds []*Delivery, now time.Duration) []WireDelivery {
	packed := make([]WireDelivery, len(ds))
	for i, d := range ds {
		packed[i] = WireDelivery{d.Task, d.Receipt(), d.Lease.Until - now}
	}
	return packed
}

// DecodeDeliveries decodes deliveries that another node has sent at some time after sent. work is
// the Work of their Source. Their leases are counted from sent, so that none ends here after it has
// ended there: this node may have been suspended meanwhile.
func DecodeDeliveries(s *Engine, from string, packed []WireDelivery, sent time.Duration, work any) []*Delivery {
	ds := make([]*Delivery, len(packed))
	wall := s.Config.Clock().Add(sent - s.Elapsed())
	for i, p := range packed {
		d := &Delivery{Lease: Lease{Until: sent + p.Lease}, Given: p.Receipt, Source: &Source{Node: from, Lease: p.Lease, Work: work}}
		d.Delivery = task.NewDelivery(p.Task, wall.Add(p.Lease).UTC(), d)
		ds[i] = d
	}
	return ds
}

// A LateVerdict is a verdict for a task of another node.
type LateVerdict struct {
	ShardID recovery.ShardID
	Verdict task.Verdict
	Receipt string
	Until   time.Duration // on the monotonic clock: then it does not matter any more
}

// detachLocked records an open delivery whose shard leaves memory.
func (s *Engine) detachLocked(h *OwnedShard, l Lease) {
	if h.revoked {
		s.Figures.LostDeliveries++
	}
	if l.LeasedOut {
		return // its receiver has the receipt
	}
	s.Detached.Shards[l.Nonce] = h.ShardID
	if u, ok := s.Detached.Verdicts[l.Nonce]; ok {
		delete(s.Detached.Verdicts, l.Nonce)
		s.endDetachedLocked(u.delivery, u.judgement)
	}
}

// A pendingVerdict is a handler's verdict on a delivery that was being handed over.
type pendingVerdict struct {
	delivery  *Delivery
	judgement task.Judgement
}

// HasDetached reports whether handlers are still making deliveries whose shards have left. The
// verdict of each is at Cluster.LateVerdictLocked before it counts no more.
func (s *Engine) HasDetached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.Detached.Shards) > 0
}

// endDetachedLocked processes a handler's verdict on a delivery that is not open any more. If
// its shard has left meanwhile, the verdict goes to the new holder.
func (s *Engine) endDetachedLocked(d *Delivery, v task.Judgement) {
	shardID, ok := s.Detached.Shards[d.Lease.Nonce]
	if !ok {
		return
	}
	delete(s.Detached.Shards, d.Lease.Nonce)
	if v.Verb != 0 {
		until := max(d.Lease.Until, s.Elapsed()+s.Config.AnswerWithin)
		s.Cluster.LateVerdictLocked(LateVerdict{shardID, v.Verdict(), d.Receipt(), until})
	}
}

// passOnLocked processes a task that is finished here, and whose end could not be recorded
// because its shard is another node's. If it was acknowledged, that counts there.
func (s *Engine) passOnLocked(sl *store.Slot) {
	hash := s.Store.Hash(s.Store.ID(sl))
	past := s.Outcomes.Find(hash)
	if len(s.Store.Record(sl)) == 0 {
		return // an unknown record of a shard that was rewound: its end was recorded once
	}
	s.Outcomes.Undo(hash)
	if past.Kind != store.WasDelivered {
		return
	}
	f := s.Store.Fields(sl)
	attempt := f.Attempt
	if f.Flags&record.Claimed == 0 && !record.IsFinished(f.State) { // else it counts already
		attempt++
	}
	shardID := s.OwnedLocked(int(sl.Shard)).ShardID
	signed := s.Signer.Sign(&receipt.Receipt{
		ShardID: shardID, Attempt: attempt, Revision: f.Revision, Created: f.Created,
		Nonce: past.Nonce, ID: string(s.Store.ID(sl)),
	})
	s.Cluster.LateVerdictLocked(LateVerdict{shardID, task.Verdict{Verb: task.Ack}, signed, s.Elapsed() + s.TopicTable.ByNumber[sl.Topic].Settings.Lease})
}
