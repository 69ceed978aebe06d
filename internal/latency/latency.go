// Package latency counts how long something takes, in the buckets of a histogram that metrics show.
//
// Any goroutine may use a Histogram. Nothing can fail.
package latency

import (
	"sync/atomic"
	"time"
)

// Bounds are the upper bounds of the buckets. Each is at most 2.5 times the one before, so that an
// objective between 100 us and 10 min lies near one of them.
var Bounds = [...]time.Duration{
	100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	1 * time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	1 * time.Second, 2 * time.Second, 5 * time.Second,
	10 * time.Second, 25 * time.Second, 1 * time.Minute,
	2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
}

// Counts are what a Histogram has counted: Buckets[i] durations up to Bounds[i], and the last
// bucket those above.
type Counts struct {
	Buckets [len(Bounds) + 1]int64
	Sum     time.Duration
}

// Total returns how many durations were counted.
func (c *Counts) Total() (n int64) {
	for _, k := range c.Buckets {
		n += k
	}
	return n
}

// Add adds the durations of o to c.
func (c *Counts) Add(o *Counts) {
	for i, n := range o.Buckets {
		c.Buckets[i] += n
	}
	c.Sum += o.Sum
}

// A Histogram counts durations. The zero value is empty.
type Histogram struct {
	buckets [len(Bounds) + 1]atomic.Int64
	sum     atomic.Int64
}

// Observe counts n times that something took d.
func (h *Histogram) Observe(d time.Duration, n int) {
	i := 0
	for i < len(Bounds) && d > Bounds[i] {
		i++
	}
	h.buckets[i].Add(int64(n))
	h.sum.Add(int64(d) * int64(n))
}

// Counts returns what was counted. A duration that is counted meanwhile may be in Buckets and not
// yet in Sum.
func (h *Histogram) Counts() (c Counts) {
	for i := range h.buckets {
		c.Buckets[i] = h.buckets[i].Load()
	}
	c.Sum = time.Duration(h.sum.Load())
	return c
}
