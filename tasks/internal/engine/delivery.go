package engine

import (
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Delivery is an attempt that this node has begun, or that another node has begun and has
// sent here. The embedded part is what a deliverer or a receiver gets.
type Delivery struct {
	task.Delivery
	Slot    uint32
	Shard   uint16
	shardID recovery.ShardID
	Lease   Lease
	signer  *receipt.Signer

	// Of a delivery that another node has begun:
	Given  string // its receipt
	Source *Source
}

// NewDelivery completes d with what its receiver gets.
func NewDelivery(d Delivery, t task.Task, until time.Time) *Delivery {
	d.Delivery = task.NewDelivery(t, until, &d)
	return &d
}

// Receipt implements Token.
func (d *Delivery) Receipt() string {
	if d.Given != "" {
		return d.Given
	}
	return d.signer.Sign(&receipt.Receipt{
		ShardID: d.shardID, Attempt: d.Lease.Attempt, Revision: uint32(d.Revision),
		Created: d.Created.UnixMilli(), Nonce: d.Lease.Nonce, ID: d.ID,
	})
}

// A Source says where a delivery comes from that another node has begun.
type Source struct {
	Node  string        // that holds the task
	Lease time.Duration // as it was when the delivery left there
	Work  any           // what brought it here for a worker; nil: it is for a receiver
	Began time.Duration // for a worker: when it began with it
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
		s.Shards.Counts.Doubtful++
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
	if f.Flags&record.Claimed == 0 {
		attempt++
	}
	shardID := s.OwnedLocked(int(sl.Shard)).ShardID
	signed := s.Signer.Sign(&receipt.Receipt{
		ShardID: shardID, Attempt: attempt, Revision: f.Revision, Created: f.Created,
		Nonce: past.Nonce, ID: string(s.Store.ID(sl)),
	})
	s.Cluster.LateVerdictLocked(LateVerdict{shardID, task.Verdict{Verb: task.Ack}, signed, s.Elapsed() + s.TopicTable.ByNumber[sl.Topic].Settings.Lease})
}
