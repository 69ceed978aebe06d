package tasks

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/tasks/task"
)

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
