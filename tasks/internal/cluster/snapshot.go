package cluster

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A call about many tasks (a list, a purge, a group that is cancelled, the dead of a topic)
// is about those of all nodes. Its caller asks one node and gets an answer for all of them, or
// an error. It goes by shards, since these change hands while the nodes are being asked:
//
//   - The node that was asked reads from the registry which shards there are, and puts the same
//     call to all nodes that live at the same time, itself included: one that holds nothing
//     may have spooled tasks. No other node knows what is in the spool of a silent one: a call
//     that is about spooled tasks, too, fails until that node is back or has left the registry.
//   - Each does it to all tasks that it has, and answers which shards that covers: those
//     that it held, with all their tasks in memory, from before it began until after it had
//     ended, in one term. Shards that come or go meanwhile are not covered.
//   - The node that was asked looks up the holders only of shards that no answer has covered, and
//     calls these holders, until no shard is left. So the cost of a call in Redis does not grow
//     with the number of shards. A shard that no node holds because it was empty needs no answer;
//     the shard of a dead node waits until it is adopted.
//
// For example: of three nodes, b hands a shard to c while a group is being cancelled. If c
// has been asked before it acquired the shard, and b after it had lost it, neither covers it;
// a finds it at c then, and asks c once more. If both cover it, one after the other, what is
// counted of it is that of the answer which came first, and what both list is listed once.
//
// Long operations answer after about half of Config.AnswerWithin with More set and are called
// again. No single call is older than a few seconds; the whole may run as long as it makes
// progress. An error comes with what was done before it. Repeating the call does the rest, as
// everything here may be repeated.
//
// A single node asks no other and looks nothing up: see NoPeers. It learns of another
// one within a twentieth of the failover time.

// A Coverage is the part of every answer that says which shards it covers.
type Coverage struct {
	Covered []recovery.ShardID `json:",omitempty"` // shards whose tasks it is about, all of them
	More    bool               `json:",omitempty"` // there is more to be done: call again
	Fault   *WireError         `json:",omitempty"` // why it ended before that
}

func (c *Coverage) cover() *Coverage { return c }

// Covers runs an operation on all tasks of this node, and enters into its answer the shards that it
// covers: see engine.Covering.
func (s *Cluster) Covers(ctx context.Context, c *Coverage, do func(ctx context.Context) error) (st engine.Snapshot, err error) {
	st, c.Covered, err = s.engine.Covering(ctx, do)
	return st, err
}

// inSnapshot returns those of all whose shards, in the same order, are in a snapshot.
func inSnapshot[T any](all []T, shards []int, st engine.Snapshot) []T {
	kept := all[:0]
	for i, t := range all {
		if _, ok := st[shards[i]]; ok {
			kept = append(kept, t)
		}
	}
	return kept
}

// A coveringReply is a pointer to a reply of a method that is called at all nodes.
type coveringReply[A any] interface {
	*A
	cover() *Coverage
}

// handleAll is Handle for a method that is called at all nodes: an error travels with the reply
// about what was done before.
func handleAll[Q, A any, P coveringReply[A]](m Method[Q, A]) (string, RPCHandler) {
	return Handle(m, func(s *Cluster, ctx context.Context, _ string, query Q) (A, error) {
		a, err := m.here(s, ctx, query)
		switch c := P(&a).cover(); {
		case errors.Is(err, task.ErrClosed):
			c.Fault = WireErrorOf(errNotMine) // and soon another node's
		case err != nil:
			c.Fault = WireErrorOf(err)
		}
		return a, nil
	})
}
