package cluster

import (
	"cmp"
	"context"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// ListMethod lists tasks at all nodes.
var ListMethod = Method[engine.ListQuery, listReply]{Name: "list", here: (*Cluster).listLocal, deadAlone: listsBuried}

func listsBuried(q *engine.ListQuery) bool { return engine.ListsBuried(q.State) }

type listReply struct {
	Coverage
	Tasks []engine.Listed
	// Last is the last position looked at; nil: the list has ended.
	Last *recovery.Ref `json:",omitempty"`
}

// listLocal lists tasks of this node.
func (s *Cluster) listLocal(ctx context.Context, q engine.ListQuery) (a listReply, err error) {
	if q.Limit < 1 || q.Limit > 1000 || engine.ListsBuried(q.State) && !task.ValidName(q.Topic) {
		return a, task.Invalid("limit", "must be from 1 to 1000")
	}
	most := min(cmp.Or(q.Bytes, task.MaxPageBytes), task.MaxPageBytes)
	var shards []int
	st, err := s.Covers(ctx, &a.Coverage, func(ctx context.Context) (err error) {
		if q.Node != "" && q.Node != s.NodeName() {
			return nil
		}
		size := 0
		a.Last, err = s.engine.VisitPage(ctx, &q, func(t task.Task, at int64, shard int) bool {
			a.Tasks, shards = append(a.Tasks, engine.Listed{Task: t, At: at}), append(shards, shard)
			size += engine.SizeOf(&t)
			return size < most
		})
		return err
	})
	a.Tasks = inSnapshot(a.Tasks, shards, st)
	return a, err
}

// ListAll merges the lists of all nodes. The page ends at the first position behind which a node
// may have tasks that it has not listed.
func (s *Cluster) ListAll(ctx context.Context, q engine.ListQuery) (task.Page, error) {
	q.Bytes = s.share(task.MaxPageBytes)
	var all []engine.Listed
	var end *recovery.Ref
	err := everywhere(ctx, s, ListMethod, q, func(a *listReply, _ func(recovery.ShardID) bool) {
		all = append(all, a.Tasks...)
		if last := a.Last; last != nil && !q.Filter.Passed(last.Next) && (end == nil || engine.CompareRefs(*last, *end) < 0) {
			end = last
		}
	})
	if err != nil {
		return task.Page{}, err
	}
	all = merged(all, end)
	if n := fitting(all, q.Limit); n < len(all) {
		last := all[n-1].Ref()
		all, end = all[:n], &last
	}
	page := task.Page{Tasks: make([]task.Task, len(all))}
	for i := range all {
		page.Tasks[i] = all[i].Task
	}
	if end != nil {
		page.Cursor = engine.EncodeCursor(*end)
	}
	return page, nil
}

// merged puts what the nodes have listed in order, each task once, and drops what is behind end.
func merged(all []engine.Listed, end *recovery.Ref) []engine.Listed {
	slices.SortFunc(all, func(a, b engine.Listed) int { return engine.CompareRefs(a.Ref(), b.Ref()) })
	// A task appears twice if its shard moved, or if its node was called again.
	seen := make(map[string]bool, len(all))
	all = slices.DeleteFunc(all, func(t engine.Listed) bool {
		conflicting := seen[t.Task.ID]
		seen[t.Task.ID] = true
		return conflicting
	})
	if end != nil {
		n, _ := slices.BinarySearchFunc(all, *end, func(t engine.Listed, end recovery.Ref) int { return cmp.Or(engine.CompareRefs(t.Ref(), end), -1) })
		all = all[:n]
	}
	return all
}

// fitting returns how many of the first tasks make a page. A node whose budget is small
// answers one task all the same, and one that was asked again answers twice: so together
// they may be more than a page.
func fitting(all []engine.Listed, limit int) int {
	size := 0
	for i := range all {
		if i == limit || size >= task.MaxPageBytes {
			return i
		}
		size += engine.SizeOf(&all[i].Task)
	}
	return len(all)
}
