package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/task"
)

// ScheduleBatch takes many tasks in, at most MaxBatch, with one wait for the
// ledger. Each request stands for itself and has its own Result, in order; an
// id that stands twice is an error of the second. The error is for the batch as a
// whole: ErrInvalid if it is too long; ErrUnavailable.
func (s *Scheduler) ScheduleBatch(ctx context.Context, requests []Request) ([]Result, error) {
	return s.tracedBatch(ctx, requests, s.scheduleBatch)
}

// ReplaceBatch replaces or creates many tasks, at most MaxBatch, with one wait for the ledger. Each
// request is a Replace of its own, with its Result, in order; Result.Repeated reports whether there
// was a task to replace. Where an id stands more than once, the last of its requests is carried
// out, and those before it get its Result; one that is refused for a reason of its own leaves the
// id to the one before it. The error is for the batch as a whole, as of ScheduleBatch; it is
// ErrInvalid also for a context with a version, which is that of one task.
func (s *Scheduler) ReplaceBatch(ctx context.Context, requests []Request) ([]Result, error) {
	if task.ConditionsOf(ctx).Conditional() {
		return nil, task.Invalid("version", "must not be asked for by a batch")
	}
	return s.tracedBatch(ctx, requests, s.replaceBatch)
}

// tracedBatch carries out a batch, and makes a span of it.
func (s *Scheduler) tracedBatch(ctx context.Context, requests []Request, call func(context.Context, []Request) ([]Result, error)) ([]Result, error) {
	if len(requests) > MaxBatch {
		return nil, task.Invalid("tasks", fmt.Sprintf("must be at most %d", MaxBatch))
	}
	tracer := s.engine.Config.Tracer
	if tracer == nil {
		return call(ctx, requests)
	}
	trace, end := tracer.Schedule(ctx, requests)
	results, err := call(WithTrace(ctx, trace), requests)
	end(resultsOf(results, err))
	return results, err
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
	s.hideHolders(ctx, b)
	return b.Results, nil
}

func (s *Scheduler) replaceBatch(ctx context.Context, requests []Request) ([]Result, error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	by, err := s.engine.Admission(ctx)
	if err != nil {
		return nil, err
	}
	b := &cluster.Batch{Cluster: s.cluster, Requests: requests, Results: make([]Result, len(requests)), By: by, Replaces: true}
	todo, before := lastOfEach(requests)
	for i := range requests {
		b.Results[i].ID = requests[i].ID
	}
	for len(todo) > 0 {
		b.Run(ctx, todo)
		again := todo[:0]
		for _, i := range todo {
			r := &b.Results[i]
			r.Repeated = r.Repeated && r.Err == nil
			if before == nil || before[i] == 0 {
				continue
			}
			if r.Err != nil && !mayPass(r.Err) {
				again = append(again, before[i]-1)
				continue
			}
			// As if they had been carried out one after the other.
			answer := *r
			for n := before[i]; n > 0; n = before[n-1] {
				if err := b.Check(n - 1); err != nil {
					b.Results[n-1].Err = err
					continue
				}
				b.Results[i].Repeated = r.Err == nil
				i, b.Results[n-1] = n-1, answer
			}
		}
		todo = again
	}
	s.hideHolders(ctx, b)
	return b.Results, nil
}

func (s *Scheduler) hideHolders(ctx context.Context, b *cluster.Batch) {
	for i := range b.Results {
		// ErrExists tells no more than ErrTaken, and a look-up of each would take long.
		if r := &b.Results[i]; !errors.Is(r.Err, ErrExists) {
			r.Err = s.hideHolder(ctx, &b.Requests[i], r.Err)
		}
	}
}

// lastOfEach returns the last request of each id, and all without one. before has for each request
// the number, from 1, of the one before it with the same id, 0 if there is none; nil if no id
// stands twice.
func lastOfEach(requests []Request) (last, before []int) {
	last = make([]int, 0, len(requests))
	seen := make(map[string]int, len(requests))
	for i := range requests {
		id := requests[i].ID
		if id == "" {
			last = append(last, i)
			continue
		}
		k, twice := seen[id]
		if !twice {
			seen[id] = len(last)
			last = append(last, i)
			continue
		}
		if before == nil {
			before = make([]int, len(requests))
		}
		before[i], last[k] = last[k]+1, i
	}
	return last, before
}
