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
	// gatheredAtMost bounds how many queries have answers that are kept.
	gatheredAtMost = 8
)

// gathered is what the other nodes have answered to a query.
type gathered[Q, A any] struct {
	query   Q // as it was sent
	answers []nodeAnswer[A]
	reach   task.Reach // this node included
}

type nodeAnswer[A any] struct {
	node  string
	reply A
}

// gather asks all other nodes for their figures, or returns what they have answered to the same
// query a moment ago. complete enters into a query what does not tell it from others; it gets the
// number of nodes. A node without others asks none. Errors: why ctx has ended.
func gather[Q, A any](ctx context.Context, s *Cluster, m Method[Q, A], q Q, complete func(q *Q, nodes int)) (*gathered[Q, A], error) {
	if s.NoPeers() {
		complete(&q, 1)
		return &gathered[Q, A]{query: q, reach: task.Reach{Nodes: []string{s.NodeName()}}}, nil
	}
	key, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	g, err := s.Figures.gathered.do(ctx, m.Name+string(key), func() any { return gatherNow(s, m, q, complete) })
	if err != nil {
		return nil, err
	}
	return g.(*gathered[Q, A]), nil
}

// gatherNow asks all other nodes.
func gatherNow[Q, A any](s *Cluster, m Method[Q, A], q Q, complete func(q *Q, nodes int)) *gathered[Q, A] {
	ctx, cancel := context.WithTimeout(s.engine.Life.Context, GatherWithin)
	defer cancel()
	g := &gathered[Q, A]{reach: task.Reach{Nodes: []string{s.Fleet.node}}}
	nodes, err := s.engine.Fleet.Nodes(ctx)
	if err != nil {
		g.reach.Missing = []*task.NodeError{{Err: task.KindOf(err, "the other nodes are not known")}}
	}
	complete(&q, max(1, len(nodes)))
	g.query = q
	var mu sync.Mutex // guards g
	var calls sync.WaitGroup
	for i := range nodes {
		n := &nodes[i]
		if absent := absence(n); n.Self || absent != nil {
			if !n.Self && holds(n) {
				g.reach.Missing = append(g.reach.Missing, &task.NodeError{Node: n.Name, Err: absent})
			}
			continue
		}
		calls.Go(func() {
			reply, err := Call(ctx, s, n.Name, m, q)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				g.reach.Missing = append(g.reach.Missing, &task.NodeError{Node: n.Name, Err: unanswered(err)})
				return
			}
			g.answers = append(g.answers, nodeAnswer[A]{n.Name, reply})
			g.reach.Nodes = append(g.reach.Nodes, n.Name)
		})
	}
	calls.Wait()
	slices.SortFunc(g.answers, func(a, b nodeAnswer[A]) int { return strings.Compare(a.node, b.node) })
	slices.SortFunc(g.reach.Missing, func(a, b *task.NodeError) int { return strings.Compare(a.Node, b.Node) })
	slices.Sort(g.reach.Nodes)
	return g
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

// A gatherings shares what the other nodes have answered among callers.
type gatherings struct {
	mu sync.Mutex // guards of
	of map[string]*gathering
}

type gathering struct {
	done  chan struct{} // closed when value and ended are set
	value any
	ended time.Time
}

// over reports whether the answers are there.
func (g *gathering) over() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// do returns the value of a key, computed by this caller, by another one that computes it now, or
// by one that has done so within gatherAgain. Errors: why ctx has ended.
func (s *gatherings) do(ctx context.Context, key string, compute func() any) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	s.forgetOldLocked()
	g, known := s.of[key]
	if !known {
		g = &gathering{done: make(chan struct{})}
		s.addLocked(key, g)
	}
	s.mu.Unlock()
	if !known {
		g.value, g.ended = compute(), time.Now()
		close(g.done)
	}
	select {
	case <-g.done:
		return g.value, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("the other nodes were asked: %w", context.Cause(ctx))
	}
}

// forgetOldLocked forgets values that are too old.
func (s *gatherings) forgetOldLocked() {
	for key, g := range s.of {
		if g.over() && time.Since(g.ended) >= gatherAgain {
			delete(s.of, key)
		}
	}
}

// addLocked lets other callers share a value, in the place of the oldest one if there are too many.
// If all of these are being computed, no other caller shares it.
func (s *gatherings) addLocked(key string, added *gathering) {
	if s.of == nil {
		s.of = make(map[string]*gathering)
	}
	if len(s.of) >= gatheredAtMost {
		oldest := ""
		for k, g := range s.of {
			if g.over() && (oldest == "" || g.ended.Before(s.of[oldest].ended)) {
				oldest = k
			}
		}
		if oldest == "" {
			return
		}
		delete(s.of, oldest)
	}
	s.of[key] = added
}

// Gathered returns how many answers are kept, for tests.
func (s *Cluster) Gathered() int {
	g := &s.Figures.gathered
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.of)
}
