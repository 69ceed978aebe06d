package tasks

import (
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A delivery is an attempt that this node has begun, or that another node has begun and has
// sent here. The embedded part is what a deliverer or a receiver gets.
type delivery struct {
	Delivery
	slot    uint32
	shard   uint16
	shardID recovery.Home
	lease   lease
	signer  *receipt.Signer

	// Of a delivery that another node has begun:
	receipt string
	source  *source
}

// newDelivery completes d with what its receiver gets.
func newDelivery(d delivery, t Task, until time.Time) *delivery {
	d.Delivery = task.NewDelivery(t, until, &d)
	return &d
}

// Receipt implements Token.
func (d *delivery) Receipt() string {
	if d.receipt != "" {
		return d.receipt
	}
	return d.signer.Sign(&receipt.Receipt{
		ShardID: d.shardID, Attempt: d.lease.attempt, Revision: uint32(d.Revision),
		Created: d.Created.UnixMilli(), Nonce: d.lease.nonce, ID: d.ID,
	})
}

// A source says where a delivery comes from that another node has begun.
type source struct {
	node  string        // that holds the task
	lease time.Duration // as it was when the delivery left there
	work  any           // what brought it here for a worker; nil: it is for a receiver
	began time.Duration // for a worker: when it began with it
}

// A lateVerdict is a verdict for a task of another node.
type lateVerdict struct {
	shardID recovery.Home
	verdict Verdict
	receipt string
	until   time.Duration // on the monotonic clock: then it does not matter any more
}

// detachLocked records an open delivery whose shard leaves memory.
func (s *engine) detachLocked(h *ownedShard, l lease) {
	if h.revoked {
		s.shardCounts.doubtful++
	}
	if l.leasedOut {
		return // its receiver has the receipt
	}
	s.detached[l.nonce] = h.shardID
	if u, ok := s.pendingVerdicts[l.nonce]; ok {
		delete(s.pendingVerdicts, l.nonce)
		s.endDetachedLocked(u.delivery, u.judgement)
	}
}

// A pendingVerdict is a handler's verdict on a delivery that was being handed over.
type pendingVerdict struct {
	delivery  *delivery
	judgement task.Judgement
}

// endDetachedLocked processes a handler's verdict on a delivery that is not open any more. If
// its shard has left meanwhile, the verdict goes to the new holder.
func (s *engine) endDetachedLocked(d *delivery, v task.Judgement) {
	shardID, ok := s.detached[d.lease.nonce]
	if !ok {
		return
	}
	delete(s.detached, d.lease.nonce)
	if v.Verb != 0 {
		until := max(d.lease.until, s.elapsed()+s.cfg.AnswerWithin)
		s.cluster.lateVerdictLocked(lateVerdict{shardID, v.Verdict(), d.Receipt(), until})
	}
}

// passOnLocked processes a task that is finished here, and whose end could not be recorded
// because its shard is another node's. If it was acknowledged, that counts there.
func (s *engine) passOnLocked(sl *store.Slot) {
	hash := s.store.Hash(s.store.ID(sl))
	past := s.outcomes.Find(hash)
	if len(s.store.Record(sl)) == 0 {
		return // an unknown record of a shard that was rewound: its end was recorded once
	}
	s.outcomes.Undo(hash)
	if past.Kind != store.WasDelivered {
		return
	}
	f := s.store.Fields(sl)
	attempt := f.Attempt
	if f.Flags&record.Claimed == 0 {
		attempt++
	}
	shardID := s.ownedLocked(int(sl.Shard)).shardID
	signed := s.signer.Sign(&receipt.Receipt{
		ShardID: shardID, Attempt: attempt, Revision: f.Revision, Created: f.Created,
		Nonce: past.Nonce, ID: string(s.store.ID(sl)),
	})
	s.cluster.lateVerdictLocked(lateVerdict{shardID, Verdict{Verb: Ack}, signed, s.elapsed() + s.byNumber[sl.Topic].settings.Lease})
}
