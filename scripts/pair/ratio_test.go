package main

import (
	"math/rand/v2"
	"testing"

	"github.com/lapsehq/lapse/scripts/pair/measure"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(c.values); got != c.want {
			t.Errorf("median of %v is %v, want %v", c.values, got, c.want)
		}
	}
}

// runs makes pairs in which one side costs so many times the other, and both scatter.
func runs(n int, ratio, scatter float64, seed uint64) *path {
	random := rand.New(rand.NewPCG(seed, seed))
	p := &path{}
	for range n {
		p.samples[old] = append(p.samples[old], measure.Sample{Cost: 10 * (1 + scatter*random.NormFloat64())})
		p.samples[new] = append(p.samples[new], measure.Sample{Cost: 10 * ratio * (1 + scatter*random.NormFloat64())})
	}
	return p
}

// The true ratio lies within the interval in about 95 of 100 contests.
func TestInterval(t *testing.T) {
	missed := 0
	for seed := range uint64(200) {
		low, high := interval(runs(20, 1.05, 0.03, seed).ratios())
		if low > high {
			t.Fatalf("the interval is %v to %v", low, high)
		}
		if low > 1.05 || high < 1.05 {
			missed++
		}
	}
	if missed > 20 {
		t.Errorf("%d of 200 intervals do not hold the true ratio", missed)
	}
}

func TestSlower(t *testing.T) {
	count := func(ratio, scatter float64) (n int) {
		for seed := range uint64(100) {
			if runs(20, ratio, scatter, seed).slower(1.03) {
				n++
			}
		}
		return n
	}
	if n := count(1, 0.02); n > 0 {
		t.Errorf("%d of 100 contests of equals found one slower", n)
	}
	if n := count(1.05, 0.015); n < 95 {
		t.Errorf("only %d of 100 contests found the 5 %%", n)
	}
	if n := count(1.05, 0); n != 100 {
		t.Errorf("only %d of 100 contests without scatter found the 5 %%", n)
	}
	if n := count(0.9, 0.02); n > 0 {
		t.Errorf("%d of 100 contests found the faster one slower", n)
	}
}
