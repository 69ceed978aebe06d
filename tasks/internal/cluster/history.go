package cluster

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/internal/stamp"
	"github.com/lapsehq/lapse/tasks/internal/past"
	"github.com/lapsehq/lapse/tasks/task"
)

// PastMethod asks a node what it has counted lately.
var PastMethod = Method[pastQuery, past.Part]{Name: "past"}

type pastQuery struct {
	Topic string        `json:"topic,omitzero"`
	Step  time.Duration `json:"step,omitzero"`
}

func (s *Cluster) handlePast(_ context.Context, _ string, q pastQuery) (past.Part, error) {
	return s.Past.Live(q.Topic, q.Step), nil
}

// FleetPast is tasks.Scheduler.FleetPast. The query was checked.
func (s *Cluster) FleetPast(ctx context.Context, q task.PastQuery) (task.Past, task.Reach, error) {
	g, err := gather(ctx, s, PastMethod, pastQuery{q.Topic, q.Step})
	if err != nil {
		return task.Past{}, task.Reach{}, err
	}
	parts := make([]past.Part, len(g.answers))
	for i := range g.answers {
		parts[i] = g.answers[i].reply
	}
	p, err := s.pastOf(ctx, q, parts)
	return p, g.reach, err
}

const (
	// readPastWithin bounds how long an answer about the past waits for the ledger.
	readPastWithin = 3 * time.Second
	// lastPastWithin bounds how long a node that ends waits for it.
	lastPastWithin = 500 * time.Millisecond
)

// pastOf adds up what this node, others and the ledger have.
func (s *Cluster) pastOf(ctx context.Context, q task.PastQuery, others []past.Part) (task.Past, error) {
	sum := past.NewSum(q)
	own := s.Past.Live(q.Topic, q.Step)
	sum.AddLive(&own)
	for i := range others {
		sum.AddLive(&others[i])
	}
	reading, cancel := context.WithTimeout(ctx, readPastWithin)
	defer cancel()
	p := task.Past{Query: q}
	p.Unread = sum.Read(reading, s.Past.Archive)
	if p.Unread == nil {
		p.Marks, p.Unread = s.Past.Marks(reading, q.From, q.To, q.Topic)
	}
	p.Points = sum.Points()
	return p, context.Cause(ctx)
}

// Audit is tasks.Scheduler.Audit, without what a grant leaves out. The query was checked.
func (s *Cluster) Audit(ctx context.Context, q task.AuditQuery) (task.AuditPage, error) {
	ctx, cancel := context.WithTimeout(ctx, readPastWithin)
	defer cancel()
	return s.Past.Entries(ctx, q)
}

// NodePast is tasks.Scheduler.Past: of this node's memory, and of what its ledger keeps if no other
// node shares that.
func (s *Cluster) NodePast(ctx context.Context, q task.PastQuery) (task.Past, error) {
	if s.Fleet == nil {
		return s.pastOf(ctx, q, nil)
	}
	sum := past.NewSum(q)
	own := s.Past.Live(q.Topic, q.Step)
	sum.AddLive(&own)
	return task.Past{Query: q, Points: sum.Points()}, nil
}

// pastLoop keeps the past, until the node ends.
func (s *Cluster) pastLoop() {
	version, _ := stamp.Read()
	s.Past.Mark(task.Mark{At: s.Past.Clock(), Kind: task.MarkStarted, Node: s.Past.Node, Text: version})
	seen := make(map[string]bool)
	s.engine.Life.Every(time.Second, func() {
		s.markNodes(seen)
		s.Past.Tick(s.engine.Life.Context, false)
	})
	<-s.engine.Life.Context.Done() // handlers have ended, or were given up
	s.Past.Mark(task.Mark{At: s.Past.Clock(), Kind: task.MarkStopped, Node: s.Past.Node})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.engine.Life.Context), lastPastWithin)
	defer cancel()
	s.Past.Tick(ctx, true)
}

// markNodes marks other nodes whose heartbeat has ended, or is back. seen has whether a process was
// heard when it looked last.
func (s *Cluster) markNodes(seen map[string]bool) {
	if s.Fleet == nil {
		return
	}
	nodes, err := s.Fleet.ledger.Peers(s.engine.Life.Context)
	if err != nil {
		return
	}
	now := s.Past.Clock()
	there := make(map[string]bool, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		if n.Self || n.Released {
			continue
		}
		process := processOf(n)
		there[process] = true
		before, known := seen[process]
		seen[process] = n.Live && !n.Gone
		if known && before != seen[process] {
			s.Past.Mark(task.Mark{At: now, Kind: kindOfChange(seen[process]), Node: n.Name})
		}
	}
	for process := range seen {
		if !there[process] {
			delete(seen, process)
		}
	}
}

func kindOfChange(live bool) task.MarkKind {
	if live {
		return task.MarkUp
	}
	return task.MarkDown
}
