package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A spooled task is at the node whose disk has it. Its id names a shard of that node, which another
// node may have adopted since. So the registry says which nodes have spools. Before a node creates
// a task of a shard of such a node, or answers that it does not exist, it asks that node. With
// their heartbeats nodes also report the shards of the tasks that they have spooled: former
// versions also spooled tasks of adopted shards. A spool that is missing at its node can not be
// asked: while one is, no node says that a task of such a shard does not exist.

// A spooledAt is which node has spooled a task; empty if none has. The error, ErrUnavailable,
// is why that is not known.
type spooledAt struct {
	node string
	err  error
}

// querySpools finds out which ids name tasks in the spools of other nodes: it calls the nodes with
// spools whose shards the ids name. The announcements of these nodes do not suffice: a node that is
// cut off from the ledger spools tasks and can announce nothing.
func (s *Cluster) querySpools(ctx context.Context, ids []string) []spooledAt {
	found := make([]spooledAt, len(ids))
	shardIDs := make([]recovery.ShardID, len(ids))
	none := true
	for i, id := range ids {
		shardIDs[i], _ = recovery.ShardIDOf(id)
		none = none && shardIDs[i].Node() == 0
	}
	if none || s.Fleet == nil {
		return found
	}
	nodes, err := s.Fleet.ledger.Peers(ctx)
	if err != nil {
		for i := range found {
			found[i].err = unavailable(err)
		}
		return found
	}
	for i := range nodes {
		n := &nodes[i]
		if len(n.MissingSpools) > 0 {
			for k, shardID := range shardIDs {
				if found[k].node == "" && shardID.Node() == n.Number {
					found[k].err = fmt.Errorf("%w (node %s)", errSpoolMissing, n.Name)
				}
			}
		}
		if n.Self || !n.Spools {
			continue
		}
		var st task.NodeStatus
		if bytes.Contains(n.LastStatus, []byte(`"spooled":`)) && json.Unmarshal(n.LastStatus, &st) != nil {
			st.Spooled = nil
		}
		var at []int // of the ids
		for k, shardID := range shardIDs {
			if found[k].node == "" && shardID.Node() != 0 && (shardID.Node() == n.Number || slices.Contains(st.Spooled, shardID)) {
				at = append(at, k)
			}
		}
		for part := range slices.Chunk(at, HasAtOnce) {
			s.querySpool(ctx, n, ids, part, found)
		}
	}
	return found
}

// querySpool asks one node for some of the ids.
func (s *Cluster) querySpool(ctx context.Context, n *recovery.Node, ids []string, at []int, found []spooledAt) {
	some := make([]string, len(at))
	for i, k := range at {
		some[i] = ids[k]
	}
	var a HasReply
	var err error
	if n.Live {
		if a, err = callHolder(ctx, s, n.Name, HasMethod, HasQuery{IDs: some}); err == nil && len(a.Has) != len(some) {
			err = fmt.Errorf("%w: node %s has answered for %d of %d tasks", task.ErrUnavailable, n.Name, len(a.Has), len(some))
		}
	} else {
		err = task.KindOf(errOwnerSilent, "node "+n.Name+" may have spooled the task and sends no heartbeat")
	}
	for i, k := range at {
		switch {
		case err != nil:
			found[k].err = errors.Join(found[k].err, final(err))
		case a.Has[i]:
			found[k] = spooledAt{node: n.Name} // whatever else is missing
		}
	}
}

// namesShard reports whether a request names an id that tells a shard: the node of the shard may
// have spooled the task, or this node in a spool that is missing.
func (s *Cluster) namesShard(p *engine.Plan) bool {
	if s.Fleet == nil || !p.Chosen || p.Rec == nil {
		return false
	}
	_, tells := recovery.ShardIDOf(p.ID)
	return tells
}

// spooledElsewhere returns, for each id that is to be created, an *Elsewhere if another node
// has spooled the task, and ErrUnavailable if that is not known. It does not ask about tasks
// that are known here.
func (s *Cluster) spooledElsewhere(ctx context.Context, ids []string) []error {
	errs := make([]error, len(ids))
	var unknown []string
	var at []int
	for i, id := range ids {
		if !s.Knows(id) {
			unknown, at = append(unknown, id), append(at, i)
		}
	}
	for i, found := range s.querySpools(ctx, unknown) {
		if errs[at[i]] = found.err; found.node != "" {
			errs[at[i]] = &engine.Elsewhere{Node: found.node}
		}
	}
	return errs
}
