package tasks

import (
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery"
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
	offloadOutcome
	until time.Duration // when the lease is over: then the outcome does not matter any more
}

// outcomesAtOnce is how many go in one message.
const outcomesAtOnce = 1000

// endOffloadedLocked ends a delivery that was made for another node.
func (s *Scheduler) endOffloadedLocked(d *delivery, v task.Judgement) {
	h := d.source.work.(*offload)
	took := s.engine.elapsed() - d.source.began
	if h.took == 0 {
		h.took = took
	}
	h.took += (took - h.took) / 8
	h.notify()
	if v.Verb == 0 {
		return // its receipt settles it
	}
	told := offloadOutcome{d.receipt, v.Verb, task.Cut(v.Reason, task.MaxReason), v.Pause}
	if s.settleAdoptedLocked(d.ID, &told) {
		return
	}
	node := d.source.node
	b := s.peers.resultSenders[node]
	if b == nil {
		b = &resultSender{node: node}
		s.peers.resultSenders[node] = b
	}
	b.entries = append(b.entries, result{told, d.lease.until})
	if !b.sending {
		b.sending = true
		s.engine.handlers.Add(1) // by a worker, which counts as well
		go s.sendResults(b)
	}
}

// settleAdoptedLocked settles a delivery of a task that this node has taken over meanwhile, before
// a worker here delivers it again. It reports false if there is none.
func (s *Scheduler) settleAdoptedLocked(id string, told *offloadOutcome) bool {
	key := []byte(id)
	if _, known := s.engine.store.FindHashed(s.engine.store.Hash(key), key); !known {
		return false
	}
	var p settling
	if p.receipt, p.answer.Err = s.engine.signer.Parse(told.Receipt); p.answer.Err == nil {
		v := told.verdict()
		s.engine.settleLocked(&v, &p, nil, 0, nil)
	}
	return p.answer.Err == nil
}

// sendResults sends until no result is left.
func (s *Scheduler) sendResults(b *resultSender) {
	defer s.engine.handlers.Done()
	var backoff recovery.Backoff
	for attempt := 0; ; attempt++ {
		s.engine.mu.Lock()
		some := b.entries[:min(len(b.entries), outcomesAtOnce)]
		if len(some) == 0 {
			delete(s.peers.resultSenders, b.node)
			s.engine.unlock()
			return
		}
		b.entries = b.entries[len(some):]
		s.engine.unlock()
		left := s.sendOutcomes(b.node, some)
		if len(left) == 0 {
			attempt = 0
			continue
		}
		s.engine.mu.Lock()
		b.entries = append(left, b.entries...)
		s.engine.unlock()
		if backoff.Wait(s.engine.ctx, attempt) != nil {
			s.engine.mu.Lock()
			delete(s.peers.resultSenders, b.node)
			s.engine.unlock()
			return
		}
	}
}

// sendOutcomes reports outcomes of deliveries to their node. It returns those that the node has
// not confirmed.
func (s *Scheduler) sendOutcomes(node string, some []result) (left []result) {
	told := outcomesQuery{make([]offloadOutcome, len(some))}
	for i := range some {
		told.Outcomes[i] = some[i].offloadOutcome
	}
	ctx, cancel := s.engine.within(s.engine.ctx)
	defer cancel()
	a, err := call(ctx, s, node, outcomesMethod, told)
	now := s.engine.elapsed()
	for i, o := range some {
		why := err
		if err == nil && i < len(a.Faults) && a.Faults[i].Code != "" {
			why = a.Faults[i].err(node, false)
		}
		if why == nil {
			continue
		}
		if answered := err == nil && errors.Is(why, ErrStale); !answered {
			why = s.settleElsewhere(ctx, o.verdict(), o.Receipt)
		}
		switch {
		case why == nil:
		case o.until > now && (errors.Is(why, ErrUnavailable) || errors.Is(why, ErrUnknown) || errors.Is(why, ErrReplaying)):
			left = append(left, o)
		default:
			s.engine.cfg.Log.Warn("a delivery made for another node could not be settled there; the task may be delivered again", "node", node, "error", why)
		}
	}
	return left
}
