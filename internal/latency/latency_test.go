package latency

import (
	"testing"
	"time"
)

// An objective lies near a bound: no gap is wider than 2.5 times.
func TestBoundsLieClose(t *testing.T) {
	for i := 1; i < len(Bounds); i++ {
		if a, b := Bounds[i-1], Bounds[i]; b <= a || b*2 > a*5 {
			t.Errorf("%v comes after %v", b, a)
		}
	}
}

func TestHistogram(t *testing.T) {
	var h Histogram
	h.Observe(0, 1)
	h.Observe(Bounds[0], 2) // a bound belongs to the bucket below it
	h.Observe(Bounds[0]+1, 1)
	h.Observe(Bounds[len(Bounds)-1]+1, 3)
	c := h.Counts()
	if c.Buckets[0] != 3 || c.Buckets[1] != 1 || c.Buckets[len(Bounds)] != 3 || c.Total() != 7 {
		t.Errorf("buckets %v", c.Buckets)
	}
	if want := 3*Bounds[0] + 1 + 3*(Bounds[len(Bounds)-1]+1); c.Sum != want {
		t.Errorf("the sum is %v; want %v", c.Sum, want)
	}
	sum := c
	sum.Add(&c)
	if sum.Total() != 14 || sum.Buckets[1] != 2 || sum.Sum != 2*c.Sum {
		t.Errorf("together with itself: %+v", sum)
	}
}

func BenchmarkObserve(b *testing.B) {
	var h Histogram
	for b.Loop() {
		h.Observe(3*time.Millisecond, 1)
	}
}
