package tasks

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// A node with a backlog says so to all others with every sweep. Those that have room take
// ready tasks of topics that they can deliver themselves, deliver them as if they were
// their own, and settle them here by their receipts. To this node, what they have taken is
// like what receivers have reserved: it counts against MaxInFlight, its leases run here,
// and when a helper dies, its tasks are ready again when they are over.

// backlogQuestion tells of a backlog, or that it is over.
var backlogQuestion = question[backlogTold, struct{}]{verb: "backlog"}

type backlogTold struct {
	Topics []backlogTopic // those with the most tasks first; none: the backlog is over
}

type backlogTopic struct {
	Topic string
	Way   string // see topic.way
	Ready int
}

// helpQuestion asks for ready tasks of a topic during a backlog.
var helpQuestion = question[helpAsk, helped]{verb: "help", writes: true}

type helpAsk struct {
	Topic string
	Way   string
	Want  int
}

type helped struct {
	Deliveries []wireDelivery `json:",omitempty"`
	Over       bool           // the backlog is over
}

// backlogTopics is how many topics a node tells of.
const backlogTopics = 100

// way names how a topic's tasks are delivered: who names the same can help.
func (t *topic) way() string {
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

// callForHelp tells the other nodes of a backlog here, and of its end.
func (s *Scheduler) callForHelp() {
	if s.noPeers() {
		return
	}
	s.mu.Lock()
	called := s.sweep.called
	s.sweep.called = s.sweep.raised && !s.ended
	calls := s.sweep.called
	s.mu.Unlock()
	var told backlogTold
	if calls {
		told.Topics = s.backlogTopics()
	}
	if calls || called {
		tell(s, "", backlogQuestion, told)
	}
}

// backlogTopics returns the topics that other nodes are told of during a backlog.
func (s *Scheduler) backlogTopics() (most []backlogTopic) {
	type candidate struct {
		topic *topic
		ready int
	}
	all := smallest[candidate]{limit: backlogTopics, compare: func(a, b candidate) int { return b.ready - a.ready }}
	s.eachTopic(func(t *topic) {
		if t.pushed && t.queue.live > 0 {
			all.add(candidate{t, t.queue.live})
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range all.sorted() {
		if c.topic.pushed {
			most = append(most, backlogTopic{c.topic.name, c.topic.way(), c.ready})
		}
	}
	return most
}

// answerHelp gives tasks to a node that helps.
func (s *Scheduler) answerHelp(ctx context.Context, from string, ask helpAsk) (helped, error) {
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return helped{}, ErrClosed
	}
	t := s.topics[ask.Topic]
	if !s.sweep.raised || t == nil || !t.pushed || t.way() != ask.Way {
		return helped{Over: true}, nil
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	ds := s.beginLocked(ctx, t, min(ask.Want, MaxReserve), 0, taker{aHelper, from})
	s.peers.counts.helpTaken += int64(len(ds))
	return helped{Deliveries: s.encodeDeliveries(ds)}, nil
}

// outcomesQuestion tells what has become of deliveries that a helper has made.
var outcomesQuestion = question[outcomesTold, outcomesAnswer]{verb: "outcomes", writes: true}

type (
	outcomesTold   struct{ Outcomes []helpOutcome }
	outcomesAnswer struct {
		Faults []wiredFault // one for each outcome; empty if it counts
	}
)

type helpOutcome struct {
	Receipt string
	Verb    Verb
	Reason  string         `json:",omitempty"`
	Delay   *time.Duration `json:",omitempty"`
}

func (o *helpOutcome) verdict() Verdict {
	return Verdict{Verb: o.Verb, Delay: o.Delay, Reason: o.Reason}
}

// answerOutcomes settles deliveries. Like a worker of this process, the helper does not
// wait for the ledger.
func (s *Scheduler) answerOutcomes(_ context.Context, _ string, told outcomesTold) (outcomesAnswer, error) {
	a := outcomesAnswer{make([]wiredFault, len(told.Outcomes))}
	settlings := make([]settling, len(told.Outcomes))
	for i := range settlings {
		p := &settlings[i]
		if p.receipt, p.answer.Err = s.signer.parse(told.Outcomes[i].Receipt); p.answer.Err == nil {
			p.answer.ID = p.receipt.id
		}
	}
	for from := 0; from < len(settlings); from += atOnce {
		s.mu.Lock()
		if s.ended {
			s.unlock()
			return outcomesAnswer{}, ErrClosed
		}
		for i := from; i < min(from+atOnce, len(settlings)); i++ {
			switch p, o := &settlings[i], &told.Outcomes[i]; {
			case p.answer.Err != nil:
			case o.Verb < Ack || o.Verb > Return:
				p.answer.Err = errNotUnderstood
			default:
				v := o.verdict()
				s.settleLocked(&v, p, nil, 0, nil)
			}
		}
		s.unlock()
	}
	for i := range settlings {
		if err := settlings[i].answer.Err; err != nil {
			a.Faults[i] = *faultOf(err)
		}
	}
	return a, nil
}
