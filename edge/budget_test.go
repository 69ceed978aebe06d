package edge

import "testing"

// One token has at most half of a budget, unless it takes more at once; strangers have a part of
// their own.
func TestBudget(t *testing.T) {
	b := NewBudget(1600)
	a, other := newCaller(tokenOf("a", ScopeRead)), newCaller(tokenOf("b", ScopeRead))
	wants := func(known, strangers int64) {
		t.Helper()
		if k, s := b.Used(); k != known || s != strangers {
			t.Errorf("used %d and %d, want %d and %d", k, s, known, strangers)
		}
	}
	one, two := b.For(a), b.For(a)
	if !one.Take(500) || two.Take(301) || !two.Take(300) || !two.Full() {
		t.Error("the share of a token")
	}
	if one.Crowded() || !one.Full() || !b.For(a).Crowded() {
		t.Error("what a holding has counts in Full, and not in Crowded")
	}
	stranger := b.For(nil)
	if !stranger.Take(100) || stranger.Take(1) || !stranger.Full() {
		t.Error("the share of strangers")
	}
	wants(800, 100)
	large := b.For(other)
	if !large.Take(800) || large.Take(1) {
		t.Error("a token that has nothing takes what there is")
	}
	if b.For(Anyone).Take(1) || !b.For(Anyone).Full() {
		t.Error("the budget is used up")
	}
	large.Free()
	free := b.For(Anyone)
	if !free.Take(700) || !free.Take(100) || free.Take(1) {
		t.Error("callers without tokens have the whole budget")
	}
	free.Add(-800)
	wants(800, 100)

	stranger.Pass(other)
	wants(900, 0)
	stranger.Pass(nil)
	wants(800, 100)
	one.Add(5000) // it is there in any case
	if one.Bytes() != 5500 || two.Take(1) {
		t.Error("bytes that are there in any case count")
	}
	for _, h := range []*Holding{one, two, stranger, large, free} {
		h.Free()
	}
	wants(0, 0)
	if len(b.of) != 0 {
		t.Errorf("%d tokens are remembered", len(b.of))
	}
}
