package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// ScheduleBatch takes many tasks in, at most MaxBatch, with one wait for the
// ledger. Each request stands for itself and has its own Result, in order; an
// id that stands twice is an error of the second. The error is for the batch as a
// whole: ErrInvalid if it is too long.
func (s *Scheduler) ScheduleBatch(ctx context.Context, requests []Request) ([]Result, error) {
	if len(requests) > MaxBatch {
		return nil, &InvalidError{Fields: []FieldError{{"tasks", fmt.Sprintf("must be at most %d", MaxBatch)}}}
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	b := &batch{Scheduler: s, requests: requests, results: make([]Result, len(requests))}
	todo := b.distinct()
	for len(todo) > 0 {
		todo = b.round(ctx, todo)
	}
	return b.results, nil
}

// A batch is a ScheduleBatch under way. It goes in rounds: what had to wait for
// an earlier change of the same id, or for replay, comes again with the next one.
type batch struct {
	*Scheduler
	requests []Request
	results  []Result
	absent   map[string]bool // ids that were looked up in the ledger, in vain
}

// A delay is why a request must come again.
type delay struct {
	index  int
	busy   <-chan struct{} // closed when the earlier change is over; nil while replay runs
	wanted bool            // that change is the creation of this very task
}

// distinct returns the requests whose ids do not stand in the batch before.
func (b *batch) distinct() []int {
	todo := make([]int, 0, len(b.requests))
	seen := make(map[string]struct{})
	for i := range b.requests {
		id := b.requests[i].ID
		b.results[i].ID = id
		if _, twice := seen[id]; twice {
			b.results[i].Err = &InvalidError{Fields: []FieldError{{"id", "must not stand twice in one batch"}}}
			continue
		}
		if id != "" {
			seen[id] = struct{}{}
		}
		todo = append(todo, i)
	}
	return todo
}

// round creates what can be created and returns what must come again.
func (b *batch) round(ctx context.Context, todo []int) []int {
	c := newCall(len(b.requests))
	var delays []delay
	for part := range slices.Chunk(todo, atOnce) {
		delays = b.createSome(c, part, delays)
	}
	b.mu.Lock()
	c.complete()
	b.unlock()

	late := b.await(ctx, c)
	answers := b.answers(c)
	for _, i := range todo {
		if err := answers[i]; errors.Is(err, errOpen) {
			b.results[i].Err = late
		} else if err != nil {
			b.results[i].Err = err
		}
	}
	var again []int
	for _, d := range delays {
		if b.results[d.index].Err = b.wait(ctx, d); b.results[d.index].Err == nil {
			again = append(again, d.index)
		}
	}
	return again
}

// createSome checks a few requests without the lock and enters them under it.
func (b *batch) createSome(c *call, part []int, delays []delay) []delay {
	var plans [atOnce]plan
	for k, i := range part {
		p, err := b.plan(&b.requests[i])
		if err != nil {
			b.results[i].Err = err
			continue
		}
		p.absent = b.absent[p.id]
		b.results[i].ID, plans[k] = p.id, p
	}
	b.mu.Lock()
	for k, i := range part {
		if plans[k].rec == nil {
			continue
		}
		switch n, err := b.createLocked(&plans[k], c, i); {
		case errors.Is(err, errBusy):
			delays = append(delays, delay{index: i, busy: b.watchLocked(n), wanted: errors.Is(err, errWanted)})
		case errors.Is(err, ErrReplaying):
			delays = append(delays, delay{index: i})
		case !errors.Is(err, errRepeated):
			b.results[i].Err = err
		}
	}
	b.unlock()
	for k := range part {
		plans[k].release()
	}
	return delays
}

// wait waits until a request may come again.
func (b *batch) wait(ctx context.Context, d delay) error {
	if d.busy != nil {
		return b.waitCreated(ctx, d.busy, d.wanted)
	}
	id := b.requests[d.index].ID
	absent, err := b.seek(ctx, id)
	if absent {
		if b.absent == nil {
			b.absent = make(map[string]bool)
		}
		b.absent[id] = true
	}
	return err
}
