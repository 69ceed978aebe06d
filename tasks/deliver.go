package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// A Deliverer hands a task to its receiver: one way of delivery. Whatever the
// way, attempts, leases, retries and death are the scheduler's.
type Deliverer interface {
	// Deliver makes one attempt. nil acknowledges it; an error fails it, and
	// Kill and RetryAfter say more. ErrLater leaves it open: its receipt settles
	// it before its lease ends. ctx ends with the lease.
	Deliver(ctx context.Context, d *Delivery) error
}

// ErrLater is returned by a Deliverer whose receiver settles by receipt.
var ErrLater = errors.New("settled later by its receipt")

// HandlerFunc is a Deliverer that is a function of this process.
type HandlerFunc func(ctx context.Context, d *Delivery) error

// Deliver calls f.
func (f HandlerFunc) Deliver(ctx context.Context, d *Delivery) error { return f(ctx, d) }

// Handle delivers the tasks of a topic to f, up to its Concurrency at once. A
// panic of f is a failed attempt, with its stack in the log. Errors: ErrInvalid,
// ErrHandled, ErrOverloaded, ErrClosed.
func (s *Scheduler) Handle(topic string, f HandlerFunc) error { return s.Deliver(topic, f) }

// Deliver delivers the tasks of a topic by d. Errors: as of Handle.
func (s *Scheduler) Deliver(topic string, d Deliverer) error {
	if !validName(topic) {
		return &InvalidError{Fields: []FieldError{{"topic", nameProblem}}}
	}
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return ErrClosed
	}
	t, err := s.topicLocked(topic)
	if err != nil {
		return err
	}
	if t.deliverer != nil {
		return ErrHandled
	}
	t.deliverer = d
	s.wakeLocked(t)
	return nil
}

// Handle delivers the tasks of a topic to f with their payload decoded from JSON
// into a T. A payload that does not decode kills its task: no further attempt
// could mend it. Errors: as of Scheduler.Handle.
func Handle[T any](s *Scheduler, topic string, f func(ctx context.Context, v T, d *Delivery) error) error {
	return s.Handle(topic, func(ctx context.Context, d *Delivery) error {
		var v T
		if err := json.Unmarshal(d.Payload, &v); err != nil {
			return Kill(fmt.Errorf("payload: %w", err))
		}
		return f(ctx, v, d)
	})
}

// wakeLocked sees to it that somebody takes what a topic has ready.
func (s *Scheduler) wakeLocked(t *topic) {
	if t.settings.Paused || s.ended || t.queue.live == 0 {
		return
	}
	if t.deliverer == nil {
		t.reservers.wake()
		return
	}
	for t.workers < min(t.settings.Concurrency, t.busy+t.queue.live) {
		t.workers++
		s.handlers.Add(1)
		go s.work(t, t.deliverer)
	}
}

// work delivers a topic's ready tasks, one after the other, until there are none.
func (s *Scheduler) work(t *topic, by Deliverer) {
	defer s.handlers.Done()
	s.mu.Lock()
	for t.workers <= t.settings.Concurrency && (!t.later || s.pulled < s.cfg.MaxInFlight) {
		n, sl, ok := s.takeLocked(t, s.now())
		if !ok {
			break
		}
		t.busy++
		claimed := t.settings.CountCrashes // which may change while the attempt is recorded
		if claimed {
			c := newCall(1)
			s.claimLocked(n, sl, c, 0)
			c.complete()
			s.unlock()
			if len(s.claim(s.ctx, c, []uint32{n})) == 0 {
				t.busy--
				continue
			}
		}
		term := t.settings.Lease
		d := s.handOutLocked(n, sl, term, claimed)
		s.unlock()
		d.Receipt = s.signer.sign(d)
		err := s.attempt(by, d, term)
		s.mu.Lock()
		t.busy--
		// After the lease has run out, the task is no longer this delivery's.
		if l, ok := s.open[n]; !ok || l.nonce != d.lease.nonce {
			continue
		}
		if errors.Is(err, ErrLater) {
			t.later = true
			s.leaveOpenLocked(n)
			continue
		}
		s.concludeLocked(n, s.book.slot(n), err)
	}
	t.workers--
	s.unlock()
}

// attempt calls the deliverer within the lease.
func (s *Scheduler) attempt(by Deliverer, d *Delivery, term time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(s.ctx, term)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			s.cfg.Log.Error("a handler panicked", "task", d.ID, "topic", d.Topic, "attempt", d.Attempt, "panic", p, "stack", string(debug.Stack()))
			s.mu.Lock()
			if t, ok := s.topics[d.Topic]; ok {
				t.counts.Panicked++
			}
			s.unlock()
		}
	}()
	return by.Deliver(ctx, d)
}
