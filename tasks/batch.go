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
	if tracer := s.engine.Config.Tracer; tracer != nil {
		trace, end := tracer.Schedule(ctx, requests)
		results, err := s.scheduleBatch(WithTrace(ctx, trace), requests)
		end(resultsOf(results, err))
		return results, err
	}
	return s.scheduleBatch(ctx, requests)
}

// resultsOf returns the results of a batch, or the error that is that of all.
func resultsOf(results []Result, err error) []Result {
	if err != nil {
		return []Result{{Err: err}}
	}
	return results
}

func (s *Scheduler) scheduleBatch(ctx context.Context, requests []Request) ([]Result, error) {
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

// ReplaceBatch replaces or creates many tasks, at most MaxBatch. Each request is a Replace of its
// own, with its Result, in order; Result.Repeated reports whether there was a task to replace. If
// an id stands more than once, the last request that can be accepted wins, and those before it get
// its Result. The error is for the batch as a whole, as of ScheduleBatch.
func (s *Scheduler) ReplaceBatch(ctx context.Context, requests []Request) ([]Result, error) {
	if len(requests) > MaxBatch {
		return nil, task.Invalid("tasks", fmt.Sprintf("must be at most %d", MaxBatch))
	}
	results := make([]Result, len(requests))
	for i := range requests {
		t, err := s.Replace(ctx, requests[i])
		results[i] = Result{ID: t.ID, Err: err, Spooled: t.Spooled, Repeated: t.Repeated}
	}
	return results, nil
}
