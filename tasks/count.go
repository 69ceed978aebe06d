package tasks

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// Bounds of counts, see package task.
const (
	MaxCountedTopics = task.MaxCountedTopics
	CountWithin      = task.CountWithin
	MinWithin        = task.MinWithin
	MaxWithin        = task.MaxWithin
)

// FleetCount counts the tasks that List would list, at all nodes, or at Query.Node, by topic and
// state. Dead and Finished need no topic; Limit, Cursor and Brief are not used. It takes as long as
// within says, 0 meaning CountWithin, and a little longer where other nodes are asked: what was not
// counted by then is missing, and Complete is false. Each node visits its tasks in memory once, a
// few thousand under one lock; callers that ask the same within a second share an answer.
//
// Errors: ErrInvalid, ErrNotGranted, ErrNoNode, ErrUnavailable, ErrClosed; why ctx has ended.
func (s Admin) FleetCount(ctx context.Context, q Query, within time.Duration) (TaskCounts, Reach, error) {
	node := q.Node
	ask, err := checkCount(ctx, q, within)
	if err != nil {
		return TaskCounts{}, Reach{}, err
	}
	if ask.List.Node = node; node != "" {
		if _, err := s.cluster.FindNode(ctx, node); err != nil {
			return TaskCounts{}, Reach{}, err
		}
	}
	p, reach, err := s.cluster.FleetSurvey(ctx, ask)
	if err != nil {
		return TaskCounts{}, Reach{}, err
	}
	if p.Counts == nil { // the only node that was asked is missing
		p.Counts = &TaskCounts{}
	}
	return *p.Counts, reach, nil
}

// Count is FleetCount of this node alone. Node must not be given. Errors: as of FleetCount.
func (s Admin) Count(ctx context.Context, q Query, within time.Duration) (TaskCounts, error) {
	if q.Node != "" {
		return TaskCounts{}, task.Invalid("node", "must not be given: only this node is asked")
	}
	ask, err := checkCount(ctx, q, within)
	if err != nil {
		return TaskCounts{}, err
	}
	p, err := s.cluster.NodeSurvey(ctx, ask)
	if err != nil {
		return TaskCounts{}, err
	}
	return *p.Counts, nil
}

// checkCount returns what a count asks for. Errors: ErrInvalid, ErrNotGranted.
func checkCount(ctx context.Context, q Query, within time.Duration) (*query.Survey, error) {
	if within == 0 {
		within = CountWithin
	}
	var f task.Faults
	if f.CheckWithin(within); f != nil {
		return nil, f.Err()
	}
	q.Node, q.Brief = "", false
	list, err := checkSelection(ctx, &q)
	if err != nil {
		return nil, err
	}
	return &query.Survey{Kind: query.SurveyCounts, List: list, Within: within}, nil
}
