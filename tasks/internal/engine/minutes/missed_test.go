package minutes

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A Missed counts as many as a list has, and its oldest is of the first minute that has tasks.
func TestMissed(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	var m Missed
	var all []int64
	for i := range 5000 {
		if len(all) > 0 && (i > 3000 || r.IntN(3) == 0) {
			k := r.IntN(len(all))
			m.Leave(all[k])
			all = slices.Delete(all, k, k+1)
		} else {
			due := r.Int64N(200*60_000) - 60_000
			m.Enter(due)
			all = append(all, due)
		}
		oldest, ok := m.Oldest()
		if m.Count != int64(len(all)) || ok != (len(all) > 0) {
			t.Fatalf("seed %d, step %d: %d of %d, oldest known %v", seed, i, m.Count, len(all), ok)
		}
		if ok && (oldest > slices.Min(all) || MinuteOf(oldest) != MinuteOf(slices.Min(all))) {
			t.Fatalf("seed %d, step %d: the oldest is %d, not %d", seed, i, oldest, slices.Min(all))
		}
	}
	for _, due := range all {
		m.Leave(due)
	}
	if m.Count != 0 || m.hours != nil {
		t.Errorf("seed %d: %+v is left", seed, m)
	}
	m.Leave(1)
	if m.Count != 0 {
		t.Errorf("%d after one left that had not entered", m.Count)
	}
}
