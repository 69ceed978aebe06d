package cluster

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// SelectMethod selects tasks at all nodes.
var SelectMethod = Method[query.List, selectReply]{Name: "select", here: (*Cluster).selectLocal, deadAlone: (*query.List).Buried}

// A selectReply has the positions of tasks, without their content.
type selectReply struct {
	Coverage
	Node string // that has them
	Refs []recovery.Ref
	Last *recovery.Ref `json:",omitempty"` // as of a listReply
}

// A Target is a task that was selected, and the node that had it then; empty: it is not known.
type Target struct{ ID, Node string }

// Select returns the first tasks behind q.After that a query selects at all nodes, up to q.Limit of
// them, which may be as many as query.LooksAtOnce. It also returns the position behind which there
// may be more, nil if there are none. Errors: those of ListAll, and ErrReplaying.
func (s *Cluster) Select(ctx context.Context, q query.List) (some []Target, end *recovery.Ref, err error) {
	var all []query.Listed
	take := func(node string, refs []recovery.Ref) {
		for _, at := range refs {
			all = append(all, query.Listed{Task: task.Task{ID: at.ID, Node: node}, At: at.Next})
		}
	}
	if s.HasAll() {
		var refs []recovery.Ref
		refs, _, end, err = s.engine.ListPositions(ctx, &q)
		take("", refs)
	} else {
		err = everywhere(ctx, s, SelectMethod, q, func(a *selectReply, _ func(recovery.ShardID) bool) {
			take(a.Node, a.Refs)
			if last := a.Last; last != nil && (end == nil || query.CompareRefs(*last, *end) < 0) {
				end = last
			}
		})
		all = query.Merge(all, end)
	}
	if err != nil {
		return nil, nil, err
	}
	if len(all) > q.Limit {
		last := all[q.Limit-1].Ref()
		all, end = all[:q.Limit], &last
	}
	some = make([]Target, len(all))
	for i := range all {
		some[i] = Target{all[i].Task.ID, all[i].Task.Node}
	}
	return some, end, nil
}

// selectLocal selects tasks of this node.
func (s *Cluster) selectLocal(ctx context.Context, q query.List) (a selectReply, err error) {
	if q.Limit < 1 || q.Limit > query.LooksAtOnce || q.Buried() && !task.ValidName(q.Topic) {
		return a, task.Invalid("limit", fmt.Sprintf("must be from 1 to %d", query.LooksAtOnce))
	}
	a.Node = s.NodeName()
	var shards []int
	st, err := s.Covers(ctx, &a.Coverage, func(ctx context.Context) (err error) {
		a.Refs, shards, a.Last, err = s.engine.ListPositions(ctx, &q)
		return err
	})
	a.Refs = inSnapshot(a.Refs, shards, st)
	return a, err
}
