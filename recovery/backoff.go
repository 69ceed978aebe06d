package recovery

import (
	"context"
	"math/rand/v2"
	"time"
)

// A Backoff says how long to wait before something that failed is tried again:
// Min at first, twice as long each time, at most Max.
type Backoff struct {
	Min time.Duration // 0 means 10 ms
	Max time.Duration // 0 means 1 s
}

func (b Backoff) orDefaults() Backoff {
	if b.Min <= 0 {
		b.Min = 10 * time.Millisecond
	}
	if b.Max <= 0 {
		b.Max = time.Second
	}
	b.Max = max(b.Max, b.Min)
	return b
}

// Delay is the wait before the n-th repeat, n counting from 0. A fifth of it
// is random, so that lanes that failed together do not come back together.
func (b Backoff) Delay(n int) time.Duration {
	b = b.orDefaults()
	d := b.Max
	if n < 32 && b.Min<<n > 0 {
		d = min(d, b.Min<<n)
	}
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// Wait waits before the n-th repeat, or until ctx ends, and then returns why.
func (b Backoff) Wait(ctx context.Context, n int) error {
	t := time.NewTimer(b.Delay(n))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
