package tasks

import (
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

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
