package cluster

import (
	"context"
	"encoding/json"
	"slices"
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

// FleetPast is tasks.Admin.FleetPast. The query was checked.
func (s *Cluster) FleetPast(ctx context.Context, q task.PastQuery) (task.Past, task.Reach, error) {
	parts, reach, err := s.pastParts(ctx, q)
	if err != nil {
		return task.Past{}, task.Reach{}, err
	}
	p, err := s.pastOf(ctx, q, parts)
	return p, reach, err
}

// pastParts returns what other nodes have in memory. Errors: why ctx has ended.
func (s *Cluster) pastParts(ctx context.Context, q task.PastQuery) ([]past.Part, task.Reach, error) {
	g, err := gather(ctx, s, PastMethod, pastQuery{q.Topic, q.Step})
	if err != nil {
		return nil, task.Reach{}, err
	}
	parts := make([]past.Part, len(g.answers))
	for i := range g.answers {
		parts[i] = g.answers[i].reply
	}
	return parts, g.reach, nil
}

const (
	// readPastWithin bounds how long an answer about the past waits for the ledger.
	readPastWithin = 3 * time.Second
	// lastPastWithin bounds how long a node that ends waits for it.
	lastPastWithin = 500 * time.Millisecond
)

// liveOf returns what this node and others have in memory, and adds it up.
func (s *Cluster) liveOf(q task.PastQuery, others []past.Part) ([]past.Part, *past.Sum) {
	others = append(others, s.Past.Live(q.Topic, q.Step))
	sum := past.NewSum(q)
	for i := range others {
		sum.AddLive(&others[i])
	}
	return others, sum
}

// pastOf adds up what this node, others and the ledger have.
func (s *Cluster) pastOf(ctx context.Context, q task.PastQuery, others []past.Part) (task.Past, error) {
	live, sum := s.liveOf(q, others)
	k, err := s.keptPast(ctx, q, live)
	if err != nil {
		return task.Past{}, err
	}
	sum.AddKept(k.Kept)
	return task.Past{Query: q, Points: sum.Points(), Marks: slices.Clone(k.Marks), Unread: k.Err}, nil
}

const (
	// keptPastAgain is how long what the ledger keeps is used for the same query again. The nodes
	// write it about once a minute, and have all that is newer in memory.
	keptPastAgain = 5 * time.Second
	// sharedPoints bounds the points of a query that is answered so, and with that the memory.
	sharedPoints = task.HistoryMinutes + 2
)

type keptPast struct{ *past.Kept }

func (k keptPast) usedFor() time.Duration {
	if k.Err != nil {
		return gatherAgain
	}
	return keptPastAgain
}

// keptPast returns what the ledger keeps, read once for all callers that ask the same within
// keptPastAgain. Once a process has nothing to say any more, it is read again: of that process the
// ledger may have more. Errors: why ctx has ended.
func (s *Cluster) keptPast(ctx context.Context, q task.PastQuery, live []past.Part) (keptPast, error) {
	read := func(ctx context.Context) any {
		ctx, cancel := context.WithTimeout(ctx, readPastWithin)
		defer cancel()
		return keptPast{s.Past.Kept(ctx, q)}
	}
	if q.To.Sub(q.From) > sharedPoints*q.Step {
		k := read(ctx).(keptPast)
		return k, context.Cause(ctx)
	}
	names := make([]string, len(live))
	for i := range live {
		names[i] = live[i].Name
	}
	slices.Sort(names)
	key, err := json.Marshal([]any{q, names})
	if err != nil {
		return keptPast{}, err
	}
	found, err := s.Figures.pasts.doWanted(ctx, s.engine.Life.Context, string(key), read)
	if err != nil {
		return keptPast{}, err
	}
	return found.(keptPast), nil
}

// Audit is tasks.Admin.Audit, without what a grant leaves out. The query was checked.
func (s *Cluster) Audit(ctx context.Context, q task.AuditQuery) (task.AuditPage, error) {
	ctx, cancel := context.WithTimeout(ctx, readPastWithin)
	defer cancel()
	return s.Past.Entries(ctx, q)
}

// NodePast is tasks.Admin.Past: of this node's memory, and of what its ledger keeps if no other
// node shares that.
func (s *Cluster) NodePast(ctx context.Context, q task.PastQuery) (task.Past, error) {
	if s.Fleet == nil {
		return s.pastOf(ctx, q, nil)
	}
	_, sum := s.liveOf(q, nil)
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
