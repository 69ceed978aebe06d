package rig

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// CancelRace cancels tasks while they fall due: each is delivered or cancelled, and not both.
func CancelRace(t *testing.T, s *tasks.Scheduler, total int) {
	const cancellers = 4 // divides the size of a wave
	// Each task belongs to one canceller; a delivery takes note of it under that
	// one's lock, so that afterwards is afterwards.
	type entry struct{ cancelled, delivered bool }
	var mu [cancellers]sync.Mutex
	entries := make([]entry, total)
	var wrong, delivered, cancelled int
	_, err := s.SetTopic(t.Context(), "x", tasks.TopicSettings{Concurrency: 16}, 0)
	Want(t, "SetTopic", err, nil)
	Want(t, "Handle", s.Handle("x", func(_ context.Context, d *tasks.Delivery) error {
		var i int
		if _, err := fmt.Sscanf(d.ID, "t%d", &i); err != nil {
			return tasks.Kill(err)
		}
		mu[i%cancellers].Lock()
		defer mu[i%cancellers].Unlock()
		if entries[i].cancelled || entries[i].delivered {
			wrong++
		}
		entries[i].delivered = true
		return nil
	}), nil)
	// In waves, each of which falls due while it is being cancelled. How long before
	// that it must be scheduled depends on the machine.
	const waves = 10
	size, lead := total/waves, 100*time.Millisecond
	for wave := range waves {
		first := wave * size
		began := time.Now()
		due := func(i int) time.Time { return began.Add(lead).Add(time.Duration(i-first) * 20 * time.Microsecond) }
		requests := make([]tasks.Request, size)
		for k := range requests {
			requests[k] = tasks.Request{ID: fmt.Sprint("t", first+k), Topic: "x", Due: due(first + k)}
		}
		if _, err := s.ScheduleBatch(t.Context(), requests); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > lead {
			lead = 2 * took
		}
		var wg sync.WaitGroup
		for c := range cancellers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(c), uint64(wave)))
				for i := first + c; i < first+size; i += cancellers {
					// From 1 ms before its deadline to 1 ms after.
					if rest := time.Until(due(i)) + time.Duration(rng.Int64N(int64(2*time.Millisecond))) - time.Millisecond; rest > 0 {
						<-time.After(rest)
					}
					switch err := s.Cancel(context.Background(), fmt.Sprint("t", i)); {
					case err == nil:
						mu[c].Lock()
						if entries[i].delivered {
							t.Errorf("t%d was delivered, and then cancelled", i)
						}
						entries[i].cancelled = true
						mu[c].Unlock()
					case !errors.Is(err, tasks.ErrNotFound) && !errors.Is(err, tasks.ErrDelivering):
						t.Errorf("Cancel(t%d) = %v", i, err)
					}
				}
			})
		}
		wg.Wait()
	}
	for left := s.Stats(); left.Total.Pending+left.Total.Ready+left.Total.Delivering > 0 || left.Ledger.Queued > 0; left = s.Stats() {
		<-time.After(time.Millisecond)
	}
	for i := range mu {
		mu[i].Lock()
	}
	for i := range entries {
		switch e := entries[i]; {
		case e.delivered == e.cancelled:
			t.Errorf("t%d: delivered %v, cancelled %v", i, e.delivered, e.cancelled)
		case e.delivered:
			delivered++
		default:
			cancelled++
		}
	}
	t.Logf("%d delivered, %d cancelled", delivered, cancelled)
	if wrong != 0 || delivered == 0 || cancelled == 0 {
		t.Errorf("%d delivered, %d cancelled, %d wrongly delivered", delivered, cancelled, wrong)
	}
}
