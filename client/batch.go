package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Result is the outcome of one task of a batch.
type Result struct {
	// ID of the task; also of a task that was refused, if it has one.
	ID string
	// Problem is nil if the task was scheduled.
	Problem *Problem
	// Repeated: the task was there already, since the same request was accepted before. A server
	// that is older never says so.
	Repeated bool
	// Finished: the task that was there already is finished and kept, so nothing is scheduled.
	// Another ID makes a new task. A server that is older never says so.
	Finished bool
}

// ScheduleBatch schedules up to 10,000 tasks with one request. The server accepts or refuses each
// by itself: the results stand in the order of the requests. Tasks without an id get one, as with
// Schedule.
//
// The error is about the batch as a whole. Then no task was scheduled, or with ErrUnknown perhaps
// some. In that case the results carry the ids, with which the same batch may be sent again.
// Errors: ErrInvalid, ErrTooLarge, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrUnreachable.
func (c *Client) ScheduleBatch(ctx context.Context, requests []Request) ([]Result, error) {
	q := call{method: http.MethodPost, path: "/v1/tasks/batch", effect: same}
	results := make([]Result, len(requests))
	q.body = append(q.body, '[')
	for i, r := range requests {
		if r.ID == "" && c.retries >= 0 {
			r.ID = NewID()
		}
		if r.ID == "" {
			q.effect = again
		}
		text, err := r.encode()
		if err != nil {
			return nil, fmt.Errorf("task %d of the batch: %w", i, err)
		}
		if i > 0 {
			q.body = append(q.body, ',')
		}
		q.body = append(q.body, text...)
		results[i].ID = r.ID
	}
	q.body = append(q.body, ']')
	return c.batch(ctx, q, results)
}

// batch makes the call of a batch, and stores its answer beside the ids that the tasks have been
// given.
func (c *Client) batch(ctx context.Context, q call, results []Result) ([]Result, error) {
	var answer batchAnswer
	if _, err := c.do(ctx, q, &answer); err != nil {
		if !errors.Is(err, ErrUnknown) {
			return nil, err
		}
		if p := (*Problem)(nil); errors.As(err, &p) && len(p.IDs) == len(results) {
			for i, id := range p.IDs {
				results[i].ID = id
			}
		}
		return results, err
	}
	if len(answer.IDs) != len(results) {
		return nil, errors.New("the answer to a batch has another number of tasks than the batch")
	}
	for i, id := range answer.IDs {
		if id != "" {
			results[i].ID = id
		}
	}
	repeated, finished := setOf(answer.Repeated), setOf(answer.Finished)
	for i := range results {
		results[i].Repeated, results[i].Finished = repeated[results[i].ID], finished[results[i].ID]
	}
	for _, e := range answer.Errors {
		if e.Index < 0 || e.Index >= len(results) || e.Problem == nil {
			return nil, errors.New("the answer to a batch names a task that is not in it")
		}
		r := &results[e.Index]
		r.Problem, r.Repeated, r.Finished = e.Problem, false, false
		if e.ID != "" {
			r.ID = e.ID
		}
	}
	return results, nil
}

func setOf(ids []string) map[string]bool {
	set := make(map[string]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}
