package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/receipt"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// settleAll settles deliveries wherever their tasks are. Those of tasks that are known here
// cost nothing more than with a ledger that is not shared.
func (s *Cluster) settleAll(ctx context.Context, v *task.Verdict, settlings []engine.Settling) error {
	var here, far []*engine.Settling // of which each has answers of its own to write
	s.engine.Mu.Lock()
	for i := range settlings {
		if p := &settlings[i]; p.Answer.Err == nil && !s.settlesHereLocked(&p.Receipt) {
			far = append(far, p)
		} else {
			here = append(here, p)
		}
	}
	s.engine.Mu.Unlock()
	var group sync.WaitGroup
	if len(far) > 0 {
		group.Go(func() { s.settleRemote(ctx, v, far) })
	}
	err := s.engine.SettleLocal(ctx, v, here)
	group.Wait()
	if err != nil {
		return err
	}
	far = far[:0]
	for i := range settlings { // tasks that were on their way to another node
		if p := &settlings[i]; passing(p.Answer.Err) {
			far = append(far, p)
		}
	}
	if len(far) > 0 {
		s.settleRemote(ctx, v, far)
	}
	return nil
}

// settlesHereLocked reports whether the answer to a receipt is known here.
func (s *Cluster) settlesHereLocked(r *receipt.Receipt) bool {
	id := []byte(r.ID)
	h := s.engine.Store.Hash(id)
	if n, ok := s.engine.Store.FindHashed(h, id); ok {
		sl := s.engine.Store.Slot(n)
		return sl.State != store.Checking && sl.State != store.Registering && s.engine.OwnedLocked(int(sl.Shard)).Mine()
	}
	past := s.engine.Outcomes.Find(h)
	return past.Kind == store.WasDelivered && past.Nonce == r.Nonce
}

// settleRemote settles deliveries whose tasks are not in this process's memory, with one call
// to each node that holds some of them.
func (s *Cluster) settleRemote(ctx context.Context, v *task.Verdict, todo []*engine.Settling) {
	for tries := 0; ; tries++ {
		groups := make(map[string][]*engine.Settling)
		located := make(map[recovery.ShardID]locationResult) // once for all receipts of a shard
		for _, p := range todo {
			found, known := located[p.Receipt.ShardID]
			if !known {
				found.at, found.err = s.locateReceipt(ctx, &p.Receipt, tries > 0)
				if p.Receipt.ShardID != 0 {
					located[p.Receipt.ShardID] = found
				}
			}
			if p.Answer.Err = found.err; found.err == nil {
				groups[found.at.Node] = append(groups[found.at.Node], p)
			}
		}
		var group sync.WaitGroup
		for node, some := range groups {
			if node == "" {
				group.Go(func() { s.settleOwned(ctx, v, some) })
			} else {
				group.Go(func() { s.settleAt(ctx, node, v, some) })
			}
		}
		group.Wait()
		todo = slices.DeleteFunc(todo, func(p *engine.Settling) bool { return !passing(p.Answer.Err) })
		if len(todo) == 0 {
			return
		}
		if !s.pause(ctx, tries) {
			for _, p := range todo {
				p.Answer.Err = final(p.Answer.Err)
			}
			return
		}
	}
}

// A locationResult is the result of locateReceipt.
type locationResult struct {
	at  Location
	err error
}

// locateReceipt finds the node of a receipt's task.
func (s *Cluster) locateReceipt(ctx context.Context, r *receipt.Receipt, anew bool) (Location, error) {
	var at Location
	var err error
	if r.ShardID == 0 {
		at, err = s.locateTask(ctx, r.ID, byMemory, anew)
	} else {
		h, e := s.locate(ctx, r.ShardID, anew)
		switch {
		case e != nil:
			return Location{}, e
		case h.Node == "":
			err = task.ErrNotFound // nothing was left there
		default:
			at, err = s.at(byDirectory, r.ShardID, h)
		}
	}
	if errors.Is(err, task.ErrNotFound) {
		err = engine.ErrReceiptUnknown
	}
	return at, err
}

// settleOwned settles deliveries of tasks that are known here or whose shards are held.
// For the others the answer is errNotMine.
func (s *Cluster) settleOwned(ctx context.Context, v *task.Verdict, some []*engine.Settling) {
	unsure := s.engine.Unsure()
	held := make([]*engine.OwnedShard, len(some))
	s.engine.Mu.Lock()
	for i, p := range some {
		if h := s.engine.OwnedLocked(s.engine.ShardNumberLocked(p.Receipt.ShardID)); h.Takes() {
			held[i] = h
		}
		*p = engine.Settling{Receipt: p.Receipt, Answer: p.Answer} // nothing of an earlier try
		switch known := s.settlesHereLocked(&p.Receipt); {
		case known:
		case unsure:
			p.Answer.Err = engine.ErrUnsure
		case held[i] == nil && p.Receipt.ShardID != 0:
			p.Answer.Err = errNotMine
		}
	}
	s.engine.Mu.Unlock()
	err := s.engine.SettleLocal(ctx, v, some)
	s.engine.Mu.Lock()
	defer s.engine.Mu.Unlock()
	for i, p := range some {
		switch {
		case err != nil:
			p.Answer.Err = err
		case p.Missed && p.Receipt.ShardID != 0 && !held[i].Takes():
			p.Answer.Err = errNotMine // any more: a miss here does not prove that it is unknown
		}
	}
}

// settleAt has another node settle deliveries.
func (s *Cluster) settleAt(ctx context.Context, node string, v *task.Verdict, some []*engine.Settling) {
	q := settleQuery{Verdict: wireVerdict(*v), Receipts: make([]string, len(some)), Conditions: encodeConditions(ctx)}
	for i, p := range some {
		q.Receipts[i] = p.Answer.Receipt
	}
	a, err := Call(ctx, s, node, SettleMethod, q)
	if err == nil && len(a.Settled) != len(some) {
		err = fmt.Errorf("%w: node %s has answered for %d of %d receipts", task.ErrUnknown, node, len(a.Settled), len(some))
	}
	s.engine.Mu.Lock()
	defer s.engine.Mu.Unlock()
	for i, p := range some {
		if err != nil {
			p.Answer.Err = err
			continue
		}
		w := &a.Settled[i]
		p.Answer.Recorded, p.Answer.LeaseUntil, p.Answer.Err = w.Recorded, w.LeaseUntil, nil
		if w.Fault != nil {
			p.Answer.Err = w.Fault.Err(node, true)
		} else if v.Verb == task.Ack && w.Recorded {
			// A repeat gets this answer, whatever becomes of that node.
			s.engine.Outcomes.Add(s.engine.Store.Hash([]byte(p.Receipt.ID)), store.Outcome{Kind: store.WasDelivered, Nonce: p.Receipt.Nonce})
		}
	}
}

// SettleMethod settles deliveries at the node that owns their tasks.
var SettleMethod = Method[settleQuery, settleReply]{Name: "settle", writes: true, prompt: true}

type (
	settleQuery struct {
		Verdict    wireVerdict
		Receipts   []string
		Conditions *wireConditions `json:"Terms,omitempty"`
	}
	settleReply struct{ Settled []wireSettled }
	wireSettled struct {
		Recorded   bool       `json:",omitempty"`
		LeaseUntil time.Time  `json:",omitzero"`
		Fault      *WireError `json:",omitempty"`
	}
)

func (s *Cluster) handleSettle(ctx context.Context, _ string, q settleQuery) (settleReply, error) {
	v := task.Verdict(q.Verdict)
	settlings, err := s.engine.CheckVerdict(&v, q.Receipts)
	if err != nil {
		return settleReply{}, err
	}
	// The answer must arrive before the caller's time is over, also if it says that nothing
	// is recorded yet.
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)*9/10)
		defer cancel()
	}
	ctx, cancel := s.engine.Within(q.Conditions.in(ctx))
	defer cancel()
	s.settleOwned(ctx, &v, openOf(settlings))
	a := settleReply{Settled: make([]wireSettled, len(settlings))}
	for i := range settlings {
		p := &settlings[i].Answer
		a.Settled[i] = wireSettled{Recorded: p.Recorded, LeaseUntil: p.LeaseUntil}
		switch {
		case errors.Is(p.Err, task.ErrClosed):
			a.Settled[i].Fault = WireErrorOf(errNotMine) // another node will hold it soon
		case p.Err != nil:
			a.Settled[i].Fault = WireErrorOf(p.Err)
		}
	}
	return a, nil
}

// settleAnywhere settles deliveries wherever their tasks are now, also while Close runs.
func (s *Cluster) settleAnywhere(ctx context.Context, v task.Verdict, receipts []string) ([]task.Settled, error) {
	settlings, err := s.engine.CheckVerdict(&v, receipts)
	if err != nil {
		return nil, err
	}
	s.settleRemote(ctx, &v, openOf(settlings))
	return engine.SettledOf(settlings), nil
}

// openOf returns those that have no answer yet.
func openOf(settlings []engine.Settling) (open []*engine.Settling) {
	for i := range settlings {
		if p := &settlings[i]; p.Answer.Err == nil {
			open = append(open, p)
		}
	}
	return open
}

// Settle is tasks.Scheduler.Settle.
func (s *Cluster) Settle(ctx context.Context, v task.Verdict, receipts []string) ([]task.Settled, error) {
	if s.Fleet == nil {
		return s.engine.Settle(ctx, v, receipts)
	}
	settlings, err := s.engine.CheckVerdict(&v, receipts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if err := s.settleAll(ctx, &v, settlings); err != nil {
		return nil, err
	}
	s.acknowledgedElsewhere(ctx, &v, settlings)
	return engine.SettledOf(settlings), nil
}
