package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// CheckVerdict checks a verdict, and reads the receipts.
func (s *Engine) CheckVerdict(v *task.Verdict, receipts []string) ([]Settling, error) {
	var f task.Faults
	if v.Delay != nil {
		f.CheckDelay("delay", *v.Delay)
	}
	if v.Lease != 0 && (v.Lease < task.MinLease || v.Lease > task.MaxLease) {
		f.Add("lease", task.LeaseRange)
	}
	if len(receipts) == 0 || len(receipts) > task.MaxReserve {
		f.Add("receipts", task.ReserveRange)
	}
	if v.Verb < task.Ack || v.Verb > task.Return {
		f.Add("verb", "must be Ack, Release, Extend, Bury or Return")
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	settlings := make([]Settling, len(receipts))
	for i, text := range receipts {
		settlings[i] = s.NewSettling(text)
	}
	return settlings, nil
}

// NewSettling reads a receipt. It has an answer already if it cannot be read.
func (s *Engine) NewSettling(text string) (p Settling) {
	p.Receipt, p.Answer.Err = s.Signer.Parse(text)
	p.Answer.Receipt, p.Answer.ID = text, p.Receipt.ID
	return p
}

// SettledHere divides settlings: here are those that have an answer already, and those whose
// answer is known at this node.
func (s *Engine) SettledHere(settlings []Settling) (here, elsewhere []*Settling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range settlings {
		p := &settlings[i]
		id := []byte(p.Receipt.ID)
		h := s.Store.Hash(id)
		mine, known := s.hereLocked(h, id)
		if _, entered := s.Store.FindHashed(h, id); !known && !entered {
			past := s.Outcomes.Find(h)
			mine = past.Kind == store.WasDelivered && past.Nonce == p.Receipt.Nonce
		}
		if mine || p.Answer.Err != nil {
			here = append(here, p)
		} else {
			elsewhere = append(elsewhere, p)
		}
	}
	return here, elsewhere
}

// RememberAcknowledged notes that the owners of some tasks have recorded their acknowledgements: a
// repeat gets this answer here, whatever becomes of those nodes.
func (s *Engine) RememberAcknowledged(settlings []*Settling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range settlings {
		s.Outcomes.Add(s.Store.Hash([]byte(p.Receipt.ID)), store.Outcome{Kind: store.WasDelivered, Nonce: p.Receipt.Nonce})
	}
}

// SettleEach settles deliveries that have no answer yet, each by its own verdict, and does not wait
// for the ledger. Once Close has begun, deliveries can be returned, but not settled otherwise.
func (s *Engine) SettleEach(settlings []Settling, verdicts []task.Verdict) {
	for from := 0; from < len(settlings); from += AtOnce {
		s.mu.Lock()
		for i := from; i < min(from+AtOnce, len(settlings)); i++ {
			switch p, v := &settlings[i], &verdicts[i]; {
			case p.Answer.Err != nil:
			case s.Ended && v.Verb != task.Return:
				p.Answer.Err = task.ErrClosed
			default:
				s.SettleLocked(v, p, nil, 0, nil)
			}
		}
		s.unlock()
	}
}

// SettleLocal settles deliveries of tasks that are here, if they have no answer yet. It waits for
// replacements of these tasks that are under way.
func (s *Engine) SettleLocal(ctx context.Context, v *task.Verdict, todo []*Settling) error {
	for len(todo) > 0 {
		if err := s.settleOnce(ctx, v, todo); err != nil {
			return err
		}
		todo = s.awaitReplaced(ctx, todo)
	}
	return nil
}

// errBeingReplaced is answered for a receipt while it is not known yet whether its task is
// replaced.
var errBeingReplaced = task.KindOf(task.ErrUnavailable, "the task is being replaced; retry")

// awaitReplaced waits for the replacements that have kept some receipts from being settled, and
// returns those receipts.
func (s *Engine) awaitReplaced(ctx context.Context, todo []*Settling) (again []*Settling) {
	for _, p := range todo {
		if errors.Is(p.Answer.Err, errBeingReplaced) && !s.LedgerDown(p.shard) && s.WaitBusy(ctx, p.first, 0) == nil {
			p.Answer.Err, p.first = nil, nil
			again = append(again, p)
		}
	}
	return again
}

func (s *Engine) settleOnce(ctx context.Context, v *task.Verdict, todo []*Settling) error {
	c := NewPendingWrite(len(todo))
	c.Phase.Store(sent) // a settled delivery is never taken back
	grant := task.GrantOf(ctx)
	s.mu.Lock()
	if s.Ended {
		s.unlock()
		return task.ErrClosed
	}
	unsure := s.Unsure()
	for i, p := range todo {
		switch {
		case p.Answer.Err != nil:
		case unsure && !s.knownSpooledLocked(p.Receipt.ID):
			p.Answer.Err = ErrUnsure
		default:
			s.SettleLocked(v, p, c, i, grant)
		}
	}
	c.complete()
	s.unlock()
	s.report(ctx, todo, c)
	return nil
}

// SettledOf returns the answers.
func SettledOf(settlings []Settling) []task.Settled {
	answers := make([]task.Settled, len(settlings))
	for i := range settlings {
		answers[i] = settlings[i].Answer
	}
	return answers
}

// A Settling is one receipt on its way to its answer.
type Settling struct {
	Receipt receipt.Receipt
	Answer  task.Settled
	Missed  bool // the task was not found in memory
	repeat  bool // of an acknowledgement
	// heldBack says of a repeat that the first acknowledgement waits for room in the ledger.
	heldBack bool
	// first is closed when the first acknowledgement is recorded, of a repeat; nil if it is. Of
	// errBeingReplaced, when it is known whether the task is replaced.
	first <-chan struct{}
	shard int // where that is recorded
}

// report waits for the ledger and completes the answers. It does not wait for servers that are
// known not to answer.
func (s *Engine) report(ctx context.Context, done []*Settling, c *PendingWrite) {
	s.awaitSettled(ctx, c) // what is not recorded yet will be; the answer says so
	recorded := s.OutcomesOf(c)
	for i, p := range done {
		switch {
		case p.Answer.Err != nil:
		case !p.repeat:
			p.Answer.Recorded = recorded[i] == nil
		case p.heldBack:
		case p.first != nil:
			p.Answer.Recorded = s.waitRecorded(ctx, p.first, p.shard)
		default:
			p.Answer.Recorded = true
		}
	}
}

// ErrReceiptUnknown is returned for a receipt whose task this node does not know.
var ErrReceiptUnknown = task.KindOf(task.ErrStale, "the task of the receipt is finished or unknown")

// SettleLocked settles one receipt.
func (s *Engine) SettleLocked(v *task.Verdict, p *Settling, c *PendingWrite, i int, grant *task.Grant) {
	r, a := &p.Receipt, &p.Answer
	id := []byte(r.ID)
	h := s.Store.Hash(id)
	n, known := s.Store.FindHashed(h, id)
	past := s.Outcomes.Find(h)
	p.Missed = !known
	switch {
	case v.Verb == task.Ack && past.Kind == store.WasDelivered && past.Nonce == r.Nonce:
		p.repeat = true
		if known && s.Store.Slot(n).State == store.Finishing {
			p.first, p.shard = s.WatchLocked(n), int(s.Store.Slot(n).Shard)
			p.heldBack = s.Writes.isHeldBackLocked(n)
		}
		return
	case !known && !s.IsReplayed():
		a.Err = task.ErrReplaying
		return
	case !known:
		a.Err = ErrReceiptUnknown
		return
	}
	sl := s.Store.Slot(n)
	switch {
	case sl.State == store.Checking: // its record is being read: it decides on the receipt
		a.Err = task.ErrReplaying
		return
	case !grant.Allows(s.TopicTable.ByNumber[sl.Topic].Name):
		a.Err = task.ErrNotGranted
		return
	case sl.State == store.Parking:
		a.Err = ErrHandedOver
		return
	case sl.State == store.Replacing: // which may be taken back
		a.Err, p.first, p.shard = errBeingReplaced, s.WatchLocked(n), int(sl.Shard)
		return
	}
	if l, ok := s.Dispatch.Leases[n]; sl.State == store.Delivering && ok {
		if l.Nonce != r.Nonce || record.Revision(s.Store.Record(sl)) != r.Revision {
			a.Err = fmt.Errorf("%w: the task was handed out again", task.ErrStale)
			return
		}
	} else if !s.resumeLocked(n, sl, r) {
		a.Err = fmt.Errorf("%w: the attempt has ended", task.ErrStale)
		return
	}
	switch v.Verb {
	case task.Ack:
		s.ackLocked(n, sl, c, i)
	case task.Release:
		s.failLocked(n, sl, record.Failed, orText(v.Reason, "released"), v.Delay, c, i)
	case task.Bury:
		s.buryLocked(n, sl, orText(v.Reason, "buried"), c, i)
	case task.Return:
		t := s.TopicTable.ByNumber[sl.Topic]
		t.Counts.Returned++
		s.putBackLocked(n, sl, returnOf(s, t, n, v.Aside, returned), c, i)
	case task.Extend:
		a.LeaseUntil = s.extendLocked(n, sl, v.Lease)
	}
}

// resumeLocked accepts the receipt of a delivery that an earlier holder of the shard has
// handed out, be it this process in an earlier term, and that was not handed out again since:
// its attempt is the one that would come next, or the one that was claimed.
func (s *Engine) resumeLocked(n uint32, sl *store.Slot, r *receipt.Receipt) bool {
	if sl.State != store.Pending && sl.State != store.Ready || uint32(r.Nonce>>32) == s.OwnedLocked(int(sl.Shard)).run {
		return false
	}
	f, err := record.Decode(s.Store.Record(sl))
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
	s.DisarmLocked(sl)
	sl.Flags &^= store.Misfired
	s.SetLocked(sl, store.Delivering)
	s.Dispatch.Leases[n] = Lease{Nonce: r.Nonce, Attempt: r.Attempt, Until: s.Elapsed() + s.TopicTable.ByNumber[sl.Topic].Settings.Lease, Began: notKnown}
	s.leaveOpenLocked(n)
	return true
}

func (s *Engine) extendLocked(n uint32, sl *store.Slot, term time.Duration) time.Time {
	if term == 0 {
		term = s.TopicTable.ByNumber[sl.Topic].Settings.Lease
	}
	l := s.Dispatch.Leases[n]
	l.Until = s.Elapsed() + term
	s.Dispatch.Leases[n] = l
	return s.Config.Clock().Add(term).UTC()
}

func orText(text, def string) string {
	if text == "" {
		return def
	}
	return text
}
