package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/lapsehq/lapse/tasks/internal/engine"
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

// fileAll files the ids that a round has entered, with one question to the directory,
// and sends the first writes of those tasks.
func (b *batch) fileAll(ctx context.Context, r *round) {
	if len(r.unfiled) == 0 {
		return
	}
	b.register(ctx, r.unfiled)
	for part := range slices.Chunk(r.unfiled, engine.AtOnce) {
		b.engine.Mu.Lock()
		for _, f := range part {
			err := b.confirmLocked(f, r.PendingWrite)
			switch {
			case err == nil:
			case errors.Is(err, errStale):
				if b.stale == nil {
					b.stale = make(map[string]engine.StaleEntry)
				}
				b.stale[f.id] = f.stale
				delete(b.notFound, f.id) // of the shard where it is filed
				r.again = append(r.again, f.index)
			default:
				b.refuse(r, f.index, err)
			}
		}
		b.engine.Unlock()
	}
}

// moving returns the requests whose shards have to be looked for again, after a moment.
func (b *batch) moving(ctx context.Context, todo []int) []int {
	var moving []int
	for _, i := range todo {
		if passing(b.results[i].Err) {
			moving = append(moving, i)
		}
	}
	if len(moving) == 0 || b.forwarded {
		return nil
	}
	clear(b.stale)
	again := b.pause(ctx, b.tries)
	b.tries++
	for _, i := range moving {
		if err := &b.results[i].Err; again {
			*err = nil
		} else {
			*err = final(*err)
		}
	}
	if !again {
		return nil
	}
	return moving
}

// forward has others create what belongs to them: one message for each node, or several
// if that would be too long.
func (b *batch) forward(ctx context.Context, forwarded []forwardedRequest) {
	if err := b.lookAgain(ctx, forwarded); err != nil {
		for _, t := range forwarded {
			b.results[t.index].Err = err
		}
		return
	}
	b.lookInSpools(ctx, forwarded)
	groups := make(map[string][]requestQuery)
	indices := make(map[string][]int)
	for _, t := range forwarded {
		if b.results[t.index].Err != nil {
			continue
		}
		at, err := b.holderOf(ctx, t.elsewhere, b.tries > 0)
		if b.results[t.index].Err = err; err != nil {
			continue
		}
		wanted := b.requests[t.index]
		wanted.ID = b.results[t.index].ID
		groups[at.node] = append(groups[at.node], aboutRequest(wanted, at.shardID))
		indices[at.node] = append(indices[at.node], t.index)
	}
	var group sync.WaitGroup
	for node, all := range groups {
		for len(all) > 0 {
			n, size := 0, 0
			for n < min(len(all), sentAtOnce) && size < sentBytes {
				size += len(all[n].Request.Payload)
				n++
			}
			part, at := all[:n], indices[node][:n]
			all, indices[node] = all[n:], indices[node][n:]
			group.Go(func() { b.forwardTo(ctx, node, part, at) })
		}
	}
	group.Wait()
}

// lookAgain looks up, with one question for all, where the ids are that the holders of their
// shards did not create with the first attempt.
func (b *batch) lookAgain(ctx context.Context, forwarded []forwardedRequest) error {
	var es []*elsewhere
	var ids []string
	for _, t := range forwarded {
		if t.unregistered && b.tries > 0 {
			es, ids = append(es, t.elsewhere), append(ids, b.results[t.index].ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return b.lookElsewhere(ctx, es, ids)
}

// lookInSpools finds, for a second attempt, those that a node has spooled whose shards others
// hold: the holders have found out with the first.
func (b *batch) lookInSpools(ctx context.Context, forwarded []forwardedRequest) {
	if b.tries == 0 {
		return
	}
	ids := make([]string, len(forwarded))
	for i, t := range forwarded {
		ids[i] = b.results[t.index].ID
	}
	for i, found := range b.querySpools(ctx, ids) {
		if b.results[forwarded[i].index].Err = found.err; found.node != "" {
			*forwarded[i].elsewhere = elsewhere{node: found.node}
		}
	}
}

func (b *batch) forwardTo(ctx context.Context, node string, part []requestQuery, at []int) {
	a, err := call(ctx, b.Scheduler, node, batchMethod, batchQuery{part, encodeTerms(ctx)})
	if err == nil && len(a.Results) != len(part) {
		err = fmt.Errorf("%w: node %s has answered for %d of %d tasks", ErrUnknown, node, len(a.Results), len(part))
	}
	for k, i := range at { // which no other goroutine touches
		if err != nil {
			b.results[i].Err = err
		} else if f := a.Results[k].Fault; f != nil {
			b.results[i].Err = f.err(node, true)
		}
	}
}

// handleBatch creates those of another node's requests that belong here.
func (s *Scheduler) handleBatch(ctx context.Context, _ string, q batchQuery) (batchReply, error) {
	if len(q.Requests) > MaxBatch {
		return batchReply{}, errNotUnderstood
	}
	ctx, cancel := s.engine.Within(q.Terms.in(ctx))
	defer cancel()
	by, err := s.engine.Admission(ctx)
	if err != nil {
		return batchReply{}, err
	}
	b := &batch{Scheduler: s, forwarded: true, by: by, requests: make([]Request, len(q.Requests)), results: make([]Result, len(q.Requests))}
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
