package httpapi

import (
	"bytes"
	"context"
	"fmt"

	"github.com/lapsehq/lapse/tasks"
)

// BatchAnswer reports the outcome of each task of a batch.
type BatchAnswer struct {
	Accepted int          `json:"accepted" doc:"How many tasks were scheduled."`
	IDs      []string     `json:"ids" nullable:"false" doc:"The id of each task, in the order of the batch; empty for a task that was not scheduled."`
	Errors   []BatchError `json:"errors" nullable:"false" doc:"The tasks that were not scheduled, in the order of the batch."`
	Repeated []string     `json:"repeated,omitempty" doc:"The ids of scheduled tasks that were there already, since the same request was accepted before. Left out if there are none."`
	Finished []string     `json:"finished,omitempty" doc:"Those of repeated whose task is finished and kept: nothing is scheduled for them. Left out if there are none."`
	Spooled  []string     `json:"spooled,omitempty" doc:"The ids of scheduled tasks that are spooled: only the disk of this node has them yet. Left out if there are none."`
}

// BatchError reports why a task of a batch was not scheduled.
type BatchError struct {
	Index   int      `json:"index" doc:"Its place in the batch, from 0."`
	ID      string   `json:"id,omitempty" doc:"Its id, unless the id is the fault."`
	Problem *Problem `json:"problem"`
}

// A batch is a decoded body on its way to the scheduler.
type batch struct {
	limit    payloadLimit
	requests []tasks.Request
	index    []int // of each request in the body
	size     int   // tasks in the body
	errors   []BatchError
}

// batch answers POST /v1/tasks/batch.
func (s *Server) batch(ctx context.Context, in *request) (*reply[BatchAnswer], error) {
	media, err := mediaType(in.gin, mediaJSON, mediaNDJSON)
	if err != nil {
		return nil, err
	}
	data, err := readBody(in.gin)
	if err != nil {
		return nil, err
	}
	b := &batch{limit: s.maxPayload, requests: make([]tasks.Request, 0, min(len(data)/128+1, tasks.MaxBatch))}
	if media == mediaJSON {
		err = b.array(data)
	} else {
		err = b.lines(data)
	}
	if err != nil {
		return nil, err
	}
	var results []tasks.Result
	if len(b.requests) > 0 {
		if results, err = s.creator.ScheduleBatch(withTrace(ctx, in.gin.Request), b.requests); err != nil {
			return nil, err
		}
	}
	answer, err := b.answer(results)
	if err != nil {
		return nil, err
	}
	return &reply[BatchAnswer]{*answer}, nil
}

// array decodes a JSON array.
func (b *batch) array(data []byte) error {
	s := scan(data)
	for range s.array("") {
		if err := b.add(s); err != nil {
			return err
		}
	}
	return s.done()
}

// lines decodes one task a line. Empty lines do not count.
func (b *batch) lines(data []byte) error {
	number := 0
	for line := range bytes.Lines(data) {
		number++
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		s := scan(line)
		if err := b.add(s); err != nil {
			return err
		}
		if s.end(); s.err != nil {
			return malformed.with(fmt.Sprintf("line %d is %s", number, s.err))
		}
	}
	return nil
}

// explained is for how many wrong tasks of a batch all faults are reported. For each wrong task
// after those only one fault is reported, so that a small body does not cause a large answer.
const explained = 1000

// add decodes one task. A fault of the task is recorded for it; only the limit ends the batch.
func (b *batch) add(s *scanner) error {
	if b.size == tasks.MaxBatch {
		return invalidField("body", fmt.Sprintf("must hold at most %d tasks", tasks.MaxBatch))
	}
	var r tasks.Request
	s.task(&r)
	if s.err != nil {
		return nil // the caller reads s.err
	}
	index := b.size
	b.size++
	if len(s.faults) > 0 {
		if len(b.errors) >= explained {
			s.faults = s.faults[:1]
		}
		b.errors = append(b.errors, BatchError{index, plainID(r.ID), invalidFields(s.faults)})
		s.faults = s.faults[:0]
		return nil
	}
	if err := b.limit.check(r.Payload); err != nil {
		b.errors = append(b.errors, BatchError{index, r.ID, problemOf(err)})
		return nil
	}
	b.requests = append(b.requests, r)
	b.index = append(b.index, index)
	return nil
}

// answer puts the results in the order of the body.
func (b *batch) answer(results []tasks.Result) (*BatchAnswer, error) {
	a := &BatchAnswer{IDs: make([]string, b.size), Errors: make([]BatchError, 0, len(b.errors))}
	early := b.errors
	for i, r := range results {
		for len(early) > 0 && early[0].Index < b.index[i] {
			a.Errors, early = append(a.Errors, early[0]), early[1:]
		}
		if r.Err == nil {
			a.Accepted++
			a.IDs[b.index[i]] = r.ID
			if r.Repeated {
				a.Repeated = append(a.Repeated, r.ID)
			}
			if r.Finished {
				a.Finished = append(a.Finished, r.ID)
			}
			if r.Spooled {
				a.Spooled = append(a.Spooled, r.ID)
			}
			continue
		}
		id := r.ID // the scheduler has made the id of a task that had none
		p := problemOf(r.Err)
		if p == nil {
			return nil, fmt.Errorf("task %d of a batch: %w", b.index[i], r.Err)
		}
		a.Errors = append(a.Errors, BatchError{b.index[i], plainID(id), p.withID(id)})
	}
	a.Errors = append(a.Errors, early...)
	if p := a.outage(results); p != nil {
		return nil, p
	}
	return a, nil
}

// plainID returns an id that is safe to repeat in an answer, or "".
func plainID(id string) string {
	if len(id) > tasks.MaxIDBytes || !validRequestID(id) {
		return ""
	}
	return id
}

// outage returns the problem of the whole batch if no task was scheduled, for one reason that will
// pass. A caller that reads only the status should learn of it.
func (a *BatchAnswer) outage(results []tasks.Result) *Problem {
	if a.Accepted > 0 || len(a.Errors) == 0 {
		return nil
	}
	first := a.Errors[0].Problem
	for _, e := range a.Errors {
		if e.Problem.retryAfter == 0 || e.Problem.Type != first.Type {
			return nil
		}
	}
	p := *first
	if p.ID != "" {
		p.ID = ""
		for _, r := range results {
			p.IDs = append(p.IDs, r.ID)
		}
	}
	return &p
}
