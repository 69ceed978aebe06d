package dispatch

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// The queue gives out the soonest first, whatever came in between.
func TestQueueAgainstSlice(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	var q Queue
	var model []Item
	clock := int64(0)
	for i := range 50_000 {
		if rng.IntN(100) < 52 {
			clock += rng.Int64N(3)
			it := Item{Next: clock, Value: uint64(i)}
			if rng.IntN(10) == 0 {
				it.Next -= rng.Int64N(1000) // replayed, or returned
			}
			q.Push(it)
			model = append(model, it)
			continue
		}
		it, ok := q.Pop()
		if ok != (len(model) > 0) {
			t.Fatalf("pop = %v with %d items", ok, len(model))
		}
		if !ok {
			continue
		}
		q.Gone()
		k := slices.Index(model, it)
		if first := slices.MinFunc(model, func(a, b Item) int { return cmp.Compare(a.Next, b.Next) }); k < 0 || it.Next != first.Next {
			t.Fatalf("popped %+v; the first is %+v", it, first)
		}
		model = slices.Delete(model, k, k+1)
	}
	if q.Count != len(model) || q.Live != len(model) {
		t.Errorf("count %d, live %d; want %d", q.Count, q.Live, len(model))
	}
}

// Tasks of one instant leave in the order in which they came.
func TestQueueKeepsOrderOfOneInstant(t *testing.T) {
	var q Queue
	for i := range uint64(3000) {
		q.Push(Item{Next: 7, Value: i})
	}
	for i := range uint64(3000) {
		if it, ok := q.Pop(); !ok || it.Value != i {
			t.Fatalf("popped %+v, %v; want %d", it, ok, i)
		}
	}
	if _, ok := q.Pop(); ok {
		t.Error("an empty queue gives something out")
	}
}

func TestQueueClean(t *testing.T) {
	var q Queue
	for i := range uint64(4000) {
		q.Push(Item{Next: int64(i), Value: i})
	}
	for range 3600 {
		q.Gone()
	}
	if !q.Crowded() {
		t.Fatal("not crowded")
	}
	q.Clean(func(v uint64) bool { return v%10 != 0 })
	if q.Count != 400 || q.Live != 400 || q.Crowded() {
		t.Errorf("count %d, live %d, crowded %v", q.Count, q.Live, q.Crowded())
	}
	for i := range uint64(400) {
		if it, _ := q.Pop(); it.Value != i*10 {
			t.Fatalf("popped %d, want %d", it.Value, i*10)
		}
	}
}

// A queue that was long gives its memory back.
func TestQueueGivesMemoryBack(t *testing.T) {
	var q Queue
	for i := range uint64(100_000) {
		q.Push(Item{Next: int64(i), Value: i})
	}
	for range 100_000 {
		q.Pop()
	}
	if len(q.Run.Blocks) > 1 {
		t.Errorf("%d blocks are left", len(q.Run.Blocks))
	}
}
