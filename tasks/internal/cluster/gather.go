package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// Figures of all nodes. Unlike a call about tasks (fanout.go), a query for figures asks each node
// once, does not wait for shards that change hands, and names the nodes that do not answer instead
// of failing: an operator needs the figures most while a node is down. At rest each shard counts
// once, at its owner: a node that hands a shard over drops what it counts of its tasks.

const (
	// GatherWithin bounds how long a node waits for the figures of the others.
	GatherWithin = time.Second
	// gatherAgain is how long the answers of the others are used for the same query again, so that
	// however many callers poll one node, it asks the others about once a second.
	gatherAgain = time.Second
	// gatheredAtMost bounds how many queries have answers that are kept, not how many are under
	// way: those are at most as many as requests.
	gatheredAtMost = 8
)

// gathered is what the other nodes have answered to a query.
type gathered[A any] struct {
	answers []nodeAnswer[A]
	reach   task.Reach // this node included
}

type nodeAnswer[A any] struct {
	node  string
	reply A
}

// gather asks all other nodes for their figures, or only some of them, or returns what they have
// answered to the same query a moment ago. A node without others asks none. Errors: why ctx has
// ended.
func gather[Q, A any](ctx context.Context, s *Cluster, m Method[Q, A], q Q, some ...string) (*gathered[A], error) {
	return gatherFor(ctx, s, GatherWithin, m, q, some...)
}

// gatherFor is gather that waits for the answers for another time than GatherWithin.
func gatherFor[Q, A any](ctx context.Context, s *Cluster, wait time.Duration, m Method[Q, A], q Q, some ...string) (*gathered[A], error) {
	if s.NoPeers() {
		return &gathered[A]{reach: s.OwnReach()}, nil
	}
	key, err := json.Marshal([]any{m.Name, q, some})
	if err != nil {
		return nil, err
	}
	g, err := s.Figures.gathered.do(ctx, string(key), func() any { return gatherNow(s.engine.Life.Context, s, wait, m, q, some) })
	if err != nil {
		return nil, fmt.Errorf("the other nodes were asked: %w", err)
	}
	return g.(*gathered[A]), nil
}

// gatherNow asks the other nodes, until ctx or the node ends.
func gatherNow[Q, A any](ctx context.Context, s *Cluster, wait time.Duration, m Method[Q, A], q Q, some []string) *gathered[A] {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	defer context.AfterFunc(s.engine.Life.Context, cancel)()
	g := &gathered[A]{reach: s.OwnReach()}
	nodes, missing := s.reachable(ctx)
	if some != nil {
		isOther := func(node string) bool { return !slices.Contains(some, node) }
		nodes = slices.DeleteFunc(nodes, isOther)
		missing = slices.DeleteFunc(missing, func(m *task.NodeError) bool { return m.Node != "" && isOther(m.Node) })
	}
	g.reach.Missing = append(g.reach.Missing, missing...)
	if _, is := any(*new(A)).(recent); is {
		s.noteRecent(ctx, &g.reach)
	}
	askEach(ctx, s, nodes, m, q, func(node string, reply A, err error) {
		if err != nil {
			g.reach.Missing = append(g.reach.Missing, &task.NodeError{Node: node, Err: unanswered(err)})
			return
		}
		g.answers = append(g.answers, nodeAnswer[A]{node, reply})
		p, ok := any(reply).(partial)
		addTo(&g.reach, node, ok && p.reads())
		if r, is := any(reply).(recent); is && r.young() > 0 {
			g.reach.LacksRecent(node, s.engine.Config.Clock().Add(-r.young()))
		}
	})
	slices.SortFunc(g.answers, func(a, b nodeAnswer[A]) int { return strings.Compare(a.node, b.node) })
	slices.SortFunc(g.reach.Missing, func(a, b *task.NodeError) int { return strings.Compare(a.Node, b.Node) })
	slices.Sort(g.reach.Nodes)
	slices.Sort(g.reach.RecentWithout)
	return g
}

// share returns how many bytes of so many, which the answers of all nodes may have together, each
// of them may have.
func (s *Cluster) share(bytes int) int {
	if s.NoPeers() {
		return bytes
	}
	nodes, _ := s.Fleet.ledger.Peers(s.engine.Life.Context) // without any, the query fails
	return max(1, bytes/max(1, len(nodes)))
}

// reachable returns the other nodes that can be asked, and those that cannot and may have tasks
// that no other node has. A missing node without a name stands for all, if they are not known.
func (s *Cluster) reachable(ctx context.Context) (names []string, missing []*task.NodeError) {
	nodes, err := s.fleetNodes(ctx)
	if err != nil {
		missing = append(missing, &task.NodeError{Err: task.KindOf(err, "the other nodes are not known")})
	}
	for i := range nodes {
		switch n := &nodes[i]; {
		case n.Self:
		case absence(n) == nil:
			names = append(names, n.Name)
		case holds(n):
			missing = append(missing, &task.NodeError{Node: n.Name, Err: absence(n)})
		}
	}
	return names, missing
}

// fleetNodes lists the nodes. It asks the ledger only how many shards the nodes hold that are not
// there, and of a process no more once that is none: it never holds one again. A node that cannot
// learn that in time is listed as a holder.
func (s *Cluster) fleetNodes(ctx context.Context) ([]recovery.Node, error) {
	nodes, err := s.Fleet.ledger.Peers(ctx)
	f := &s.Figures
	f.mu.Lock()
	gone := make(map[string]bool, len(nodes))
	unknown := false
	for i := range nodes {
		n := &nodes[i]
		if n.Self || absence(n) == nil {
			continue
		}
		if f.emptied[processOf(n)] {
			gone[processOf(n)] = true
			continue
		}
		n.Held, unknown = 1, true
	}
	f.emptied = gone
	f.mu.Unlock()
	if !unknown {
		return nodes, err
	}
	ctx, cancel := context.WithTimeout(ctx, GatherWithin/2) // the rest is for the calls
	defer cancel()
	counted, err := f.gathered.do(ctx, "", func() any {
		counted, err := s.engine.Fleet.Nodes(s.engine.Life.Context)
		if err != nil {
			return nil
		}
		return counted
	})
	now, _ := counted.([]recovery.Node)
	if err != nil || now == nil {
		return nodes, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range now {
		if n := &now[i]; !n.Self && absence(n) != nil && n.Held+n.Adopted == 0 {
			f.emptied[processOf(n)] = true
		}
	}
	return now, nil
}

// processOf identifies a process of a node.
func processOf(n *recovery.Node) string { return n.Name + " " + n.Incarnation }

// OwnReach is the Reach of the figures of this node alone.
func (s *Cluster) OwnReach() (r task.Reach) {
	addTo(&r, s.NodeName(), !s.engine.IsReplayed())
	return r
}

// errReads is why the figures of a node are in an answer only in part.
var errReads = task.KindOf(task.ErrReplaying, "it still reads its tasks; those that it has not read do not count yet")

// addTo adds a node that has answered to a Reach. This is where a part of the tasks is told from
// all of them, whatever the figures.
func addTo(r *task.Reach, node string, reads bool) {
	if reads {
		r.Missing = append(r.Missing, &task.NodeError{Node: node, Err: errReads})
		return
	}
	r.Nodes = append(r.Nodes, node)
}

// A partial is an answer that may be about a part of the tasks of its node.
type partial interface{ reads() bool }

// A reading is the part of such an answer that tells.
type reading struct {
	Reads bool `json:",omitempty"` // the node still reads its other tasks
}

func (r reading) reads() bool { return r.Reads }

// A recent is an answer with figures of the last task.RecentTime.
type recent interface{ young() time.Duration }

// A recentReading is the reading of such an answer.
type recentReading struct {
	reading
	// Age of the process, if it is younger than that.
	Age time.Duration `json:",omitempty"`
}

func (r recentReading) young() time.Duration { return r.Age }

// recently returns what this node says with figures of the last task.RecentTime.
func (s *Cluster) recently(reads bool) recentReading {
	r := recentReading{reading: reading{reads}}
	if age := s.engine.Elapsed(); age < task.RecentTime {
		r.Age = max(1, age)
	}
	return r
}

// noteRecent notes what is missing from figures of the last task.RecentTime since this process is
// young, or because others have ended. Of those that ended before it began nothing has to be said.
func (s *Cluster) noteRecent(ctx context.Context, r *task.Reach) {
	now, age := s.engine.Config.Clock(), s.engine.Elapsed()
	if age < task.RecentTime {
		r.LacksRecent(s.NodeName(), now.Add(-age))
	}
	nodes, _ := s.Fleet.ledger.Peers(ctx) // nodes that are not known are missing
	for i := range nodes {
		n := &nodes[i]
		if silent := n.Silent + n.Looked; !n.Self && absence(n) != nil && silent < min(task.RecentTime, age-time.Second) {
			r.LacksRecent(n.Name, now.Add(-silent))
		}
	}
}

// absence returns why a node is not asked; nil if it is.
func absence(n *recovery.Node) error {
	switch {
	case n.Released:
		return task.KindOf(task.ErrNodeAway, "it has ended")
	case !n.Live, n.Gone:
		return task.KindOf(task.ErrNodeAway, "no heartbeat")
	}
	return nil
}

// holds reports whether a node that is not there may have tasks that no other node has.
func holds(n *recovery.Node) bool { return n.Held+n.Adopted > 0 || n.Spools }

// unanswered says in few words why a node has not answered, without what the error tells of the
// network: callers that may not read all topics see it.
func unanswered(err error) error {
	switch {
	case errors.Is(err, ErrNotUnderstood):
		return task.KindOf(err, "its version cannot tell its figures")
	case errors.Is(err, task.ErrOverloaded):
		return task.KindOf(err, "too many calls between nodes")
	}
	return task.KindOf(err, "no answer")
}

// A gatherings shares values among callers: one that is being computed among all that want it, and
// one that is there for gatherAgain, or as long as it says itself.
type gatherings struct {
	mu   sync.Mutex // guards everything below
	of   map[string]*gathering
	kept []string // keys of the values that are there, the oldest first
}

type gathering struct {
	done    chan struct{} // closed when value is set
	value   any
	waiting int    // callers that want it; guarded by gatherings.mu
	leave   func() // ends the computation when the last of them leaves; nil: it goes on
}

// do returns the value of a key. Errors: why ctx has ended.
func (s *gatherings) do(ctx context.Context, key string, compute func() any) (any, error) {
	return s.share(ctx, key, &gathering{done: make(chan struct{})}, compute)
}

// doWanted is do of what ends, with the context it is given, when no caller waits for it any more,
// or when life does.
func (s *gatherings) doWanted(ctx, life context.Context, key string, compute func(context.Context) any) (any, error) {
	wanted, leave := context.WithCancel(life)
	return s.share(ctx, key, &gathering{done: make(chan struct{}), leave: leave}, func() any {
		defer leave()
		return compute(wanted)
	})
}

// share has a value computed as one says, unless that is under way or done.
func (s *gatherings) share(ctx context.Context, key string, one *gathering, compute func() any) (any, error) {
	unused := one.leave
	defer func() {
		if unused != nil {
			unused()
		}
	}()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	g, known := s.of[key]
	if !known {
		g, unused = one, nil
		if s.of == nil {
			s.of = make(map[string]*gathering)
		}
		s.of[key] = g
		go s.compute(key, g, compute)
	}
	g.waiting++
	s.mu.Unlock()
	defer s.left(key, g)
	select {
	case <-g.done:
		return g.value, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// left ends a computation that no caller waits for. The next one begins another one.
func (s *gatherings) left(key string, g *gathering) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.waiting--; g.waiting > 0 || g.leave == nil {
		return
	}
	select {
	case <-g.done:
		return
	default:
	}
	g.leave()
	if s.of[key] == g {
		delete(s.of, key)
	}
}

// compute sets a value, keeps it for a while, and forgets the oldest one beyond gatheredAtMost.
func (s *gatherings) compute(key string, g *gathering, compute func() any) {
	g.value = compute()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(g.done) // under the lock: see left
	if s.of[key] != g { // no caller waits for it any more
		return
	}
	s.kept = append(s.kept, key)
	if len(s.kept) > gatheredAtMost {
		delete(s.of, s.kept[0])
		s.kept = s.kept[1:]
	}
	again := gatherAgain
	if v, tells := g.value.(interface{ usedFor() time.Duration }); tells {
		again = v.usedFor()
	}
	time.AfterFunc(again, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.of[key] == g {
			delete(s.of, key)
			s.kept = slices.DeleteFunc(s.kept, func(k string) bool { return k == key })
		}
	})
}

// Gathered returns how many answers are kept, for tests.
func (s *Cluster) Gathered() int {
	g := &s.Figures.gathered
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.of)
}
