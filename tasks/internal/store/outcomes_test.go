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
		h, what := hash(), Outcome{WasDelivered, uint32(i), uint64(i), int64(i)}
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

// An outcome is about the record of the task that finished, and about earlier ones. A cancel is
// about all.
func TestOutcomeCovers(t *testing.T) {
	for _, c := range []struct {
		outcome Outcome
		created int64
		covered bool
	}{
		{Outcome{Kind: WasDelivered, Created: 20}, 19, true},
		{Outcome{Kind: WasDelivered, Created: 20}, 20, true},
		{Outcome{Kind: WasDelivered, Created: 20}, 21, false},
		{Outcome{Kind: WasSkipped, Created: 20}, 21, false},
		{Outcome{Kind: WasDelivered}, 21, true},
		{Outcome{Kind: WasCancelled, Created: 20}, 21, true},
	} {
		if got := c.outcome.Covers(c.created); got != c.covered {
			t.Errorf("%+v covers a record of %d: %v", c.outcome, c.created, got)
		}
	}
}

// What was taken back, or was added in an earlier term, is not found; what was there before the one
// or came after the other is.
func TestOutcomesUndoneAndSince(t *testing.T) {
	o := NewOutcomes()
	first, second := Outcome{Kind: WasDelivered, Nonce: 1}, Outcome{Kind: WasDelivered, Nonce: 2}
	o.Add(7, first)
	term := o.Count
	o.Add(8, second)
	for hash, want := range map[uint64]Outcome{7: {}, 8: second} {
		if got := o.FindSince(hash, term); got != want {
			t.Errorf("found %+v since the second term; want %+v", got, want)
		}
	}
	o.Add(7, second)
	for _, want := range []Outcome{first, {}} {
		o.Undo(7)
		if got := o.Find(7); got != want {
			t.Errorf("found %+v after Undo; want %+v", got, want)
		}
	}
	if got := o.Find(8); got != second {
		t.Errorf("found %+v of another id", got)
	}
}
