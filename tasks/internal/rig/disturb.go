package rig

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Disturbing returns a node with a topic x for Disturb, and the seed of what happens there.
func Disturbing(t testing.TB) (r *Rig, seed uint64) {
	t.Helper()
	seed = rand.Uint64()
	t.Log("seed", seed)
	r = New(t, tasks.Config{MaxDeliveries: 4000})
	r.MustSetTopic("x", tasks.TopicSettings{Retry: tasks.Retry{MaxAttempts: 3, MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}})
	return r, seed
}

// Disturb has so many callers do something with the tasks task-0, task-1 and so on of topic x, of
// which there are as many as said, until stop is called. They end none of them.
func (r *Rig) Disturb(seed uint64, callers, number int) (stop func()) {
	over := make(chan struct{})
	var busy sync.WaitGroup
	for k := range callers {
		rng := rand.New(rand.NewPCG(seed, uint64(k)))
		busy.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					r.disturb(rng, fmt.Sprint("task-", rng.IntN(number)))
				}
			}
		})
	}
	return func() { close(over); busy.Wait() }
}

// disturb does something to a task, or to some that are ready or dead, that ends none of them.
func (r *Rig) disturb(rng *rand.Rand, id string) {
	ctx := context.Background()
	switch rng.IntN(6) {
	case 0:
		_, _ = r.Reschedule(ctx, id, tasks.Move{Due: time.Now().Add(time.Duration(rng.IntN(3)-1) * time.Hour)})
	case 1:
		_, _ = r.Fire(ctx, id)
	case 2:
		_, _ = r.Hold(ctx, id)
		_, _ = r.Resume(ctx, id)
	case 3:
		_, _ = r.Admin().Requeue(ctx, "x", tasks.Requeue{IDs: []string{id}})
	case 4:
		_, _ = r.Admin().Requeue(ctx, "x", tasks.Requeue{})
	default:
		ds, _ := r.Reserve(ctx, "x", 1+rng.IntN(20), 0, 0)
		for _, d := range ds {
			v := tasks.Verdict{Verb: tasks.Release, Reason: "again"}
			if rng.IntN(2) == 0 {
				v = tasks.Verdict{Verb: tasks.Bury, Reason: "no use"}
			}
			_, _ = r.Settle(ctx, v, []string{d.Receipt()})
		}
	}
}
