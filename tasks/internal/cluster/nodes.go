package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// NodeName is tasks.Admin.NodeName.
func (s *Cluster) NodeName() string {
	if s.Fleet != nil {
		return s.Fleet.node
	}
	return s.engine.Config.Node
}

// DescribeNode returns a node as callers see it.
func DescribeNode(k *recovery.Node) task.Node {
	n := task.Node{
		Name: k.Name, Self: k.Self, Live: k.Live && !k.Gone, Quiet: k.Quiet, Released: k.Released, Silent: k.Silent + k.Looked, Unknown: k.Unseen && !k.Self, Incarnation: k.Incarnation,
		Process: k.Process, Version: k.Version, Address: k.Address, Shards: k.Shards, Held: k.Held, Adopted: k.Adopted,
		MissingSpools: k.MissingSpools, Spools: k.Spools,
	}
	var st task.NodeStatus
	if len(k.Status) > 0 && json.Unmarshal(k.Status, &st) == nil {
		n.Status = &st
	}
	return n
}

// Status returns what this node reports to others with each heartbeat, as JSON.
func (s *Cluster) Status() []byte {
	st := s.nodeStatus()
	b, _ := json.Marshal(&st)
	return b
}

func (s *Cluster) nodeStatus() task.NodeStatus {
	st := s.engine.NodeStatus()
	st.Clock = s.clockReading()
	st.DrainsFailed, st.DrainFault = s.Drain.failures()
	return st
}

// Nodes is tasks.Admin.Nodes.
func (s *Cluster) Nodes(ctx context.Context) ([]task.Node, error) {
	if s.engine.IsClosing() {
		return nil, task.ErrClosed
	}
	if s.engine.Fleet == nil {
		return s.describeNodes(nil), nil
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	known, err := s.engine.Fleet.Nodes(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return s.describeNodes(known), nil
}

// Seen lists the nodes as this node last saw them. It waits for the ledger only to learn how many
// shards those hold that are not there, and for GatherWithin at most; one of which it does not
// learn that counts as a holder. Before the ledger has told the nodes, there are none.
func (s *Cluster) Seen(ctx context.Context) []task.Node {
	if s.Fleet == nil {
		return s.describeNodes(nil)
	}
	known, err := s.fleetNodes(ctx)
	if err != nil {
		return nil
	}
	return s.describeNodes(known)
}

// describeNodes returns nodes as callers see them; without any, this node, whose ledger is its own.
func (s *Cluster) describeNodes(known []recovery.Node) []task.Node {
	st := s.nodeStatus()
	if known == nil {
		shards := s.engine.Terms.Shards
		return []task.Node{{Name: s.engine.Config.Node, Self: true, Live: true, Shards: shards, Held: shards, Status: &st}}
	}
	all := make([]task.Node, len(known))
	for i := range known {
		if all[i] = DescribeNode(&known[i]); known[i].Self {
			all[i].Status = &st
		}
	}
	return all
}

// Node is tasks.Admin.Node.
func (s *Cluster) Node(ctx context.Context, name string) (task.Node, error) {
	n, err := s.FindNode(ctx, name)
	keys, ok := s.engine.Ledger.(recovery.KeyLister)
	if err != nil || !ok {
		return n, err
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	stored, err := keys.Stored(ctx, n.Name, n.Shards)
	if err != nil {
		return n, fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	for _, shard := range stored {
		n.Stored = append(n.Stored, task.StoredShard(shard))
	}
	return n, nil
}

// FindNode returns the node of that name. Errors: those of Nodes, task.ErrNoNode.
func (s *Cluster) FindNode(ctx context.Context, name string) (task.Node, error) {
	all, err := s.Nodes(ctx)
	if err != nil {
		return task.Node{}, err
	}
	for _, n := range all {
		if n.Name == name {
			return n, nil
		}
	}
	return task.Node{}, task.ErrNoNode
}
