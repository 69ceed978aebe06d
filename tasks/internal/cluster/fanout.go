package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A fanOut is a query to all nodes, at the node that was called first.
type fanOut[Q, A any, P coveringReply[A]] struct {
	*Cluster
	Method[Q, A]
	query Q
	take  func(a *A, counts func(shardID recovery.ShardID) bool)

	mu       sync.Mutex // guards everything below
	covered  map[recovery.ShardID]bool
	answered map[string]bool // nodes that have answered, and whose spooled tasks have been counted
	moved    bool            // something was done, or covered, in this round
	over     bool            // there is an error that repeating does not cure
}

// everywhere calls all nodes until all shards are covered. take is called with each answer, one at
// a time. counts reports whether the figures of a shard in the answer count: this answer covers the
// shard, and no earlier answer has covered it. They never count in an answer with More or an error.
//
// Errors: those of the method; ErrNodeAway and ErrReplaying when the holder of a shard has not
// covered it in time; ErrUnavailable when the holders of shards are not known; ErrUnknown when a
// call that was not answered may have had an effect.
func everywhere[Q, A any, P coveringReply[A]](ctx context.Context, s *Cluster, m Method[Q, A], q Q, take func(a *A, counts func(recovery.ShardID) bool)) error {
	c := &fanOut[Q, A, P]{
		Cluster: s, Method: m, query: q, take: take,
		covered: make(map[recovery.ShardID]bool), answered: make(map[string]bool),
	}
	return c.run(ctx)
}

func (c *fanOut[Q, A, P]) run(ctx context.Context) error {
	patience, cancel := c.engine.Within(ctx)
	defer func() { cancel() }()
	var left map[recovery.ShardID]recovery.Holder // of uncovered shards; nil before the first round
	var why error
	for tries := 0; ; tries++ {
		var err error
		if left, err = c.attempt(ctx, patience, left); err == nil || c.over {
			return err
		}
		if c.moved && c.writes && !silent(err) {
			cancel()
			patience, cancel = c.engine.Within(ctx)
			tries = 0
		}
		if why = reasonOf(why, err); !c.pause(patience, tries) {
			return final(why)
		}
	}
}

// attempt calls all live nodes that have not answered, and the holders of the shards in left. It
// returns the shards that are not covered then, with their holders. The error is nil if none is
// left.
func (c *fanOut[Q, A, P]) attempt(ctx, patience context.Context, left map[recovery.ShardID]recovery.Holder) (map[recovery.ShardID]recovery.Holder, error) {
	c.moved = false
	shardIDs, err := c.Fleet.ledger.ShardIDs(patience)
	if err != nil {
		return left, lookupFailed(patience, err)
	}
	nodes, err := c.Fleet.ledger.Peers(patience)
	if err != nil {
		return left, lookupFailed(patience, err)
	}
	calling := ctx
	if !c.writes {
		calling = patience
	}
	failed := c.round(calling, left, nodes)
	if c.over {
		return left, failed
	}
	if failed == nil {
		if failed = c.silentSpool(nodes); errors.Is(failed, errSpoolMissing) {
			c.over = true
			return left, failed
		}
	}
	shardIDs = slices.DeleteFunc(shardIDs, func(h recovery.ShardID) bool { return c.covered[h] })
	left, err = c.Fleet.ledger.Holders(patience, shardIDs)
	switch {
	case failed != nil:
		return left, failed
	case err != nil:
		return left, lookupFailed(patience, err)
	}
	return left, uncovered(left)
}

// round calls the holders of the shards in left, and every live node that has not answered: a node
// that holds no shard may have spooled tasks.
func (c *fanOut[Q, A, P]) round(ctx context.Context, left map[recovery.ShardID]recovery.Holder, nodes []recovery.Node) (err error) {
	asked := make(map[string]bool)
	for _, n := range nodes {
		if (n.Live || n.Self) && !c.answered[n.Name] {
			asked[n.Name] = true
		}
	}
	for _, h := range left {
		if h.Live {
			asked[h.Node] = true
		}
	}
	var group sync.WaitGroup
	for node := range asked {
		group.Go(func() {
			failed := c.callAll(ctx, node)
			if failed != nil && node != c.Fleet.node {
				failed = &task.NodeError{Node: node, Err: failed}
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			lasting := failed != nil && !passing(failed)
			if failed != nil && (err == nil || lasting && !c.over || errors.Is(failed, task.ErrUnknown)) {
				err = failed // that an outcome is open weighs most
			}
			c.over = c.over || lasting
		})
	}
	group.Wait()
	return err
}

// silentSpool returns an error that names a node which may have spooled tasks, and neither lives
// nor has answered, or which lacks a spool; nil if there is none.
func (c *fanOut[Q, A, P]) silentSpool(nodes []recovery.Node) error {
	if c.deadAlone != nil && c.deadAlone(&c.query) {
		return nil
	}
	for i := range nodes {
		if n := &nodes[i]; len(n.MissingSpools) > 0 {
			return &task.NodeError{Node: n.Name, Err: errSpoolMissing}
		}
	}
	for i := range nodes {
		if n := &nodes[i]; n.Spools && !n.Live && !n.Self && !c.answered[n.Name] {
			return &task.NodeError{Node: n.Name, Err: task.KindOf(errOwnerSilent, "no heartbeat; may have spooled tasks")}
		}
	}
	return nil
}

// callAll calls one node until its reply does not say More.
func (c *fanOut[Q, A, P]) callAll(ctx context.Context, node string) error {
	var kept []recovery.ShardID // covered by all answers so far
	asked := c.query
	for first := true; ; first = false {
		a, err := c.call(ctx, node, asked)
		if a == nil {
			return err
		}
		said := P(a).cover()
		if kept = slices.DeleteFunc(kept, func(h recovery.ShardID) bool { return !slices.Contains(said.Covered, h) }); first {
			kept = said.Covered
		}
		c.mu.Lock()
		if err != nil || said.More {
			c.take(a, func(recovery.ShardID) bool { return false })
		} else {
			c.take(a, func(shardID recovery.ShardID) bool {
				if shardID == 0 {
					return !c.answered[node]
				}
				return slices.Contains(kept, shardID) && !c.covered[shardID]
			})
			c.answered[node] = true
			for _, shardID := range kept {
				c.moved = c.moved || !c.covered[shardID]
				c.covered[shardID] = true
			}
		}
		c.moved = c.moved || said.More
		over := c.over
		c.mu.Unlock()
		switch {
		case err != nil:
			return err
		case !said.More:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case over:
			return errNotMine // it is not all done; why, another node has said
		}
		if c.next != nil {
			asked = c.next(asked, a)
		}
	}
}

// call calls one node. There may be a reply although there is an error.
func (c *fanOut[Q, A, P]) call(ctx context.Context, node string, asked Q) (*A, error) {
	if c.writes {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, 2*c.engine.Config.AnswerWithin, engine.ErrLate)
		defer cancel()
	}
	if node == c.Fleet.node {
		a, err := c.here(c.Cluster, ctx, asked)
		return &a, err
	}
	a, err := callHolder(ctx, c.Cluster, node, c.Method, asked)
	if err != nil {
		return nil, err
	}
	if fault := P(&a).cover().Fault; fault != nil {
		return &a, fault.Err(node, c.writes)
	}
	return &a, nil
}

// uncovered tells why shards that are left are not covered; nil if there are none.
func uncovered(left map[recovery.ShardID]recovery.Holder) (err error) {
	for _, shardID := range slices.Sorted(maps.Keys(left)) {
		switch h := left[shardID]; {
		case !h.Live:
			return &task.NodeError{Node: h.Node, Err: errOwnerSilent}
		case err == nil:
			err = &task.NodeError{Node: h.Node, Err: errNotMine}
		}
	}
	return err
}

// pieceTime is how long a node works on what takes long before it answers that there is
// more.
func (s *Cluster) pieceTime() time.Duration { return s.engine.Config.AnswerWithin / 2 }
