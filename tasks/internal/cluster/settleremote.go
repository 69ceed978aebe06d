package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// settleAll settles deliveries wherever their tasks are. Those of tasks that are known here
// cost nothing more than with a ledger that is not shared.
func (s *Cluster) settleAll(ctx context.Context, v *task.Verdict, settlings []engine.Settling) error {
	here, far := s.engine.SettledHere(settlings) // of which each has answers of its own to write
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

// settleRemote settles deliveries whose tasks are not in this process's memory, with one call
// to each node that holds some of them.
func (s *Cluster) settleRemote(ctx context.Context, v *task.Verdict, todo []*engine.Settling) {
	all := itemsOf(todo)
	s.each(ctx, all, func(some []*item) { s.settleHere(ctx, v, todo, some) },
		func(node string, some []*item) { s.settleAt(ctx, node, v, todo, some) })
	for i := range all {
		if todo[i].Answer.Err = all[i].err; errors.Is(all[i].err, task.ErrNotFound) {
			todo[i].Answer.Err = engine.ErrReceiptUnknown
		}
	}
}

// itemsOf returns the items of the tasks of receipts.
func itemsOf(settlings []*engine.Settling) []item {
	all := make([]item, len(settlings))
	for i, p := range settlings {
		all[i] = item{id: p.Receipt.ID, index: i, shardID: p.Receipt.ShardID}
	}
	return all
}

// settleHere settles those of the deliveries whose tasks are known here or whose shards are held.
func (s *Cluster) settleHere(ctx context.Context, v *task.Verdict, settlings []*engine.Settling, some []*item) {
	here := make([]*engine.Settling, len(some))
	for k, p := range some {
		here[k] = settlings[p.index]
		// Nothing of an earlier try.
		*here[k] = engine.Settling{Receipt: here[k].Receipt, Answer: here[k].Answer}
		here[k].Answer.Err = nil
	}
	err := s.engine.SettleLocal(ctx, v, here)
	for k, p := range some {
		if p.err, p.missed = here[k].Answer.Err, here[k].Missed; err != nil {
			p.err = err
		}
	}
}

// settleAt has another node settle some of the deliveries.
func (s *Cluster) settleAt(ctx context.Context, node string, v *task.Verdict, settlings []*engine.Settling, some []*item) {
	q := settleQuery{Verdict: *v, Receipts: make([]string, len(some)), Conditions: task.ConditionsOf(ctx)}
	for i, p := range some {
		q.Receipts[i] = settlings[p.index].Answer.Receipt
	}
	a, err := Call(ctx, s, node, SettleMethod, q)
	if err == nil && len(a.Settled) != len(some) {
		err = fmt.Errorf("%w: node %s has answered for %d of %d receipts", task.ErrUnknown, node, len(a.Settled), len(some))
	}
	var acknowledged []*engine.Settling
	for i, p := range some {
		if p.err = err; err != nil {
			continue
		}
		w, one := &a.Settled[i], settlings[p.index]
		one.Answer.Recorded, one.Answer.LeaseUntil = w.Recorded, w.LeaseUntil
		if w.Fault != nil {
			p.err = w.Fault.Err(node, true)
		} else if v.Verb == task.Ack && w.Recorded {
			acknowledged = append(acknowledged, one)
		}
	}
	s.engine.RememberAcknowledged(acknowledged)
}

// SettleMethod settles deliveries at the node that owns their tasks.
var SettleMethod = Method[settleQuery, settleReply]{Name: "settle", writes: true, prompt: true}

type (
	settleQuery struct {
		Verdict    task.Verdict
		Receipts   []string
		Conditions *task.Conditions `json:"Terms,omitempty"`
	}
	settleReply struct{ Settled []wireSettled }
	wireSettled struct {
		Recorded   bool       `json:",omitempty"`
		LeaseUntil time.Time  `json:",omitzero"`
		Fault      *WireError `json:",omitempty"`
	}
)

func (s *Cluster) handleSettle(ctx context.Context, _ string, q settleQuery) (settleReply, error) {
	settlings, err := s.engine.CheckVerdict(&q.Verdict, q.Receipts)
	if err != nil {
		return settleReply{}, err
	}
	open := openOf(settlings)
	all := itemsOf(open)
	s.serve(ctx, q.Conditions, all, func(ctx context.Context, some []*item) { s.settleHere(ctx, &q.Verdict, open, some) })
	for i := range all {
		open[i].Answer.Err = all[i].err
	}
	a := settleReply{Settled: make([]wireSettled, len(settlings))}
	for i := range settlings {
		p := &settlings[i].Answer
		if a.Settled[i] = (wireSettled{Recorded: p.Recorded, LeaseUntil: p.LeaseUntil}); p.Err != nil {
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
func openOf(settlings []engine.Settling) []*engine.Settling {
	open := make([]*engine.Settling, 0, len(settlings))
	for i := range settlings {
		if p := &settlings[i]; p.Answer.Err == nil {
			open = append(open, p)
		}
	}
	return open
}

// Settle is tasks.Scheduler.Settle.
func (s *Cluster) Settle(ctx context.Context, v task.Verdict, receipts []string) ([]task.Settled, error) {
	settlings, err := s.engine.CheckVerdict(&v, receipts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if s.Fleet == nil {
		err = s.engine.SettleLocal(ctx, &v, pointersTo(settlings))
	} else if err = s.settleAll(ctx, &v, settlings); err == nil {
		s.acknowledgedElsewhere(ctx, &v, settlings)
	}
	if err != nil {
		return nil, err
	}
	return engine.SettledOf(settlings), nil
}
