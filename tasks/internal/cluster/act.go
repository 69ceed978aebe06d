package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Act acts on tasks that are not dead, none of which may come twice, where they are now: with one
// call to each node that has some of them. It returns an answer for each: nil;
// query.ErrNotSelected if the act was not for it, or not any more; or an error of
// tasks.Scheduler.Cancel, of Reschedule or of Fire.
func (s *Cluster) Act(ctx context.Context, q *query.Act, targets []Target) []error {
	answers := make([]error, len(targets))
	if s.Fleet == nil {
		ids := make([]string, len(targets))
		for i := range targets {
			ids[i] = targets[i].ID
		}
		copy(answers, s.engine.Act(ctx, q, ids))
	} else {
		all := make([]item, len(targets))
		for i, t := range targets {
			all[i] = item{id: t.ID, node: t.Node}
		}
		s.each(ctx, all, func(some []*item) { s.actHere(ctx, q, some) },
			func(node string, some []*item) { s.actAt(ctx, node, q, some) })
		for i := range all {
			answers[i] = all[i].err
		}
	}
	var ids []string
	var gone []int
	for i, err := range answers {
		switch {
		case !errors.Is(err, task.ErrNotFound):
		case q.Select != nil:
			answers[i] = query.ErrNotSelected
		case q.Action == task.CancelAction && !errors.Is(err, engine.ErrFinished):
			ids, gone = append(ids, targets[i].ID), append(gone, i)
		}
	}
	for k, was := range s.CancelledBefore(ctx, ids) {
		if was {
			answers[gone[k]] = nil
		}
	}
	return answers
}

// actHere acts on tasks of this node.
func (s *Cluster) actHere(ctx context.Context, q *query.Act, some []*item) {
	for i, err := range s.engine.Act(ctx, q, idsOf(some)) {
		some[i].err = err
	}
}

// actAt has another node act on tasks.
func (s *Cluster) actAt(ctx context.Context, node string, q *query.Act, some []*item) {
	asked := actQuery{Act: *q, Tasks: make([]actTask, len(some)), Conditions: task.ConditionsOf(ctx)}
	for i, p := range some {
		asked.Tasks[i] = actTask{p.id, p.at.shardID}
	}
	a, err := Call(ctx, s, node, ActMethod, asked)
	if err == nil && len(a.Faults) != len(some) {
		err = fmt.Errorf("%w: node %s has answered for %d of %d tasks", task.ErrUnknown, node, len(a.Faults), len(some))
	}
	for i, p := range some {
		switch {
		case err != nil:
			p.err = err
		case a.Faults[i] != nil:
			p.err = a.Faults[i].Err(node, true)
		case i < len(a.Created) && a.Created[i] != 0:
			s.AddRecentCancel(p.id, a.Created[i])
		}
	}
}

// ActMethod acts on tasks at the node that owns them.
var ActMethod = Method[actQuery, actReply]{Name: "act", writes: true}

type (
	// An actQuery asks the node that owns some tasks to act on them.
	actQuery struct {
		query.Act
		Tasks      []actTask
		Conditions *task.Conditions `json:"Terms,omitempty"`
	}
	// An actTask is an IDQuery without conditions.
	actTask struct {
		ID      string
		ShardID recovery.ShardID `json:"Home,omitempty"`
	}
	// An actReply has an answer for each task; nil: it is done. After a cancel it has when each
	// task was created, in Unix ns; 0: it was not cancelled.
	actReply struct {
		Faults  []*WireError
		Created []int64 `json:",omitempty"`
	}
)

// handleAct acts on those of another node's tasks that belong here.
func (s *Cluster) handleAct(ctx context.Context, _ string, asked actQuery) (actReply, error) {
	q := &asked.Act
	switch q.Action {
	case task.CancelAction, task.MoveAction, task.FireAction, task.HoldAction, task.ResumeAction:
	default:
		return actReply{}, ErrNotUnderstood
	}
	if len(asked.Tasks) > task.MaxActs {
		return actReply{}, ErrNotUnderstood
	}
	all := make([]item, len(asked.Tasks))
	for i, t := range asked.Tasks {
		all[i] = s.itemAsked(t.ID, t.ShardID)
	}
	s.serve(ctx, asked.Conditions, all, func(ctx context.Context, some []*item) { s.actHere(ctx, q, some) })
	a := actReply{Faults: make([]*WireError, len(all))}
	for i := range all {
		if err := all[i].err; err != nil {
			a.Faults[i] = WireErrorOf(err)
		}
	}
	if q.Action == task.CancelAction && !q.Dry {
		a.Created = make([]int64, len(all))
		for i := range all {
			if all[i].err == nil {
				a.Created[i] = s.createdOfCancelled(all[i].id)
			}
		}
	}
	return a, nil
}

// createdOfCancelled returns when the task was created that this node has cancelled last of an id;
// 0 if it does not remember.
func (s *Cluster) createdOfCancelled(id string) int64 {
	if past := s.engine.Endings([]string{id})[0]; past.Kind == store.WasCancelled {
		return past.Created
	}
	return 0
}
