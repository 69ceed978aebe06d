package dispatch

import (
	"cmp"
	"math"
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
			switch rng.IntN(10) {
			case 0:
				it.Next -= rng.Int64N(1000) // replayed
				q.Push(it)
			case 1:
				it.Next -= rng.Int64N(1000)
				q.Return(it)
			default:
				q.Push(it)
			}
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

// Returned tasks leave before the others of their instant, in the order in which they were
// returned, also after the queue was cleaned.
func TestQueueReturns(t *testing.T) {
	for _, clean := range []bool{false, true} {
		var q Queue
		for _, i := range []uint64{3, 4} {
			q.Push(Item{Next: 7, Value: i})
		}
		q.Push(Item{Next: 8, Value: 6})
		q.Push(Item{Next: 7, Value: 5}) // replayed
		q.Return(Item{Next: 7, Value: 1})
		q.Return(Item{Next: 7, Value: 2})
		q.Return(Item{Next: 6, Value: 0})
		if clean {
			q.Clean(func(uint64) bool { return false })
		}
		for i := range uint64(7) {
			if it, ok := q.Pop(); !ok || it.Value != i {
				t.Fatalf("popped %+v, %v; want %d", it, ok, i)
			}
		}
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

// The oldest live item, and how many live ones are older than an instant, agree with a search.
func TestQueueOldest(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var q Queue
	live := map[uint64]int64{} // by value
	gone := func(v uint64) bool { _, ok := live[v]; return !ok }
	clock := int64(2000) // more than the furthest look back: the times that LiveBefore takes fall
	for i := range uint64(20_000) {
		switch k := rng.IntN(100); {
		case k < 55:
			clock += rng.Int64N(3)
			it := Item{Next: clock, Value: i}
			if rng.IntN(50) == 0 {
				it.Next -= rng.Int64N(1000)
			}
			q.Push(it)
			live[i] = it.Next
		case k < 60: // one is cancelled
			for v := range live {
				delete(live, v)
				q.Gone()
				break
			}
		default:
			for {
				it, ok := q.Pop()
				if !ok {
					break
				}
				if !gone(it.Value) {
					q.Gone()
					delete(live, it.Value)
					break
				}
			}
		}
		if rng.IntN(20) > 0 {
			continue
		}
		oldest := int64(math.MaxInt64)
		for _, next := range live {
			oldest = min(oldest, next)
		}
		switch got, ok := q.Oldest(1<<30, gone); {
		case ok != (len(live) > 0):
			t.Fatalf("Oldest = %v with %d live items", ok, len(live))
		case ok && got != oldest:
			t.Fatalf("Oldest = %d; want %d", got, oldest)
		}
		// Stale items, and many late ones, make an estimate of it.
		times := []int64{clock + 1, clock - rng.Int64N(100), clock - 100 - rng.Int64N(400), clock - 1000, -1}
		got := make([]int64, len(times))
		q.LiveBefore(times, got)
		for k, at := range times {
			exact := int64(0)
			for _, next := range live {
				if next < at {
					exact++
				}
			}
			if most := int64(q.Count - q.Live + len(q.late)/lateSample); max(got[k]-exact, exact-got[k]) > most {
				t.Fatalf("LiveBefore = %d; want %d, at most %d off", got[k], exact, most)
			}
			if k > 0 && got[k] > got[k-1] {
				t.Fatalf("LiveBefore = %d: it rises", got)
			}
		}
	}
}

// A call looks at a bounded number of stale items.
func TestQueueOldestIsBounded(t *testing.T) {
	var q Queue
	for i := range uint64(1000) {
		q.Push(Item{Next: int64(i), Value: i})
	}
	looks := 0
	stale := func(v uint64) bool { looks++; return v < 999 }
	for range 999 {
		q.Gone()
	}
	if next, ok := q.Oldest(100, stale); !ok || next != 100 || looks != 100 {
		t.Errorf("Oldest = %d, %v after %d looks", next, ok, looks)
	}
	for range 9 {
		q.Oldest(100, stale)
	}
	if next, _ := q.Oldest(100, stale); next != 999 {
		t.Errorf("Oldest = %d in the end", next)
	}
}

// BenchmarkQueueAges is what the figures of a topic with many ready tasks cost.
func BenchmarkQueueAges(b *testing.B) {
	var q Queue
	for i := range uint64(1_000_000) {
		q.Push(Item{Next: int64(i), Value: i})
	}
	times, counts := make([]int64, 20), make([]int64, 20)
	for i := range times {
		times[i] = int64(len(times)-i) * 50_000
	}
	for b.Loop() {
		q.Oldest(16, func(uint64) bool { return false })
		q.LiveBefore(times, counts)
	}
}
