package task

import (
	"slices"
	"time"
)

// A Histogram counts durations in fixed buckets.
type Histogram struct {
	Counts [len(LatenessBounds) + 1]int64 // Counts[i]: up to LatenessBounds[i]; the last one: above
	Sum    time.Duration
}

// LatenessBounds are the upper bounds of the histogram's buckets.
var LatenessBounds = [...]time.Duration{
	1 * time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	1 * time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	time.Minute, 10 * time.Minute, time.Hour,
}

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	h.Sum += d
	for i, bound := range LatenessBounds {
		if d <= bound {
			h.Counts[i]++
			return
		}
	}
	h.Counts[len(LatenessBounds)]++
}

// Quantile returns the bound of the bucket below which that part of the durations are, such as 0.99
// of them. It is an hour more than the last bound if they are above it, and 0 if nothing was
// counted.
func (h *Histogram) Quantile(part float64) time.Duration {
	total := int64(0)
	for _, n := range h.Counts {
		total += n
	}
	if total == 0 {
		return 0
	}
	left := int64(part*float64(total)) + 1
	i := slices.IndexFunc(h.Counts[:], func(n int64) bool { left -= n; return left <= 0 })
	if i < 0 || i == len(LatenessBounds) {
		return LatenessBounds[len(LatenessBounds)-1] + time.Hour
	}
	return LatenessBounds[i]
}
