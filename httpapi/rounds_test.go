package httpapi

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Callers that never pause pass once or twice a round, however many they are, and none waits for
// more than one round.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rounds{pause: time.Second}
		began := time.Now()
		var callers sync.WaitGroup
		for range 100 {
			callers.Go(func() {
				passed := 0
				for time.Since(began) < 10*time.Second {
					called := time.Now()
					if err := r.await(t.Context()); err != nil || time.Since(called) > r.pause {
						t.Errorf("await returns %v after %v", err, time.Since(called))
					}
					passed++
				}
				if passed > 21 {
					t.Errorf("a caller passes %d times in 10 rounds", passed)
				}
			})
		}
		callers.Wait()

		ctx, cancel := context.WithCancelCause(t.Context())
		left := errors.New("the caller has left")
		cancel(left)
		time.Sleep(time.Minute)
		if err := r.await(ctx); err != nil {
			t.Errorf("the first of a round: %v", err)
		}
		if err := r.await(ctx); !errors.Is(err, left) {
			t.Errorf("got %v", err)
		}
	})
}
