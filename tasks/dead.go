package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// DeadTasks lists the dead tasks of a topic at all nodes, the longest dead first, 1 to 1,000
// at a time (0 means 100). Errors: as of List.
func (s *Scheduler) DeadTasks(ctx context.Context, topic string, limit int, cursor string) (Page, error) {
	if !task.ValidName(topic) {
		return Page{}, task.Invalid("topic", task.NameProblem)
	}
	return s.List(ctx, Query{Topic: topic, State: Dead, Limit: limit, Cursor: cursor})
}

// Requeue makes dead tasks of a topic pending again, at the nodes that have them, with a new
// deadline, the same for all of them, and all their attempts before them. Where it returns
// an error, what it tells about Requeued is right, but for what a node that has not answered
// may have done, and repeating the call does the rest.
//
// Errors: ErrInvalid, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrClosed; with several nodes
// also ErrNodeAway and ErrReplaying, as of Purge.
func (s *Scheduler) Requeue(ctx context.Context, topic string, r Requeue) (Requeued, error) {
	if err := engine.Granted(ctx, topic); err != nil {
		return Requeued{}, err
	}
	var f task.Faults
	if !task.ValidName(topic) {
		f.Add("topic", task.NameProblem)
	}
	q := query.Redrive{Topic: topic, All: r.IDs == nil, IDs: r.IDs}
	if !r.Due.IsZero() || r.Delay != 0 {
		q.Due = engine.Deadline(&f, s.engine.Config.Clock(), r.Due, r.Delay)
	}
	if err := f.Err(); err != nil {
		return Requeued{}, err
	}
	done, err := s.cluster.Redrive(ctx, q)
	if err != nil {
		return Requeued{Requeued: done.Done}, err
	}
	return Requeued{Requeued: done.Done, Unknown: done.Unknown}, nil
}

// DeleteDead deletes dead tasks of a topic, at the nodes that have them: those with the given
// ids, or all if ids is nil. It returns how many; ids that are not among the topic's dead are
// passed over. Errors: as of Requeue, but that ErrOverloaded only comes when too many calls
// between nodes are under way; then some may be done already.
func (s *Scheduler) DeleteDead(ctx context.Context, topic string, ids []string) (int, error) {
	if err := engine.Granted(ctx, topic); err != nil {
		return 0, err
	}
	if !task.ValidName(topic) {
		return 0, task.Invalid("topic", task.NameProblem)
	}
	r, err := s.cluster.Redrive(ctx, query.Redrive{Topic: topic, Delete: true, All: ids == nil, IDs: ids})
	return r.Done, err
}
