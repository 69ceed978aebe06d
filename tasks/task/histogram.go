package task

import (
	"encoding/json"
	"math"
	"slices"
	"time"
)

// A Histogram counts durations in fixed buckets.
type Histogram struct {
	Counts Buckets       `json:"counts,omitzero"`
	Sum    time.Duration `json:"sum,omitzero"`
}

// Buckets count durations: Buckets[i] those up to LatenessBounds[i], and the last one those above.
type Buckets [len(LatenessBounds) + 1]int64

// LatenessBounds are the upper bounds of the histogram's buckets. Each is at most 2.5 times the one
// before, so that an objective between 1 ms and 1 h lies near one of them.
var LatenessBounds = [...]time.Duration{
	1 * time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	1 * time.Second, 2 * time.Second, 5 * time.Second,
	10 * time.Second, 25 * time.Second, 1 * time.Minute,
	2 * time.Minute, 5 * time.Minute, 10 * time.Minute,
	25 * time.Minute, 1 * time.Hour,
}

// LatenessBucket returns the position in Buckets at which a duration counts.
func LatenessBucket(d time.Duration) int {
	for i, bound := range LatenessBounds {
		if d <= bound {
			return i
		}
	}
	return len(LatenessBounds)
}

// Total returns how many durations were counted.
func (b *Buckets) Total() (n int64) {
	for _, k := range b {
		n += k
	}
	return n
}

// Used returns how many buckets are not empty.
func (b *Buckets) Used() (n int) {
	for _, k := range b {
		if k != 0 {
			n++
		}
	}
	return n
}

// Quantile returns the bound that at least that part of the durations do not exceed, such as 0.99
// of them. It is an hour more than the last bound if they are above it, and 0 if nothing was
// counted.
func (b *Buckets) Quantile(part float64) time.Duration {
	total := b.Total()
	if total == 0 {
		return 0
	}
	left := int64(math.Ceil(part * float64(total)))
	i := slices.IndexFunc(b[:], func(n int64) bool { left -= n; return left <= 0 })
	if i < 0 || i == len(LatenessBounds) {
		return LatenessBounds[len(LatenessBounds)-1] + time.Hour
	}
	return LatenessBounds[i]
}

// A bucketCount is a bucket on its way to another node. It travels with its bound: another version
// may have other buckets.
type bucketCount struct {
	UpTo  time.Duration `json:"up_to"`
	Count int64         `json:"count"`
}

// beyondBounds is the bound of the last bucket on its way.
const beyondBounds = 1000 * time.Hour

// MarshalJSON leaves out buckets that are empty.
func (b Buckets) MarshalJSON() ([]byte, error) {
	var all []bucketCount
	for i, n := range b {
		bound := beyondBounds
		if i < len(LatenessBounds) {
			bound = LatenessBounds[i]
		}
		if n != 0 {
			all = append(all, bucketCount{bound, n})
		}
	}
	return json.Marshal(all)
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Buckets) UnmarshalJSON(text []byte) error {
	var all []bucketCount
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	*b = Buckets{}
	for _, k := range all {
		b[LatenessBucket(k.UpTo)] += k.Count
	}
	return nil
}

// Observe counts a duration, and returns its bucket.
func (h *Histogram) Observe(d time.Duration) (bucket int) {
	bucket = LatenessBucket(d)
	h.Sum += d
	h.Counts[bucket]++
	return bucket
}

// Quantile is that of the counts.
func (h *Histogram) Quantile(part float64) time.Duration { return h.Counts.Quantile(part) }

// RecentTime is how far back a RecentLateness reaches, at least; at most, it is a minute more.
const RecentTime = 5 * time.Minute

// A RecentLateness says how late tasks are now: those whose first attempt has begun within
// RecentTime, by how late it began, and those that are ready, for their first or a further attempt,
// by how long that has been due.
type RecentLateness struct {
	Counts Buckets       `json:"counts,omitzero"`
	Max    time.Duration `json:"max,omitzero" fleet:"max"` // the greatest of them
}

// Quantile returns the bound that at least that part of them do not exceed, such as 0.99 of them;
// Max if that is less, or if they are above the last bound; 0 if there are none.
func (r *RecentLateness) Quantile(part float64) time.Duration {
	bound := r.Counts.Quantile(part)
	if bound > LatenessBounds[len(LatenessBounds)-1] {
		return r.Max
	}
	return min(bound, r.Max)
}
