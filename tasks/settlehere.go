package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// checkVerdict checks what is asked for, and reads the receipts.
func (s *engine) checkVerdict(v *Verdict, receipts []string) ([]settling, error) {
	var f task.Faults
	if v.Delay != nil {
		f.CheckDelay("delay", *v.Delay)
	}
	if v.Lease != 0 && (v.Lease < MinLease || v.Lease > MaxLease) {
		f.Add("lease", task.LeaseRange)
	}
	if len(receipts) == 0 || len(receipts) > MaxReserve {
		f.Add("receipts", task.ReserveRange)
	}
	if v.Verb < Ack || v.Verb > Return {
		f.Add("verb", "must be Ack, Release, Extend, Bury or Return")
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	settlings := make([]settling, len(receipts))
	for i, text := range receipts {
		p := &settlings[i]
		p.receipt, p.answer.Err = s.signer.Parse(text)
		p.answer.Receipt, p.answer.ID = text, p.receipt.ID
	}
	return settlings, nil
}

// settleHere settles deliveries of tasks that are here, if they have no answer yet.
func (s *engine) settleHere(ctx context.Context, v *Verdict, todo []*settling) error {
	c := newPendingWrite(len(todo))
	c.phase.Store(sent) // a settled delivery is never taken back
	grant := GrantOf(ctx)
	s.mu.Lock()
	if s.ended {
		s.unlock()
		return ErrClosed
	}
	unsure := s.unsure()
	for i, p := range todo {
		switch {
		case p.answer.Err != nil:
		case unsure && !s.knownSpooledLocked(p.receipt.ID):
			p.answer.Err = errUnsure
		default:
			s.settleLocked(v, p, c, i, grant)
		}
	}
	c.complete()
	s.unlock()
	s.report(ctx, todo, c)
	return nil
}

func settledOf(settlings []settling) []Settled {
	answers := make([]Settled, len(settlings))
	for i := range settlings {
		answers[i] = settlings[i].answer
	}
	return answers
}

// A settling is one receipt on its way to its answer.
type settling struct {
	receipt receipt.Receipt
	answer  Settled
	missed  bool            // the task was not found in memory
	repeat  bool            // of an acknowledgement
	first   <-chan struct{} // repeat: closed when the first one is recorded; nil if it is
	shard   int             // repeat: where it is recorded
}

// report waits for the ledger and completes the answers. It does not wait for what is known
// not to answer.
func (s *engine) report(ctx context.Context, done []*settling, c *pendingWrite) {
	s.awaitSettled(ctx, c) // what is not recorded yet will be; the answer says so
	recorded := s.outcomesOf(c)
	for i, p := range done {
		switch {
		case p.answer.Err != nil:
		case !p.repeat:
			p.answer.Recorded = recorded[i] == nil
		case p.first != nil:
			p.answer.Recorded = s.waitRecorded(ctx, p.first, p.shard)
		default:
			p.answer.Recorded = true
		}
	}
}

func (s *engine) settleLocked(v *Verdict, p *settling, c *pendingWrite, i int, grant *Grant) {
	r, a := &p.receipt, &p.answer
	id := []byte(r.ID)
	h := s.store.Hash(id)
	n, known := s.store.FindHashed(h, id)
	past := s.outcomes.Find(h)
	p.missed = !known
	switch {
	case v.Verb == Ack && past.Kind == store.WasDelivered && past.Nonce == r.Nonce:
		p.repeat = true
		if known && s.store.Slot(n).State == store.Finishing {
			p.first, p.shard = s.watchLocked(n), int(s.store.Slot(n).Shard)
		}
		return
	case !known && !s.isReplayed():
		a.Err = ErrReplaying
		return
	case !known:
		a.Err = fmt.Errorf("%w: the task is finished or unknown", ErrStale)
		return
	}
	sl := s.store.Slot(n)
	switch {
	case sl.State == store.Checking: // its record is being read, which tells whether the receipt counts
		a.Err = ErrReplaying
		return
	case !grant.Allows(s.byNumber[sl.Topic].name):
		a.Err = ErrNotGranted
		return
	case sl.State == store.Parking:
		a.Err = errHandedOver
		return
	}
	if l, ok := s.open[n]; sl.State == store.Delivering && ok {
		if l.nonce != r.Nonce || record.Revision(s.store.Record(sl)) != r.Revision {
			a.Err = fmt.Errorf("%w: the task was handed out again", ErrStale)
			return
		}
	} else if !s.resumeLocked(n, sl, r) {
		a.Err = fmt.Errorf("%w: the attempt has ended", ErrStale)
		return
	}
	switch v.Verb {
	case Ack:
		s.ackLocked(n, sl, c, i)
	case Release:
		s.failLocked(n, sl, orText(v.Reason, "released"), v.Delay, c, i)
	case Bury:
		s.buryLocked(n, sl, orText(v.Reason, "buried"), c, i)
	case Return:
		s.putBackLocked(n, sl)
	case Extend:
		a.LeaseUntil = s.extendLocked(n, sl, v.Lease)
	}
}

// resumeLocked accepts the receipt of a delivery that an earlier holder of the shard has
// handed out, be it this process in an earlier term, and that was not handed out again since:
// its attempt is the one that would come next, or the one that was claimed.
func (s *engine) resumeLocked(n uint32, sl *store.Slot, r *receipt.Receipt) bool {
	if sl.State != store.Pending && sl.State != store.Ready || uint32(r.Nonce>>32) == s.ownedLocked(int(sl.Shard)).run {
		return false
	}
	f, err := record.Decode(s.store.Record(sl))
	if err != nil || f.Created != r.Created || f.Revision != r.Revision {
		return false
	}
	next := f.Attempt + 1
	if f.Flags&record.Claimed != 0 {
		next = f.Attempt
	}
	if r.Attempt != next {
		return false
	}
	s.disarmLocked(sl)
	sl.Flags &^= store.Misfired
	s.setLocked(sl, store.Delivering)
	s.open[n] = lease{nonce: r.Nonce, attempt: r.Attempt, until: s.elapsed() + s.byNumber[sl.Topic].settings.Lease}
	s.leaveOpenLocked(n)
	return true
}

func (s *engine) extendLocked(n uint32, sl *store.Slot, term time.Duration) time.Time {
	if term == 0 {
		term = s.byNumber[sl.Topic].settings.Lease
	}
	l := s.open[n]
	l.until = s.elapsed() + term
	s.open[n] = l
	return s.cfg.Clock().Add(term).UTC()
}

func orText(text, def string) string {
	if text == "" {
		return def
	}
	return text
}
