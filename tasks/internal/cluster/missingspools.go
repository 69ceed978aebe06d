package cluster

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// errSpoolMissing is answered for what may be in a spool that is missing at its node.
var errSpoolMissing = task.KindOf(task.ErrNodeAway, "a former spool of its node is missing, and may have the task: start the node with that, or give it up")

// missingSpools is how many spools of this node are missing. The error says why that is not known.
func (s *Cluster) missingSpools() (int, error) {
	if s.Fleet == nil {
		return 0, nil
	}
	nodes, err := s.Fleet.ledger.Peers(s.engine.Life.Context)
	if err != nil {
		return 0, unavailable(err)
	}
	for i := range nodes {
		if nodes[i].Self {
			return len(nodes[i].MissingSpools), nil
		}
	}
	return 0, unavailable(recovery.ErrOwnerLost) // the registry lacks this node
}

// HasAll reports whether this node is known to have all tasks that there are: there are no other
// nodes, and no spool is missing.
func (s *Cluster) HasAll() bool {
	if !s.NoPeers() {
		return false
	}
	missing, err := s.missingSpools()
	return err == nil && missing == 0
}

// inMissingSpool returns errSpoolMissing if a shard belongs to this node, and a spool of it is
// missing; another error while that is not known. It answers nodes that do not know that yet.
func (s *Cluster) inMissingSpool(id string) error {
	shardID, tells := recovery.ShardIDOf(id)
	if !tells || shardID.Node() != s.engine.NodeNumber {
		return nil
	}
	missing, err := s.missingSpools()
	if err == nil && missing > 0 {
		err = errSpoolMissing
	}
	return err
}

// GiveUpSpools is tasks.Admin.GiveUpSpools.
func (s *Cluster) GiveUpSpools(ctx context.Context, name string) error {
	n, err := s.FindNode(ctx, name)
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
