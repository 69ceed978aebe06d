package tasks

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Handle is tasks.Scheduler.Handle.
func (s *engine) Handle(topic string, f HandlerFunc) error { return s.Deliver(topic, f) }

// Deliver is tasks.Scheduler.Deliver.
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

// maxAtOnce is how many tasks a goroutine delivers at once at most.
const maxAtOnce = atOnce

func takesBatches(by Deliverer) bool {
	_, ok := by.(BatchDeliverer)
	return ok
}

// placesLocked is how many deliveries at once one goroutine makes for a topic: one,
// or, if its deliverer takes batches, half of what it may have, so that a second batch
// is made up while the first one is under way.
//
// Example: with a concurrency of 64 there are two goroutines with 32 places each;
// raised to 1024 by a backlog, there are more, with 256 places.
func (s *engine) placesLocked(t *topic) int {
	if !takesBatches(t.deliverer) {
		return 1
	}
	return min(max(max(t.settings.Concurrency, s.raisedLocked(t))/2, 1), maxAtOnce)
}

// deliver hands tasks to their receiver, several only to one that takes batches, and
// judges what has become of them.
func deliver(ctx context.Context, by Deliverer, ds []*delivery, vs []task.Judgement) {
	batcher, ok := by.(BatchDeliverer)
	if !ok {
		vs[0] = task.Judge(by.Deliver(ctx, &ds[0].Delivery))
		return
	}
	batch := make([]*Delivery, len(ds))
	for i, d := range ds {
		batch[i] = &d.Delivery
	}
	errs := batcher.DeliverBatch(ctx, batch)
	if len(errs) != len(ds) {
		panic(fmt.Sprintf("%d outcomes of %d deliveries", len(errs), len(ds)))
	}
	for i, err := range errs {
		vs[i] = task.Judge(err)
	}
}

// takeOffloadedLocked takes deliveries of other nodes' tasks for a worker.
func (s *engine) takeOffloadedLocked(t *topic, places int) []*delivery {
	if t.stopped() || s.ended {
		return nil
	}
	s.returnStaleLocked(t)
	n := t.allowed(min(places, len(t.offloaded)))
	ds := t.offloaded[:n:n]
	for _, d := range ds {
		d.source.began = s.elapsed()
	}
	if t.offloaded = t.offloaded[n:]; len(t.offloaded) == 0 {
		t.offloaded = nil
	}
	t.spend(n)
	t.busy += n
	if t.asyncSettle {
		s.reservedInFlight += n
	}
	if t.limiter != nil && n > 0 {
		s.wakeLocked(t) // it may have to rest from now on
	}
	return ds
}

// returnStaleLocked returns offloaded deliveries that have waited here for a quarter of their
// leases: their receiver is to have time.
func (s *engine) returnStaleLocked(t *topic) {
	now, n := s.elapsed(), 0
	for n < len(t.offloaded) && (t.stopped() || t.offloaded[n].lease.until-now < t.offloaded[n].source.lease/4*3) {
		n++
	}
	s.cluster.returnUnusedLocked(t.offloaded[:n])
	t.offloaded = t.offloaded[n:]
}

// waiting returns how many tasks wait for a worker of this process.
func (t *topic) waiting() int { return t.queue.live + len(t.offloaded) }
