package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// ListMethod lists tasks at all nodes.
var ListMethod = Method[query.List, listReply]{Name: "list", here: (*Cluster).listLocal, deadAlone: (*query.List).Buried}

type listReply struct {
	Coverage
	Tasks []query.Listed
	// Last is the last position looked at; nil: the list has ended.
	Last *recovery.Ref `json:",omitempty"`
}

// listLocal lists tasks of this node.
func (s *Cluster) listLocal(ctx context.Context, q query.List) (a listReply, err error) {
	if q.Limit < 1 || q.Limit > 1000 || q.Buried() && !task.ValidName(q.Topic) {
		return a, task.Invalid("limit", "must be from 1 to 1000")
	}
	var shards []int
	st, err := s.Covers(ctx, &a.Coverage, func(ctx context.Context) (err error) {
		if q.Node == "" || q.Node == s.NodeName() {
			a.Tasks, shards, a.Last, err = s.engine.ListPage(ctx, &q)
		}
		return err
	})
	a.Tasks = inSnapshot(a.Tasks, shards, st)
	return a, err
}

// ListAll lists the tasks of all nodes. The page ends at the first position behind which a node may
// have tasks that it has not listed.
func (s *Cluster) ListAll(ctx context.Context, q query.List) (page task.Page, err error) {
	var end *recovery.Ref
	if s.HasAll() {
		page.Tasks, end, err = s.engine.ListTasks(ctx, &q)
	} else {
		page.Tasks, end, err = s.listEverywhere(ctx, q)
	}
	if err != nil {
		return task.Page{}, err
	}
	if end != nil {
		page.Cursor = query.EncodeCursor(*end)
	}
	return page, nil
}

func (s *Cluster) listEverywhere(ctx context.Context, q query.List) (tasks []task.Task, end *recovery.Ref, err error) {
	q.Bytes = s.share(task.MaxPageBytes)
	var all []query.Listed
	err = everywhere(ctx, s, ListMethod, q, func(a *listReply, _ func(recovery.ShardID) bool) {
		all = append(all, a.Tasks...)
		if last := a.Last; last != nil && !q.Filter.Passed(last.Next) && (end == nil || query.CompareRefs(*last, *end) < 0) {
			end = last
		}
	})
	if err != nil {
		return nil, nil, err
	}
	all = query.Merge(all, end)
	if n := query.Fitting(all, q.Limit); n < len(all) {
		last := all[n-1].Ref()
		all, end = all[:n], &last
	}
	tasks = make([]task.Task, len(all))
	for i := range all {
		tasks[i] = all[i].Task
	}
	return tasks, end, nil
}
