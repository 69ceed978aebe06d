package cluster

import (
	"context"
	"slices"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A forwardedRequest is a request of a batch whose task belongs elsewhere.
type forwardedRequest struct {
	index int
	*engine.Elsewhere
}

const (
	// Of one message to another node: how many tasks, and about how many bytes.
	sentAtOnce, sentBytes = 1000, 1 << 20
)

// handleBatch creates those of another node's requests that belong here.
func (s *Cluster) handleBatch(ctx context.Context, _ string, q batchQuery) (batchReply, error) {
	if len(q.Requests) > task.MaxBatch {
		return batchReply{}, ErrNotUnderstood
	}
	ctx, cancel := s.engine.Within(q.Conditions.in(ctx))
	defer cancel()
	by, err := s.engine.Admission(ctx)
	if err != nil {
		return batchReply{}, err
	}
	b := &Batch{Cluster: s, forwarded: true, By: by, Requests: make([]task.Request, len(q.Requests)), Results: make([]task.Result, len(q.Requests))}
	for i := range q.Requests {
		b.Requests[i] = q.Requests[i].Request.decode()
	}
	todo := b.Distinct()
	todo = slices.DeleteFunc(todo, func(i int) bool {
		if id := b.Requests[i].ID; id != "" && s.owns(id, q.Requests[i].ShardID) {
			return false
		}
		b.Results[i].Err = errNotMine
		return true
	})
	b.Run(ctx, todo)
	a := batchReply{Results: make([]wireResult, len(b.Results))}
	for i, r := range b.Results {
		a.Results[i].ID, a.Results[i].Repeated = r.ID, r.Repeated && r.Err == nil
		if r.Err != nil {
			a.Results[i].Fault = WireErrorOf(owning(r.Err))
		}
	}
	return a, nil
}
