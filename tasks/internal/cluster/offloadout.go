package cluster

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A node with a backlog announces it to all others with every sweep, and one that has ready tasks
// announces them to a helper that asks (see helptimes.go). Those that have room take
// ready tasks of topics that they can deliver themselves, deliver them as if they were
// their own, and settle them here by their receipts. To this node, what they have taken is
// like what receivers have reserved: it counts against MaxInFlight and its leases run here.
// When a node dies, the tasks that it has taken are ready again when their leases are over.

// BacklogMethod announces a backlog, or that it is over.
var BacklogMethod = Method[backlogMessage, struct{}]{Name: "backlog"}

type backlogMessage struct {
	Topics []engine.BacklogTopic // those with the most tasks first; none: the backlog is over
}

// OffloadMethod asks for ready tasks of a topic.
var OffloadMethod = Method[offloadQuery, offloadReply]{Name: "help", writes: true}

type offloadQuery struct {
	Topic   string
	Way     string
	Want    int
	ByClock bool `json:",omitempty"` // the node helps at this time, also if there is no backlog
}

type offloadReply struct {
	Deliveries []engine.WireDelivery `json:",omitempty"`
	Over       bool                  // nothing is given any more until the topic is announced again
}

// backlogTopics is how many topics a node announces.
const backlogTopics = 100

// BacklogJudged announces to the others whether this node has a backlog, unless it has none and
// they know that.
func (s *Cluster) BacklogJudged(is bool) {
	if s.NoPeers() {
		return
	}
	is = is && !s.engine.IsClosing()
	was := s.Peers.Offloads.announced.Swap(is)
	var told backlogMessage
	if is {
		told.Topics = engine.BacklogTopics(s.engine, backlogTopics)
	}
	if is || was {
		send(s, "", BacklogMethod, told)
	}
}

// handleOffload gives tasks to a node that delivers a part of them.
func (s *Cluster) handleOffload(ctx context.Context, from string, ask offloadQuery) (offloadReply, error) {
	if s.engine.IsClosing() {
		return offloadReply{}, task.ErrClosed
	}
	ds, gives := s.engine.PullOff(ctx, from, ask.Topic, ask.Way, ask.ByClock, min(ask.Want, task.MaxReserve))
	s.Peers.Counts.OffloadedOut.Add(int64(len(ds)))
	return offloadReply{Deliveries: engine.EncodeDeliveries(ds, s.engine.Elapsed()), Over: !gives}, nil
}

// OutcomesMethod reports the outcomes of deliveries that another node has made.
var OutcomesMethod = Method[OutcomesQuery, outcomesReply]{Name: "outcomes", writes: true}

type (
	// An OutcomesQuery reports the outcomes of deliveries.
	OutcomesQuery struct{ Outcomes []OffloadOutcome }
	outcomesReply struct {
		Faults []WireError // one for each outcome; empty if it counts
	}
)

// An OffloadOutcome is the outcome of a delivery that another node has made.
type OffloadOutcome struct {
	Receipt string
	Verb    task.Verb
	Reason  string         `json:",omitempty"`
	Delay   *time.Duration `json:",omitempty"`
	Aside   bool           `json:",omitempty"`
}

func outcomeOf(receipt string, v task.Verdict) OffloadOutcome {
	return OffloadOutcome{receipt, v.Verb, v.Reason, v.Delay, v.Aside}
}

func (o *OffloadOutcome) verdict() task.Verdict {
	return task.Verdict{Verb: o.Verb, Delay: o.Delay, Reason: o.Reason, Aside: o.Aside}
}

// handleOutcomes settles deliveries. Like a worker of this process, the other node does not
// wait for the ledger. While Close runs, deliveries can be returned, but not settled otherwise.
func (s *Cluster) handleOutcomes(_ context.Context, _ string, told OutcomesQuery) (outcomesReply, error) {
	a := outcomesReply{make([]WireError, len(told.Outcomes))}
	settlings, verdicts := make([]engine.Settling, len(told.Outcomes)), make([]task.Verdict, len(told.Outcomes))
	for i := range settlings {
		o, p := &told.Outcomes[i], &settlings[i]
		*p, verdicts[i] = s.engine.NewSettling(o.Receipt), o.verdict()
		if p.Answer.Err == nil && (o.Verb < task.Ack || o.Verb > task.Return) {
			p.Answer.Err = ErrNotUnderstood
		}
	}
	s.engine.SettleEach(settlings, verdicts)
	for i := range settlings {
		if err := settlings[i].Answer.Err; err != nil {
			a.Faults[i] = *WireErrorOf(err)
		}
	}
	return a, nil
}
