package tasks

import (
	"context"
	"slices"
)

// A forwardedRequest is a request of a batch whose task belongs elsewhere.
type forwardedRequest struct {
	index int
	*elsewhere
}

const (
	// Of one message to another node: how many tasks, and about how many bytes.
	sentAtOnce, sentBytes = 1000, 1 << 20
)

// handleBatch creates those of another node's requests that belong here.
func (s *cluster) handleBatch(ctx context.Context, _ string, q batchQuery) (batchReply, error) {
	if len(q.Requests) > MaxBatch {
		return batchReply{}, errNotUnderstood
	}
	ctx, cancel := s.engine.Within(q.Terms.in(ctx))
	defer cancel()
	by, err := s.engine.Admission(ctx)
	if err != nil {
		return batchReply{}, err
	}
	b := &batch{cluster: s, forwarded: true, by: by, requests: make([]Request, len(q.Requests)), results: make([]Result, len(q.Requests))}
	for i := range q.Requests {
		b.requests[i] = q.Requests[i].Request
	}
	todo := b.distinct()
	todo = slices.DeleteFunc(todo, func(i int) bool {
		if id := b.requests[i].ID; id != "" && s.owns(id, q.Requests[i].Home) {
			return false
		}
		b.results[i].Err = errNotMine
		return true
	})
	b.run(ctx, todo)
	a := batchReply{Results: make([]wireResult, len(b.results))}
	for i, r := range b.results {
		a.Results[i].ID = r.ID
		if r.Err != nil {
			a.Results[i].Fault = wireErrorOf(owning(r.Err))
		}
	}
	return a, nil
}
