package tasks

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
	var q queue
	var model []item
	clock := int64(0)
	for i := range 50_000 {
		if rng.IntN(100) < 52 {
			clock += rng.Int64N(3)
			it := item{next: clock, value: uint64(i)}
			if rng.IntN(10) == 0 {
				it.next -= rng.Int64N(1000) // replayed, or returned
			}
			q.push(it)
			model = append(model, it)
			continue
		}
		it, ok := q.pop()
		if ok != (len(model) > 0) {
			t.Fatalf("pop = %v with %d items", ok, len(model))
		}
		if !ok {
			continue
		}
		q.gone()
		k := slices.Index(model, it)
		if first := slices.MinFunc(model, func(a, b item) int { return cmp.Compare(a.next, b.next) }); k < 0 || it.next != first.next {
			t.Fatalf("popped %+v; the first is %+v", it, first)
		}
		model = slices.Delete(model, k, k+1)
	}
	if q.count != len(model) || q.live != len(model) {
		t.Errorf("count %d, live %d; want %d", q.count, q.live, len(model))
	}
}

// Tasks of one instant leave in the order in which they came.
func TestQueueKeepsOrderOfOneInstant(t *testing.T) {
	var q queue
	for i := range uint64(3000) {
		q.push(item{7, i})
	}
	for i := range uint64(3000) {
		if it, ok := q.pop(); !ok || it.value != i {
			t.Fatalf("popped %+v, %v; want %d", it, ok, i)
		}
	}
	if _, ok := q.pop(); ok {
		t.Error("an empty queue gives something out")
	}
}

func TestQueueClean(t *testing.T) {
	var q queue
	for i := range uint64(4000) {
		q.push(item{int64(i), i})
	}
	for range 3600 {
		q.gone()
	}
	if !q.crowded() {
		t.Fatal("not crowded")
	}
	q.clean(func(v uint64) bool { return v%10 != 0 })
	if q.count != 400 || q.live != 400 || q.crowded() {
		t.Errorf("count %d, live %d, crowded %v", q.count, q.live, q.crowded())
	}
	for i := range uint64(400) {
		if it, _ := q.pop(); it.value != i*10 {
			t.Fatalf("popped %d, want %d", it.value, i*10)
		}
	}
}

// A queue that was long gives its memory back.
func TestQueueGivesMemoryBack(t *testing.T) {
	var q queue
	for i := range uint64(100_000) {
		q.push(item{int64(i), i})
	}
	for range 100_000 {
		q.pop()
	}
	if len(q.run.blocks) > 1 {
		t.Errorf("%d blocks are left", len(q.run.blocks))
	}
}
