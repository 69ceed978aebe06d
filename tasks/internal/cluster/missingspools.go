package cluster

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// errSpoolMissing is answered for what may be in a spool that is missing at its node.
var errSpoolMissing = task.KindOf(task.ErrNodeAway, "a former spool of its node is missing, and may have the task: start the node with that, or give it up")

// missingSpools is how many spools of this node are missing.
func (s *Cluster) missingSpools() int {
	if s.Fleet == nil {
		return 0
	}
	nodes, err := s.Fleet.ledger.Peers(s.engine.Life.Context)
	if err != nil {
		return 0
	}
	for i := range nodes {
		if nodes[i].Self {
			return len(nodes[i].MissingSpools)
		}
	}
	return 0
}

// HasAll reports whether this node has all tasks that there are: there are no other nodes, and no
// spool is missing.
func (s *Cluster) HasAll() bool { return s.NoPeers() && s.missingSpools() == 0 }

// inMissingSpool returns errSpoolMissing if a shard belongs to this node, and a spool of it is
// missing. It answers nodes that do not know that yet.
func (s *Cluster) inMissingSpool(id string) error {
	shardID, tells := recovery.ShardIDOf(id)
	if tells && shardID.Node() == s.engine.NodeNumber && s.missingSpools() > 0 {
		return errSpoolMissing
	}
	return nil
}

// GiveUpSpools is tasks.Scheduler.GiveUpSpools.
func (s *Cluster) GiveUpSpools(ctx context.Context, name string) error {
	n, err := s.findNode(ctx, name)
	if err != nil || s.Fleet == nil || len(n.MissingSpools) == 0 {
		return err
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if err := s.engine.Fleet.GiveUpSpools(ctx, name); err != nil {
		return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	s.engine.Config.Log.Warn("missing spools of a node were given up: their tasks count as lost", "node", s.engine.Config.Node, "of", name, "spools", n.MissingSpools)
	return nil
}
