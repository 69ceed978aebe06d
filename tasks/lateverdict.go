package tasks

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// When a shard leaves while a handler of this process is making a delivery of it, the
// handler's verdict counts nevertheless: this node sends it to the holder of the shard, as the
// settlement of a receipt. The new holder honours it if the delivery was handed over with
// its lease, or if it has not begun the same attempt again.

// A lateVerdict is a verdict for a task of another node.
type lateVerdict struct {
	shardID recovery.Home
	verdict Verdict
	receipt string
	until   time.Duration // on the monotonic clock: then it does not matter any more
}

const (
	lateVerdictsAtOnce = 16
	lateVerdictPause   = 50 * time.Millisecond
)

// detachLocked records an open delivery whose shard leaves memory.
func (s *Scheduler) detachLocked(h *ownedShard, l lease) {
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
func (s *Scheduler) endDetachedLocked(d *delivery, v task.Judgement) {
	shardID, ok := s.detached[d.lease.nonce]
	if !ok {
		return
	}
	delete(s.detached, d.lease.nonce)
	if v.Verb != 0 {
		until := max(d.lease.until, s.elapsed()+s.cfg.AnswerWithin)
		s.addLateVerdictLocked(lateVerdict{shardID, v.Verdict(), d.Receipt(), until})
	}
}

// passOnLocked processes a task that is finished here, and whose end could not be recorded
// because its shard is another node's. If it was acknowledged, that counts there.
func (s *Scheduler) passOnLocked(sl *store.Slot) {
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
	s.addLateVerdictLocked(lateVerdict{shardID, Verdict{Verb: Ack}, signed, s.elapsed() + s.byNumber[sl.Topic].settings.Lease})
}

func (s *Scheduler) addLateVerdictLocked(e lateVerdict) {
	s.lateVerdicts = append(s.lateVerdicts, e)
	select {
	case s.lateVerdictsWake <- struct{}{}:
	default:
	}
}

// lateVerdictLoop sends the late verdicts, until Close has no more time for them.
func (s *Scheduler) lateVerdictLoop() {
	for pause := lateVerdictPause; ; {
		select {
		case <-s.lateVerdictsWake:
		case <-s.closing:
			return
		}
		if s.sendLateVerdicts() {
			pause = lateVerdictPause
		} else if pause = min(2*pause, time.Second); !s.rest(pause) {
			return
		}
	}
}

// sendLateVerdicts tries all late verdicts once. It reports whether none is left.
func (s *Scheduler) sendLateVerdicts() bool {
	s.mu.Lock()
	all := s.lateVerdicts
	s.lateVerdicts, s.lateVerdictsOut = nil, len(all)
	s.mu.Unlock()
	for some := range slices.Chunk(all, lateVerdictsAtOnce) {
		var group sync.WaitGroup
		for _, e := range some {
			group.Go(func() { s.sendLateVerdict(e) })
		}
		group.Wait()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lateVerdictsOut = 0
	return len(s.lateVerdicts) == 0
}

// sendLastVerdicts sends the late verdicts that are left when Close begins.
func (s *Scheduler) sendLastVerdicts(ctx context.Context) {
	if s.fleet == nil {
		return
	}
	for !s.sendLateVerdicts() {
		select {
		case <-time.After(lateVerdictPause / 10):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Scheduler) sendLateVerdict(e lateVerdict) {
	ctx, cancel := s.within(context.WithoutCancel(s.ctx))
	defer cancel()
	err := errNoPeers
	if s.peerCalls.settle != nil {
		err = s.peerCalls.settle(ctx, e.shardID, e.verdict, e.receipt)
	}
	switch {
	case err == nil:
	case s.elapsed() < e.until && (errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknown) || errors.Is(err, ErrReplaying)):
		s.mu.Lock()
		s.addLateVerdictLocked(e)
		s.mu.Unlock()
	default:
		s.cfg.Log.Warn("a delivery could not be settled at the node that holds its task now; it may be delivered again", "node", s.cfg.Node, "error", err)
	}
}
