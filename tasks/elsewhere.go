package tasks

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// When a shard leaves while a handler of this process is making a delivery of it, what
// the handler says counts nevertheless: it is sent to whoever holds the shard, as the
// settlement of a receipt. The new holder honours it if the delivery was handed over with
// its lease, or if it has not begun the same attempt again.

// An errand is a verdict that another node has to be told.
type errand struct {
	home    recovery.Home
	verdict Verdict
	receipt string
	until   time.Duration // on the monotonic clock: then nobody wants to know any more
}

const (
	errandsAtOnce = 16
	errandPause   = 50 * time.Millisecond
)

// orphanLocked is told of an open delivery whose shard leaves memory.
func (s *Scheduler) orphanLocked(h *holding, l lease) {
	if h.lost {
		s.tenures.doubtful++
	}
	if l.away {
		return // its receiver has the receipt
	}
	s.orphans[l.nonce] = h.home
	if u, ok := s.unheard[l.nonce]; ok {
		delete(s.unheard, l.nonce)
		s.orphanedLocked(u.delivery, u.judgement)
	}
}

// unheard is what a handler has said of a delivery while it was being handed over.
type unheard struct {
	delivery  *Delivery
	judgement judgement
}

// orphanedLocked is told what a handler says of a delivery that is not open any more. If
// its shard has left meanwhile, the new holder is told.
func (s *Scheduler) orphanedLocked(d *Delivery, v judgement) {
	home, ok := s.orphans[d.lease.nonce]
	if !ok {
		return
	}
	delete(s.orphans, d.lease.nonce)
	if v.verb != 0 {
		until := max(d.lease.until, s.elapsed()+s.cfg.AnswerWithin)
		s.errandLocked(errand{home, v.verdict(), d.Receipt(), until})
	}
}

// verdict is a judgement as a receipt's settlement.
func (v *judgement) verdict() Verdict {
	return Verdict{Verb: v.verb, Delay: v.pause, Reason: cut(v.reason, maxReason)}
}

// passOnLocked is told of a task that is finished here, and whose end could not be
// recorded because its shard is another node's. If it was acknowledged, that counts there.
func (s *Scheduler) passOnLocked(sl *slot) {
	hash := s.book.index.hash(s.book.id(sl))
	past := s.outcomes.find(hash)
	if len(s.book.record(sl)) == 0 {
		return // a stray of a shard that was rewound: its end was recorded once
	}
	s.outcomes.undo(hash)
	if past.kind != wasDelivered {
		return
	}
	f := s.book.fields(sl)
	attempt := f.Attempt
	if f.Flags&record.Claimed == 0 {
		attempt++
	}
	d := Delivery{Task: s.describe(string(s.book.id(sl)), &f, Delivering), home: s.holdingLocked(int(sl.shard)).home, lease: lease{nonce: past.nonce, attempt: attempt}}
	s.errandLocked(errand{s.holdingLocked(int(sl.shard)).home, Verdict{Verb: Ack}, s.signer.sign(&d), s.elapsed() + s.byNumber[sl.topic].settings.Lease})
}

func (s *Scheduler) errandLocked(e errand) {
	s.errands = append(s.errands, e)
	select {
	case s.errandsWake <- struct{}{}:
	default:
	}
}

// errandLoop runs the errands, until Close has no more time for them.
func (s *Scheduler) errandLoop() {
	for pause := errandPause; ; {
		select {
		case <-s.errandsWake:
		case <-s.closing:
			return
		}
		if s.runErrands() {
			pause = errandPause
		} else if pause = min(2*pause, time.Second); !s.rest(pause) {
			return
		}
	}
}

// runErrands tries all errands once. It reports whether none is left.
func (s *Scheduler) runErrands() bool {
	s.mu.Lock()
	all := s.errands
	s.errands, s.errandsOut = nil, len(all)
	s.mu.Unlock()
	for some := range slices.Chunk(all, errandsAtOnce) {
		var group sync.WaitGroup
		for _, e := range some {
			group.Go(func() { s.runErrand(e) })
		}
		group.Wait()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errandsOut = 0
	return len(s.errands) == 0
}

// lastErrands runs what handlers have left behind when Close begins.
func (s *Scheduler) lastErrands(ctx context.Context) {
	if s.fleet == nil {
		return
	}
	for !s.runErrands() {
		select {
		case <-time.After(errandPause / 10):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Scheduler) runErrand(e errand) {
	ctx, cancel := s.within(context.WithoutCancel(s.ctx))
	defer cancel()
	err := errNoPeers
	if s.peerCalls.settle != nil {
		err = s.peerCalls.settle(ctx, e.home, e.verdict, e.receipt)
	}
	switch {
	case err == nil:
	case s.elapsed() < e.until && (errors.Is(err, ErrUnavailable) || errors.Is(err, ErrUnknown) || errors.Is(err, ErrReplaying)):
		s.mu.Lock()
		s.errandLocked(e)
		s.mu.Unlock()
	default:
		s.cfg.Log.Warn("a delivery could not be settled at the node that holds its task now; it may be delivered again", "node", s.cfg.Node, "error", err)
	}
}
