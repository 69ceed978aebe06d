package wheel

import (
	"slices"
	"testing"
)

// A million are due in one millisecond, and twenty in each of the others. None of the others waits
// longer than two batches, and the million come in their order.
func TestLargeBucketGivesWay(t *testing.T) {
	const million, begin = 1_000_000, sometime &^ (slots - 1)
	for _, tt := range []struct {
		name  string
		due   int64
		first int64 // when the million begin to be dealt with
		lead  int64 // how many milliseconds before their time the others are added
	}{
		{"due", begin + 1, begin + 1, 5},
		{"due, and others cascaded", begin + 200, begin + 200, 2 * slots},
		{"cascaded", begin + 2*slots - 1, begin + slots, 5},
		{"past due", begin - 1, begin, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, buf := New(1, begin), make([]uint64, batchSize)
			for v := range uint64(million) {
				w.Add(tt.due, v)
			}
			others, added, came := 0, tt.first+1, uint64(0)
			for now := tt.first; came < million; now++ { // a batch a millisecond
				n, _ := w.take(now, buf)
				for _, v := range buf[:n] {
					if v < million {
						if v != came || now < tt.due {
							t.Fatalf("at %d: %d came after %d of those due at %d", now, v, came, tt.due)
						}
						came++
						continue
					}
					others++
					if late := now - begin - int64(v-million); late < 0 || late > 1 {
						t.Fatalf("at %d one of the others came %d ms late", now, late)
					}
				}
				for ; added <= now+tt.lead; added++ {
					for range 20 {
						if added != tt.due {
							w.Add(added, uint64(million+added-begin))
						}
					}
				}
			}
			if others < 10*million/batchSize {
				t.Errorf("only %d others came meanwhile", others)
			}
		})
	}
}

// What is left of large buckets comes in their order. A small one that a batch has no room for does
// not wait for them.
func TestOnlyLargeBucketsGiveWay(t *testing.T) {
	w, buf := New(1, sometime), make([]uint64, 8)
	for i, n := range []int{28, 3, 3, 20} { // in four milliseconds
		for range n {
			w.Add(sometime+int64(i), uint64(i))
		}
	}
	for i, want := range [][]uint64{
		{0, 0, 0, 0, 0, 0, 0, 0},
		{0, 0, 0, 0, 1, 1, 1, 2},
		{0, 0, 0, 0, 2, 2, 3, 3},
		{0, 0, 0, 0, 3, 3, 3, 3},
		{0, 0, 0, 0, 0, 0, 0, 0},
		{3, 3, 3, 3, 3, 3, 3, 3},
	} {
		n, _ := w.take(sometime+3, buf)
		if got := buf[:n]; !slices.Equal(got, want) {
			t.Errorf("batch %d is %v, want %v", i, got, want)
		}
	}
}
