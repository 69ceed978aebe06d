package httpapi

import (
	"context"
	"sync"
	"time"
)

// rounds release waiting requests together, at most once every pause. Callers that repeat a request
// without a pause of their own get a bounded part of the processors.
type rounds struct {
	pause time.Duration

	mu   sync.Mutex
	next time.Time // when the next round begins
}

// await returns nil when a round begins, or the error of ctx when that ends first.
func (r *rounds) await(ctx context.Context) error {
	r.mu.Lock()
	now := time.Now()
	wait := r.next.Sub(now)
	if wait <= 0 {
		r.next = now.Add(r.pause)
	}
	r.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
