package tasks

import (
	"context"
	"fmt"
)

// A BatchDeliverer is a Deliverer whose receiver takes many tasks in one go for little
// more than one: then a goroutine makes many deliveries at once, of whatever has
// become ready while it was busy with those before. No task waits for a batch to fill.
// Each task of a batch is a delivery of its own, with its own attempt, receipt and
// outcome, and counts as one against the topic's Concurrency.
type BatchDeliverer interface {
	Deliverer
	// DeliverBatch makes one attempt for each of ds, of which there are 1 to 256, all
	// of one topic, and returns as many errors in their order, each of which means
	// what it means from Deliver. ctx ends with the first of their leases. A panic
	// fails all of them.
	DeliverBatch(ctx context.Context, ds []*Delivery) []error
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
func (s *Scheduler) placesLocked(t *topic) int {
	if !takesBatches(t.deliverer) {
		return 1
	}
	return min(max(max(t.settings.Concurrency, s.raisedLocked(t))/2, 1), maxAtOnce)
}

// deliver hands tasks to their receiver, several only to one that takes batches, and
// judges what has become of them.
func deliver(ctx context.Context, by Deliverer, ds []*delivery, vs []judgement) {
	batcher, ok := by.(BatchDeliverer)
	if !ok {
		vs[0] = judge(by.Deliver(ctx, &ds[0].Delivery))
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
		vs[i] = judge(err)
	}
}
