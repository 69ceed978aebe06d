package tasks

import (
	"context"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// loadGraves learns which ids are dead, and how many of which topic.
func (s *Scheduler) loadGraves(ctx context.Context) error {
	return s.ledger.ListDead(ctx, "", recovery.Ref{}, func(e recovery.Entry) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h := s.holdingLocked(e.Shard); h.mine() && h.stage != gained {
			s.enterGraveLocked(s.keptTopic([]byte(e.Spot.Label)), e.Shard, e.ID, e.Spot.At)
		}
		return true
	})
}

// DeadTasks lists the dead tasks of a topic, the longest dead first, 1 to 1,000
// at a time (0 means 100). Errors: ErrInvalid, ErrUnavailable, ErrClosed.
func (s *Scheduler) DeadTasks(ctx context.Context, topic string, limit int, cursor string) (Page, error) {
	if !validName(topic) {
		return Page{}, &InvalidError{Fields: []FieldError{{"topic", nameProblem}}}
	}
	limit, after, err := pageBounds(limit, cursor)
	if err != nil {
		return Page{}, err
	}
	if s.isClosing() {
		return Page{}, ErrClosed
	}
	var page Page
	var last recovery.Ref
	more := false
	err = s.ledger.ListDead(ctx, topic, after, func(e recovery.Entry) bool {
		if len(page.Tasks) == limit {
			more = true
			return false
		}
		last = recovery.Ref{ID: string(e.ID), Next: e.Spot.At}
		if f, err := decode(e.Data); err == nil {
			page.Tasks = append(page.Tasks, s.describe(last.ID, &f, Dead))
		}
		return true
	})
	if err != nil {
		return Page{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if more {
		page.Cursor = encodeCursor(last)
	}
	return page, nil
}

// A Requeue says which dead tasks of a topic come back, and when.
type Requeue struct {
	// IDs are those of the tasks; nil means all of the topic.
	IDs []string
	// Due is their new deadline, or Delay the time until then, as in a Request: at most
	// MaxAhead from now, not both; both zero means now.
	Due   time.Time
	Delay time.Duration
}

// Requeued tells what a Requeue has done.
type Requeued struct {
	Requeued int
	// Unknown are those of the given ids that are not among the dead of the topic.
	Unknown []string
}

// Requeue makes dead tasks of a topic pending again, with a new deadline, the same for
// all of them, and all their attempts before them. Where it returns an error, what it
// tells about Requeued is right, and repeating the call does the rest.
//
// Errors: ErrInvalid, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrClosed.
func (s *Scheduler) Requeue(ctx context.Context, topic string, r Requeue) (Requeued, error) {
	var f faults
	if !validName(topic) {
		f.add("topic", nameProblem)
	}
	x := exhumation{Scheduler: s, topic: topic, op: opRequeue}
	if r.Due.IsZero() && r.Delay == 0 {
		x.due = s.now() // which is past, and so due at once
	} else {
		x.due = f.deadline(s.cfg.Clock(), r.Due, r.Delay)
	}
	if err := f.err(); err != nil {
		return Requeued{}, err
	}
	if r.IDs == nil {
		err := x.all(ctx)
		return Requeued{Requeued: x.done}, err
	}
	if err := x.these(ctx, r.IDs); err != nil {
		return Requeued{Requeued: x.done}, err
	}
	return Requeued{Requeued: x.done, Unknown: x.passed}, nil
}

// DeleteDead deletes dead tasks of a topic: those with the given ids, or all if ids is
// nil. It returns how many; ids that are not among the topic's dead are passed over.
// Errors: as of Requeue, without ErrOverloaded; then some may be done already.
func (s *Scheduler) DeleteDead(ctx context.Context, topic string, ids []string) (int, error) {
	if !validName(topic) {
		return 0, &InvalidError{Fields: []FieldError{{"topic", nameProblem}}}
	}
	x := exhumation{Scheduler: s, topic: topic, op: opForget}
	if ids == nil {
		err := x.all(ctx)
		return x.done, err
	}
	err := x.these(ctx, ids)
	return x.done, err
}

// cancelDead deletes one dead task, whatever its topic.
func (s *Scheduler) cancelDead(ctx context.Context, id string) error {
	x := exhumation{Scheduler: s, op: opForget}
	if err := x.piece(ctx, []string{id}); err != nil || x.done != 0 {
		return err
	}
	// Somebody else may have taken it from among the dead at the same time.
	s.mu.Lock()
	_, known := s.book.find([]byte(id))
	buried := s.buriedLocked([]byte(id))
	s.unlock()
	if known || !buried {
		return s.cancelHere(ctx, id)
	}
	return ErrNotFound
}
