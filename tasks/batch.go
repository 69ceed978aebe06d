package tasks

import (
	"context"
	"errors"
	"fmt"
)

// ScheduleBatch takes many tasks in, at most MaxBatch, with one wait for the
// ledger. Each request stands for itself and has its own Result, in order; an
// id that stands twice is an error of the second. The error is for the batch as a
// whole: ErrInvalid if it is too long, ErrClosed.
func (s *Scheduler) ScheduleBatch(ctx context.Context, requests []Request) ([]Result, error) {
	if len(requests) > MaxBatch {
		return nil, &InvalidError{Fields: []FieldError{{"tasks", fmt.Sprintf("must be at most %d", MaxBatch)}}}
	}
	results := make([]Result, len(requests))
	seen := make(map[string]struct{})
	call := newCall(len(requests))
	var later []int // ids that are busy or not replayed yet: one by one, afterwards

	const atOnce = 128 // so that others get the lock in between
	for first := 0; first < len(requests); first += atOnce {
		end := min(first+atOnce, len(requests))
		var plans [atOnce]plan
		for i := first; i < end; i++ {
			r := &requests[i]
			results[i].ID = r.ID
			if _, twice := seen[r.ID]; twice && r.ID != "" {
				results[i].Err = &InvalidError{Fields: []FieldError{{"id", "must not stand twice in one batch"}}}
				continue
			}
			p, err := s.plan(r)
			if err != nil {
				results[i].Err = err
				continue
			}
			if p.chosen {
				seen[p.id] = struct{}{}
			}
			results[i].ID, plans[i-first] = p.id, p
		}
		s.mu.Lock()
		for i := first; i < end; i++ {
			p := &plans[i-first]
			if p.rec == nil {
				continue
			}
			switch _, err := s.createLocked(p, call, i); {
			case errors.Is(err, errBusy), errors.Is(err, ErrReplaying):
				later = append(later, i)
			case !errors.Is(err, errRepeated):
				results[i].Err = err
			}
		}
		if end == len(requests) {
			call.complete()
		}
		s.unlock()
		for i := range plans {
			plans[i].release()
		}
	}
	if len(requests) == 0 {
		return results, nil
	}
	late := s.await(ctx, call)
	s.mu.Lock()
	for i := range results {
		if err := call.errs[i]; errors.Is(err, errOpen) {
			results[i].Err = late
		} else if err != nil {
			results[i].Err = err
		}
	}
	s.mu.Unlock()
	for _, i := range later {
		_, results[i].Err = s.Schedule(ctx, requests[i])
	}
	return results, nil
}
