package cluster

import (
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A resultSender sends the outcomes of deliveries that this node has made for another one.
// While one message is on its way the next gathers, so that many deliveries share it.
type resultSender struct {
	node    string
	entries []result
	sending bool
}

type result struct {
	OffloadOutcome
	until time.Duration // when the lease is over: then the outcome does not matter any more
}

// outcomesAtOnce is how many go in one message.
const outcomesAtOnce = 1000

// endOffloadedLocked ends a delivery that was made for another node.
func (s *Cluster) endOffloadedLocked(d *engine.Delivery, v task.Judgement) {
	h := d.Source.Work.(*offload)
	took := s.engine.Elapsed() - d.Source.Began
	if h.took == 0 {
		h.took = took
	}
	h.took += (took - h.took) / 8
	h.notify()
	if v.Verb == 0 {
		return // its receipt settles it
	}
	told := OffloadOutcome{d.Receipt(), v.Verb, task.Cut(v.Reason, task.MaxReason), v.Pause}
	if s.settleAdoptedLocked(d.ID, &told) {
		return
	}
	node := d.Source.Node
	b := s.Peers.ResultSenders[node]
	if b == nil {
		b = &resultSender{node: node}
		s.Peers.ResultSenders[node] = b
	}
	b.entries = append(b.entries, result{told, d.Lease.Until})
	if !b.sending {
		b.sending = true
		s.engine.Life.Handlers.Add(1) // by a worker, which counts as well
		go s.sendResults(b)
	}
}

// settleAdoptedLocked settles a delivery of a task that this node has taken over meanwhile, before
// a worker here delivers it again. It reports false if there is none.
func (s *Cluster) settleAdoptedLocked(id string, told *OffloadOutcome) bool {
	key := []byte(id)
	if _, known := s.engine.Store.FindHashed(s.engine.Store.Hash(key), key); !known {
		return false
	}
	var p engine.Settling
	if p.Receipt, p.Answer.Err = s.engine.Signer.Parse(told.Receipt); p.Answer.Err == nil {
		v := told.verdict()
		s.engine.SettleLocked(&v, &p, nil, 0, nil)
	}
	return p.Answer.Err == nil
}

// sendResults sends until no result is left.
func (s *Cluster) sendResults(b *resultSender) {
	defer s.engine.Life.Handlers.Done()
	var backoff recovery.Backoff
	for attempt := 0; ; attempt++ {
		s.engine.Mu.Lock()
		some := b.entries[:min(len(b.entries), outcomesAtOnce)]
		if len(some) == 0 {
			delete(s.Peers.ResultSenders, b.node)
			s.engine.Unlock()
			return
		}
		b.entries = b.entries[len(some):]
		s.engine.Unlock()
		left := s.sendOutcomes(b.node, some)
		if len(left) == 0 {
			attempt = 0
			continue
		}
		s.engine.Mu.Lock()
		b.entries = append(left, b.entries...)
		s.engine.Unlock()
		if backoff.Wait(s.engine.Life.Context, attempt) != nil {
			s.engine.Mu.Lock()
			delete(s.Peers.ResultSenders, b.node)
			s.engine.Unlock()
			return
		}
	}
}

// sendOutcomes reports outcomes of deliveries to their node. It returns those that the node has
// not confirmed.
func (s *Cluster) sendOutcomes(node string, some []result) (left []result) {
	told := OutcomesQuery{make([]OffloadOutcome, len(some))}
	for i := range some {
		told.Outcomes[i] = some[i].OffloadOutcome
	}
	ctx, cancel := s.engine.Within(s.engine.Life.Context)
	defer cancel()
	a, err := Call(ctx, s, node, OutcomesMethod, told)
	now := s.engine.Elapsed()
	for i, o := range some {
		why := err
		if err == nil && i < len(a.Faults) && a.Faults[i].Code != "" {
			why = a.Faults[i].Err(node, false)
		}
		if why == nil {
			continue
		}
		if answered := err == nil && errors.Is(why, task.ErrStale); !answered {
			why = s.settleElsewhere(ctx, o.verdict(), o.Receipt)
		}
		switch {
		case why == nil:
		case o.until > now && (errors.Is(why, task.ErrUnavailable) || errors.Is(why, task.ErrUnknown) || errors.Is(why, task.ErrReplaying)):
			left = append(left, o)
		default:
			s.engine.Config.Log.Warn("a delivery made for another node could not be settled there; the task may be delivered again", "node", node, "error", why)
		}
	}
	return left
}
