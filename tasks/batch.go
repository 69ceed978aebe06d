package tasks

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/task"
)

// ScheduleBatch takes many tasks in, at most MaxBatch, with one wait for the
// ledger. Each request stands for itself and has its own Result, in order; an
// id that stands twice is an error of the second. The error is for the batch as a
// whole: ErrInvalid if it is too long; ErrUnavailable.
func (s *Scheduler) ScheduleBatch(ctx context.Context, requests []Request) ([]Result, error) {
	if len(requests) > MaxBatch {
		return nil, task.Invalid("tasks", fmt.Sprintf("must be at most %d", MaxBatch))
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	by, err := s.engine.Admission(ctx)
	if err != nil {
		return nil, err
	}
	b := &cluster.Batch{Cluster: s.cluster, Requests: requests, Results: make([]Result, len(requests)), By: by}
	b.Run(ctx, b.Distinct())
	return b.Results, nil
}
