package task

import (
	"encoding/json"
	"testing"
	"time"
)

// An objective between 1 ms and 1 h lies near a bound.
func TestLatenessBounds(t *testing.T) {
	for i := 1; i < len(LatenessBounds); i++ {
		if below, bound := LatenessBounds[i-1], LatenessBounds[i]; bound <= below || 2*bound > 5*below {
			t.Errorf("after %v comes %v", below, bound)
		}
	}
	if first, last := LatenessBounds[0], LatenessBounds[len(LatenessBounds)-1]; first > time.Millisecond || last < time.Hour {
		t.Errorf("they begin with %v and end with %v", first, last)
	}
}

// A quantile is never above the greatest lateness, nor below what it stands for.
func TestRecentQuantile(t *testing.T) {
	var r RecentLateness
	if got := r.Quantile(0.99); got != 0 {
		t.Errorf("of none: %v", got)
	}
	for _, late := range []time.Duration{time.Millisecond, 30 * time.Second, 3 * time.Hour} {
		addUp(&r, recentOf(late))
	}
	if p50, p99 := r.Quantile(0.5), r.Quantile(0.99); p50 != time.Minute || p99 != 3*time.Hour {
		t.Errorf("p50 %v, p99 %v", p50, p99)
	}
	one := recentOf(30 * time.Second)
	if got := one.Quantile(0.5); got != one.Max {
		t.Errorf("of one: %v", got)
	}
}

// Of two, half are not later than the earlier one. No part rounds up to more than it says.
func TestQuantileOfFew(t *testing.T) {
	for part, want := range map[float64]time.Duration{0.01: LatenessBounds[0], 0.5: LatenessBounds[0], 0.51: LatenessBounds[3], 1: LatenessBounds[3]} {
		h := Histogram{Counts: Buckets{0: 1, 3: 1}}
		if got := h.Quantile(part); got != want {
			t.Errorf("quantile %v = %v; want %v", part, got, want)
		}
	}
	hundred := Histogram{Counts: Buckets{0: 99, 3: 1}}
	if got := hundred.Quantile(0.99); got != LatenessBounds[0] {
		t.Errorf("99 of 100 are within %v", got)
	}
}

func recentOf(late time.Duration) *RecentLateness {
	r := &RecentLateness{Max: late}
	r.Counts[LatenessBucket(late)] = 1
	return r
}

// Buckets travel with their bounds, and empty ones stay at home.
func TestBucketsTravel(t *testing.T) {
	b := Buckets{0: 1, 3: 4}
	b[len(LatenessBounds)] = 2
	text, err := json.Marshal(b)
	if want := `[{"up_to":1000000,"count":1},{"up_to":10000000,"count":4},{"up_to":3600000000000000,"count":2}]`; err != nil || string(text) != want {
		t.Errorf("%s, %v; want %s", text, err, want)
	}
	got := Buckets{1: 1}
	if err := json.Unmarshal(text, &got); err != nil || got != b {
		t.Errorf("they come back as %v, %v", got, err)
	}
	if err := json.Unmarshal([]byte(`[{"up_to":3000000,"count":5}]`), &got); err != nil || got != (Buckets{2: 5}) {
		t.Errorf("other bounds: %v, %v", got, err)
	}
}
