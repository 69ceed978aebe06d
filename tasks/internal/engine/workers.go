package engine

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Handle is tasks.Scheduler.Handle.
func (s *Engine) Handle(topic string, f task.HandlerFunc) error { return s.Deliver(topic, f) }

// Deliver is tasks.Scheduler.Deliver.
func (s *Engine) Deliver(topic string, d task.Deliverer) error {
	if !task.ValidName(topic) {
		return task.Invalid("topic", task.NameProblem)
	}
	ctx, cancel := s.Within(s.Life.Context)
	defer cancel()
	_ = s.LearnTopic(ctx, topic) // or else the handler goes before what the settings choose
	s.Mu.Lock()
	defer s.Unlock()
	if s.Ended {
		return task.ErrClosed
	}
	t, err := s.TopicLocked(topic, true)
	if err != nil {
		return err
	}
	if t.Deliverer != nil || t.Handler != nil {
		return task.ErrHandled
	}
	t.Handler = d
	s.applyLocked(t, task.Resolved{Set: t.explicit(), Undeliverable: t.undeliverable}, t.stored.revision)
	return nil
}

// WakeLocked sees to it that a worker or a receiver takes what a topic has ready.
func (s *Engine) WakeLocked(t *Topic) {
	if t.Stopped() || s.Ended || s.Dispatch.paused || t.Waiting() == 0 {
		return
	}
	if t.Allowed(1) == 0 {
		s.restLocked(t)
		return
	}
	if t.Pulled() {
		if t.Reservers.remoteInFront() && s.roomLocked() <= 0 {
			s.holdLocked(t) // a receiver of this node gets an error; a remoteWaiter waits on
			return
		}
		t.Reservers.Wake(t.Allowed(t.Queue.Live))
		return
	}
	if t.AsyncSettle && s.roomLocked() <= 0 {
		s.holdLocked(t)
		return
	}
	for s.wantsLocked(t) {
		if len(s.Dispatch.Contenders) > 0 || s.Dispatch.Workers >= s.Config.MaxDeliveries {
			s.contendLocked(t)
			s.placeLocked()
			return
		}
		s.startWorkerLocked(t)
	}
}

// startWorkerLocked starts a worker for a topic that wants one, in one place or several: a
// topic's workers are counted by the deliveries that they may be making.
func (s *Engine) startWorkerLocked(t *Topic) {
	places := min(s.placesLocked(t), s.placesLeftLocked(t), s.Config.MaxDeliveries-s.Dispatch.Workers)
	t.Workers += places
	s.Dispatch.Workers += places
	s.Life.Handlers.Add(1)
	go s.work(t, places)
}

// surplusLocked tells that a topic has more workers than it should have: its
// settings have changed, or a backlog has gone.
func (s *Engine) surplusLocked(t *Topic) bool {
	return t.Workers > t.Settings.Concurrency &&
		(t.Workers > s.RaisedLocked(t) || s.Dispatch.Workers+s.Dispatch.LeasedOut > s.Config.MaxInFlight)
}

// NeglectedLocked reports whether a topic has ready tasks that a worker or a receiver could take,
// and none is on the way to them: a wake-up was lost. A goroutine that gives the lock up has
// called WakeLocked first, so outside a fault it is never so.
func (s *Engine) NeglectedLocked(t *Topic) bool {
	switch {
	case t.Stopped() || s.Ended || s.Dispatch.paused || t.Waiting() == 0 || t.Allowed(1) == 0 || t.allotment.rest != nil || t.allotment.contending != 0:
		return false
	case t.Pulled():
		return t.Reservers.Woken == 0 && t.Reservers.Queue.Len() > 0 && s.roomLocked() > 0
	case t.AsyncSettle && s.roomLocked() <= 0:
		return false
	}
	return t.Workers < min(t.Settings.Concurrency, t.Busy+t.Allowed(t.Waiting()))
}

// work delivers a topic's ready tasks, as many at once as it has places, until there
// are none.
func (s *Engine) work(t *Topic, places int) {
	defer s.Life.Handlers.Done()
	defer func() { // also when a handler has ended this goroutine
		s.Mu.Lock()
		defer s.Unlock()
		t.Workers -= places
		s.Dispatch.Workers -= places
		s.placeLocked()
		s.WakeLocked(t)
	}()
	for s.workOnce(t, &places) {
	}
}

// workOnce makes deliveries, by what holds for the topic when they begin. It reports
// false if there were none to make, or if there are more workers than there should be.
// Of its places it may lose some to topics with a better claim.
func (s *Engine) workOnce(t *Topic, places *int) (more bool) {
	by, ds := s.beginWork(t, *places)
	if len(ds) == 0 {
		return false
	}
	var few [1]task.Judgement // most deliverers get one task at a time
	vs := few[:]
	if len(ds) > 1 {
		vs = make([]task.Judgement, len(ds))
	}
	for i := range vs {
		vs[i] = task.Judgement{Verb: task.Release, Reason: "the handler ended its goroutine"}
	}
	defer func() {
		s.Mu.Lock()
		defer s.Unlock()
		for i, d := range ds {
			s.returnLocked(t, d, vs[i])
		}
		*places = s.countPassesLocked(t, len(ds), *places)
		more = *places > 0 && !s.surplusLocked(t)
	}()
	s.attempt(by, ds, vs)
	return
}

// beginWork begins deliveries for a worker, and returns by what they are made.
func (s *Engine) beginWork(t *Topic, places int) (by task.Deliverer, ds []*Delivery) {
	b := beginning{topic: t, by: byWorker, limit: places}
	ds = s.run(s.Life.Context, &b)
	if len(ds) > 0 || !b.checked {
		return b.deliverer, ds
	}
	s.Mu.Lock()
	defer s.Unlock()
	ds = s.takeOffloadedLocked(t, places)
	b.deliverNowLocked(len(ds))
	return b.deliverer, ds
}

// returnLocked ends what a worker had to do with a delivery.
func (s *Engine) returnLocked(t *Topic, d *Delivery, v task.Judgement) {
	later := t.AsyncSettle // which the conclusion may make so
	t.Busy--
	l, ok := s.Dispatch.Leases[d.Slot]
	switch {
	case d.Source != nil:
		s.Cluster.EndOffloadedLocked(d, v)
	case !ok || l.Nonce != d.Lease.Nonce:
		// The lease has run out, and the task is no longer this delivery's; or its
		// shard has left.
		s.endDetachedLocked(d, v)
	case s.Store.Slot(d.Slot).State == store.Parking:
		s.Detached.Verdicts[l.Nonce] = pendingVerdict{d, v}
	default:
		s.concludeLocked(t, d.Slot, v)
	}
	if later {
		s.freeLocked(0, 1) // now that it is either settled or away
	}
}

// attempt calls the deliverer within the lease, the first one if there are several.
func (s *Engine) attempt(by task.Deliverer, ds []*Delivery, vs []task.Judgement) {
	ctx := &leaseContext{parent: s.Life.Context, deadline: s.Started.Add(ds[0].Lease.Until)}
	defer ctx.end()
	defer func() {
		if p := recover(); p != nil {
			d := ds[0]
			for i := range vs {
				vs[i] = task.Judgement{Verb: task.Release, Reason: fmt.Sprintf("panic: %v", p)}
			}
			s.Config.Log.Error("a handler panicked", "task", d.ID, "topic", d.Topic, "attempt", d.Attempt, "deliveries", len(ds), "panic", p, "stack", string(debug.Stack()))
			s.Mu.Lock()
			if t, ok := s.TopicTable.ByName[d.Topic]; ok {
				t.Counts.Panicked += int64(len(ds))
			}
			s.Unlock()
		}
	}()
	deliver(ctx, by, ds, vs)
}

// maxAtOnce is how many tasks a goroutine delivers at once at most.
const maxAtOnce = AtOnce

func takesBatches(by task.Deliverer) bool {
	_, ok := by.(task.BatchDeliverer)
	return ok
}

// placesLocked is how many deliveries at once one goroutine makes for a topic: one,
// or, if its deliverer takes batches, half of what it may have, so that a second batch
// is made up while the first one is under way.
//
// Example: with a concurrency of 64 there are two goroutines with 32 places each;
// raised to 1024 by a backlog, there are more, with 256 places.
func (s *Engine) placesLocked(t *Topic) int {
	if !takesBatches(t.Deliverer) {
		return 1
	}
	return min(max(max(t.Settings.Concurrency, s.RaisedLocked(t))/2, 1), maxAtOnce)
}

// deliver hands tasks to their receiver, several only to one that takes batches, and
// judges what has become of them.
func deliver(ctx context.Context, by task.Deliverer, ds []*Delivery, vs []task.Judgement) {
	batcher, ok := by.(task.BatchDeliverer)
	if !ok {
		vs[0] = task.Judge(by.Deliver(ctx, &ds[0].Delivery))
		return
	}
	batch := make([]*task.Delivery, len(ds))
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
func (s *Engine) takeOffloadedLocked(t *Topic, places int) []*Delivery {
	if t.Stopped() || s.Ended {
		return nil
	}
	s.ReturnStaleLocked(t)
	n := t.Allowed(min(places, len(t.Offloaded)))
	ds := t.Offloaded[:n:n]
	for _, d := range ds {
		d.Source.Began = s.Elapsed()
	}
	if t.Offloaded = t.Offloaded[n:]; len(t.Offloaded) == 0 {
		t.Offloaded = nil
	}
	t.spend(n)
	t.Busy += n
	if t.AsyncSettle {
		s.Dispatch.ReservedInFlight += n
	}
	if t.allotment.limiter != nil && n > 0 {
		s.WakeLocked(t) // it may have to rest from now on
	}
	return ds
}

// ReturnStaleLocked returns offloaded deliveries that have waited here for a quarter of their
// leases: their receiver is to have time.
func (s *Engine) ReturnStaleLocked(t *Topic) {
	now, n := s.Elapsed(), 0
	for n < len(t.Offloaded) && (t.Stopped() || t.Offloaded[n].Lease.Until-now < t.Offloaded[n].Source.Lease/4*3) {
		n++
	}
	s.Cluster.ReturnUnusedLocked(t.Offloaded[:n])
	t.Offloaded = t.Offloaded[n:]
}

// Waiting returns how many tasks wait for a worker of this process.
func (t *Topic) Waiting() int { return t.Queue.Live + len(t.Offloaded) }
