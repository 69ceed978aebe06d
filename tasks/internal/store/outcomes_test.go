package store

import (
	"math/rand/v2"
	"testing"
)

// The newest outcome of each of the last ids is found, and none of the others:
// random ids, few enough that they repeat and that lists are long.
func TestOutcomes(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	hash := func() uint64 {
		n := rng.Uint64N(3 * outcomesKept / 2)
		return n<<40 | n%(outcomesKept/8) // eight and more to a list
	}
	o := NewOutcomes()
	newest := map[uint64]Outcome{} // of the ids that the ring holds
	var ring []uint64
	times := map[uint64]int{}
	for i := range 4 * outcomesKept {
		h, what := hash(), Outcome{WasDelivered, uint64(i), int64(i)}
		o.Add(h, what)
		newest[h] = what
		ring, times[h] = append(ring, h), times[h]+1
		if len(ring) > outcomesKept {
			gone := ring[0]
			ring = ring[1:]
			if times[gone]--; times[gone] == 0 {
				delete(newest, gone)
			}
		}
		if h := hash(); o.Find(h) != newest[h] {
			t.Fatalf("after %d outcomes: found %+v, want %+v", i+1, o.Find(h), newest[h])
		}
	}
	for h, want := range newest {
		if got := o.Find(h); got != want {
			t.Fatalf("found %+v, want %+v", got, want)
		}
	}
}
