package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Handle delivers the tasks of a topic to f, up to its Concurrency at once. A
// panic of f is a failed attempt, with its stack in the log. Errors: ErrInvalid,
// ErrHandled (also when the topic's settings choose a way of delivery), ErrOverloaded,
// ErrClosed.
func (s *engine) Handle(topic string, f HandlerFunc) error { return s.Deliver(topic, f) }

// Deliver delivers the tasks of a topic by d. Errors: as of Handle.
func (s *engine) Deliver(topic string, d Deliverer) error {
	if !task.ValidName(topic) {
		return task.Invalid("topic", task.NameProblem)
	}
	ctx, cancel := s.within(s.ctx)
	defer cancel()
	_ = s.learnTopic(ctx, topic) // or else the handler goes before what the settings choose
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return ErrClosed
	}
	t, err := s.topicLocked(topic, true)
	if err != nil {
		return err
	}
	if t.deliverer != nil || t.handler != nil {
		return ErrHandled
	}
	t.handler = d
	s.applyLocked(t, task.Resolved{Set: t.explicit(), Undeliverable: t.undeliverable}, t.revision)
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

// wakeLocked sees to it that a worker or a receiver takes what a topic has ready.
func (s *engine) wakeLocked(t *topic) {
	if t.stopped() || s.ended || s.paused || t.waiting() == 0 {
		return
	}
	if t.allowed(1) == 0 {
		s.restLocked(t)
		return
	}
	if t.pulled() {
		if t.reservers.remoteInFront() && s.roomLocked() <= 0 {
			s.holdLocked(t) // a receiver of this node gets an error; a remoteWaiter waits on
			return
		}
		t.reservers.wake(t.allowed(t.queue.live))
		return
	}
	if t.asyncSettle && s.roomLocked() <= 0 {
		s.holdLocked(t)
		return
	}
	for s.wantsLocked(t) {
		if len(s.contenders) > 0 || s.workers >= s.cfg.MaxDeliveries {
			s.contendLocked(t)
			s.placeLocked()
			return
		}
		s.startWorkerLocked(t)
	}
}

// startWorkerLocked starts a worker for a topic that wants one, in one place or several: a
// topic's workers are counted by the deliveries that they may be making.
func (s *engine) startWorkerLocked(t *topic) {
	places := min(s.placesLocked(t), s.placesLeftLocked(t), s.cfg.MaxDeliveries-s.workers)
	t.workers += places
	s.workers += places
	s.handlers.Add(1)
	go s.work(t, places)
}

// surplusLocked tells that a topic has more workers than it should have: its
// settings have changed, or a backlog has gone.
func (s *engine) surplusLocked(t *topic) bool {
	return t.workers > t.settings.Concurrency &&
		(t.workers > s.raisedLocked(t) || s.workers+s.leasedOut > s.cfg.MaxInFlight)
}

// neglectedLocked reports whether a topic has ready tasks that a worker or a receiver could take,
// and none is on the way to them: a wake-up was lost. A goroutine that gives the lock up has
// called wakeLocked first, so outside a fault it is never so.
func (s *engine) neglectedLocked(t *topic) bool {
	switch {
	case t.stopped() || s.ended || s.paused || t.waiting() == 0 || t.allowed(1) == 0 || t.rest != nil || t.contending != 0:
		return false
	case t.pulled():
		return t.reservers.woken == 0 && t.reservers.queue.Len() > 0 && s.roomLocked() > 0
	case t.asyncSettle && s.roomLocked() <= 0:
		return false
	}
	return t.workers < min(t.settings.Concurrency, t.busy+t.allowed(t.waiting()))
}

// work delivers a topic's ready tasks, as many at once as it has places, until there
// are none.
func (s *engine) work(t *topic, places int) {
	defer s.handlers.Done()
	defer func() { // also when a handler has ended this goroutine
		s.mu.Lock()
		defer s.unlock()
		t.workers -= places
		s.workers -= places
		s.placeLocked()
		s.wakeLocked(t)
	}()
	for s.workOnce(t, &places) {
	}
}

// workOnce makes deliveries, by what holds for the topic when they begin. It reports
// false if there were none to make, or if there are more workers than there should be.
// Of its places it may lose some to topics with a better claim.
func (s *engine) workOnce(t *topic, places *int) (more bool) {
	s.mu.Lock()
	by := t.deliverer
	if by == nil || *places > s.placesLocked(t) {
		// Its tasks are pulled from now on, or wait for better settings; or places
		// of this worker, which makes fewer deliveries at once now, are for others.
		s.unlock()
		return false
	}
	ds := s.beginLocked(s.ctx, t, *places, 0, byWorker)
	if len(ds) == 0 {
		ds = s.takeOffloadedLocked(t, *places)
	}
	if now := t.deliverer; now != nil && (len(ds) == 1 || takesBatches(now)) {
		by = now // it has changed while the attempts were recorded
	}
	s.unlock()
	if len(ds) == 0 {
		return false
	}
	var few [1]task.Judgement // most deliverers get one task at a time
	vs := few[:]
	if len(ds) > 1 {
		vs = make([]task.Judgement, len(ds))
	}
	for i := range vs {
		vs[i] = task.Judgement{Verb: Release, Reason: "the handler ended its goroutine"}
	}
	defer func() {
		s.mu.Lock()
		defer s.unlock()
		for i, d := range ds {
			s.returnLocked(t, d, vs[i])
		}
		*places = s.countPassesLocked(t, len(ds), *places)
		more = *places > 0 && !s.surplusLocked(t)
	}()
	s.attempt(by, ds, vs)
	return
}

// returnLocked ends what a worker had to do with a delivery.
func (s *engine) returnLocked(t *topic, d *delivery, v task.Judgement) {
	later := t.asyncSettle // which the conclusion may make so
	t.busy--
	l, ok := s.open[d.slot]
	switch {
	case d.source != nil:
		s.cluster.endOffloadedLocked(d, v)
	case !ok || l.nonce != d.lease.nonce:
		// The lease has run out, and the task is no longer this delivery's; or its
		// shard has left.
		s.endDetachedLocked(d, v)
	case s.store.Slot(d.slot).State == store.Parking:
		s.pendingVerdicts[l.nonce] = pendingVerdict{d, v}
	default:
		s.concludeLocked(t, d.slot, v)
	}
	if later {
		s.freeLocked(0, 1) // now that it is either settled or away
	}
}

// attempt calls the deliverer within the lease, the first one if there are several.
func (s *engine) attempt(by Deliverer, ds []*delivery, vs []task.Judgement) {
	ctx := &leaseContext{parent: s.ctx, deadline: s.started.Add(ds[0].lease.until)}
	defer ctx.end()
	defer func() {
		if p := recover(); p != nil {
			d := ds[0]
			for i := range vs {
				vs[i] = task.Judgement{Verb: Release, Reason: fmt.Sprintf("panic: %v", p)}
			}
			s.cfg.Log.Error("a handler panicked", "task", d.ID, "topic", d.Topic, "attempt", d.Attempt, "deliveries", len(ds), "panic", p, "stack", string(debug.Stack()))
			s.mu.Lock()
			if t, ok := s.topics[d.Topic]; ok {
				t.counts.Panicked += int64(len(ds))
			}
			s.unlock()
		}
	}()
	deliver(ctx, by, ds, vs)
}
