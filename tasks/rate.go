package tasks

import (
	"math"
	"time"

	"golang.org/x/time/rate"
)

// A topic's rate is a bucket of tokens: every delivery that begins takes one, of those
// that are pulled too. A topic whose bucket is empty rests: no worker looks at its queue
// until a timer says that there is a token again.

// limit gives a topic the bucket of its settings. What the bucket holds stays in it:
// settings that are set again and again are not a burst each.
func (t *topic) limit() {
	r := t.settings.Rate
	switch {
	case r == Rate{}:
		t.limiter = nil
	case t.limiter == nil:
		t.limiter = rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst)
	default:
		t.limiter.SetLimit(rate.Limit(r.PerSecond))
		t.limiter.SetBurst(r.Burst)
	}
	if t.rest != nil {
		t.rest.Stop()
		t.rest = nil
	}
}

// allowed is how many of n deliveries of a topic may begin now.
func (t *topic) allowed(n int) int {
	if t.limiter == nil {
		return n
	}
	return max(0, min(n, int(t.limiter.Tokens())))
}

// spend takes the tokens of deliveries that begin.
func (t *topic) spend(n int) {
	if t.limiter != nil {
		t.limiter.AllowN(time.Now(), n)
	}
}

// restLocked wakes a topic that has no token when it has one.
func (s *engine) restLocked(t *topic) {
	if t.rest != nil {
		return
	}
	missing := 1 - t.limiter.Tokens()
	pause := time.Duration(math.Ceil(missing/float64(t.limiter.Limit())*float64(time.Second))) + time.Microsecond
	t.rest = time.AfterFunc(pause, func() {
		s.mu.Lock()
		defer s.unlock()
		t.rest = nil
		s.wakeLocked(t)
	})
}
