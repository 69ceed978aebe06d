package tasks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// A node with a backlog announces it to all others with every sweep. Those that have room take
// ready tasks of topics that they can deliver themselves, deliver them as if they were
// their own, and settle them here by their receipts. To this node, what they have taken is
// like what receivers have reserved: it counts against MaxInFlight and its leases run here.
// When a node dies, the tasks that it has taken are ready again when their leases are over.

// backlogMethod announces a backlog, or that it is over.
var backlogMethod = method[backlogMessage, struct{}]{name: "backlog"}

type backlogMessage struct {
	Topics []backlogTopic // those with the most tasks first; none: the backlog is over
}

type backlogTopic struct {
	Topic string
	Way   string // see topic.way
	Ready int
}

// offloadMethod asks for ready tasks of a topic during a backlog.
var offloadMethod = method[offloadQuery, offloadReply]{name: "help", writes: true}

type offloadQuery struct {
	Topic string
	Way   string
	Want  int
}

type offloadReply struct {
	Deliveries []wireDelivery `json:",omitempty"`
	Over       bool           // the backlog is over
}

// backlogTopics is how many topics a node announces.
const backlogTopics = 100

// wayOf names how a topic's tasks are delivered: a node with the same name can deliver them.
func wayOf(t *topic) string {
	if t.deliverer == nil {
		return ""
	}
	kind := string(t.kind())
	if t.handler != nil {
		return kind
	}
	sum := sha256.Sum256(bytes.TrimSpace(t.settings.Delivery))
	return kind + "/" + hex.EncodeToString(sum[:8])
}

// announceBacklog announces a backlog of this node to the others, and its end.
func (s *Scheduler) announceBacklog() {
	if s.noPeers() {
		return
	}
	s.engine.mu.Lock()
	called := s.engine.sweep.called
	s.engine.sweep.called = s.engine.sweep.raised && !s.engine.ended
	calls := s.engine.sweep.called
	s.engine.mu.Unlock()
	var told backlogMessage
	if calls {
		told.Topics = s.backlogTopics()
	}
	if calls || called {
		tell(s, "", backlogMethod, told)
	}
}

// backlogTopics returns the topics that are announced during a backlog.
func (s *Scheduler) backlogTopics() (most []backlogTopic) {
	type candidate struct {
		topic *topic
		ready int
	}
	all := smallest[candidate]{limit: backlogTopics, compare: func(a, b candidate) int { return b.ready - a.ready }}
	s.engine.eachTopic(func(t *topic) {
		if t.pushed && t.queue.live > 0 {
			all.add(candidate{t, t.queue.live})
		}
	})
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	for _, c := range all.sorted() {
		if c.topic.pushed {
			most = append(most, backlogTopic{c.topic.name, wayOf(c.topic), c.ready})
		}
	}
	return most
}

// handleOffload gives tasks to a node that delivers a part of the backlog.
func (s *Scheduler) handleOffload(ctx context.Context, from string, ask offloadQuery) (offloadReply, error) {
	s.engine.mu.Lock()
	defer s.engine.unlock()
	if s.engine.ended {
		return offloadReply{}, ErrClosed
	}
	t := s.engine.topics[ask.Topic]
	if !s.engine.sweep.raised || t == nil || !t.pushed || wayOf(t) != ask.Way {
		return offloadReply{Over: true}, nil
	}
	ctx, cancel := s.engine.within(ctx)
	defer cancel()
	ds := s.engine.beginLocked(ctx, t, min(ask.Want, MaxReserve), 0, consumer{aRemoteWorker, from})
	s.peers.counts.offloadedOut += int64(len(ds))
	return offloadReply{Deliveries: s.encodeDeliveries(ds)}, nil
}

// outcomesMethod reports the outcomes of deliveries that another node has made.
var outcomesMethod = method[outcomesQuery, outcomesReply]{name: "outcomes", writes: true}

type (
	outcomesQuery struct{ Outcomes []offloadOutcome }
	outcomesReply struct {
		Faults []wireError // one for each outcome; empty if it counts
	}
)

type offloadOutcome struct {
	Receipt string
	Verb    Verb
	Reason  string         `json:",omitempty"`
	Delay   *time.Duration `json:",omitempty"`
}

func (o *offloadOutcome) verdict() Verdict {
	return Verdict{Verb: o.Verb, Delay: o.Delay, Reason: o.Reason}
}

// handleOutcomes settles deliveries. Like a worker of this process, the other node does not
// wait for the ledger.
func (s *Scheduler) handleOutcomes(_ context.Context, _ string, told outcomesQuery) (outcomesReply, error) {
	a := outcomesReply{make([]wireError, len(told.Outcomes))}
	settlings := make([]settling, len(told.Outcomes))
	for i := range settlings {
		p := &settlings[i]
		if p.receipt, p.answer.Err = s.engine.signer.Parse(told.Outcomes[i].Receipt); p.answer.Err == nil {
			p.answer.ID = p.receipt.ID
		}
	}
	for from := 0; from < len(settlings); from += atOnce {
		s.engine.mu.Lock()
		if s.engine.ended {
			s.engine.unlock()
			return outcomesReply{}, ErrClosed
		}
		for i := from; i < min(from+atOnce, len(settlings)); i++ {
			switch p, o := &settlings[i], &told.Outcomes[i]; {
			case p.answer.Err != nil:
			case o.Verb < Ack || o.Verb > Return:
				p.answer.Err = errNotUnderstood
			default:
				v := o.verdict()
				s.engine.settleLocked(&v, p, nil, 0, nil)
			}
		}
		s.engine.unlock()
	}
	for i := range settlings {
		if err := settlings[i].answer.Err; err != nil {
			a.Faults[i] = *wireErrorOf(err)
		}
	}
	return a, nil
}
