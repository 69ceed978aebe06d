package wheel

import (
	"math"
	"slices"
	"testing"
)

// advance returns what Advance emits.
func advance(w *Wheel, now int64) (values []uint64) {
	w.Advance(now, func(v []uint64) { values = append(values, v...) })
	return values
}

func TestRoundsUpToATick(t *testing.T) {
	w := New(10, 1000)
	w.Add(1001, 1)
	w.Add(1010, 2)
	w.Add(1011, 3)
	if got := advance(w, 1009); got != nil {
		t.Fatalf("emitted %v before the tick", got)
	}
	if at, _ := w.Next(); at != 1010 {
		t.Fatalf("Next() = %d, want 1010", at)
	}
	if got := advance(w, 1019); !slices.Equal(got, []uint64{1, 2}) {
		t.Fatalf("emitted %v, want [1 2]", got)
	}
	if got := advance(w, 1020); !slices.Equal(got, []uint64{3}) {
		t.Fatalf("emitted %v, want [3]", got)
	}
}

func TestStaleTimerIsRefused(t *testing.T) {
	w := New(1, sometime)
	old := w.Add(sometime+5, 1)
	advance(w, sometime+5)
	reused := w.Add(sometime+10, 2)
	if uint32(old) != uint32(reused) || old == reused {
		t.Fatalf("timers %#x and %#x: not the same place with another generation", old, reused)
	}
	if _, ok := w.Cancel(old); ok {
		t.Error("a stale timer cancelled the entry that took its place")
	}
	if v, ok := w.Cancel(reused); !ok || v != 2 {
		t.Errorf("Cancel = %d, %v; want 2, true", v, ok)
	}
	// The place is free: not even its next generation names anything.
	for g := range Timer(4) {
		if _, ok := w.Cancel(g<<32 | reused&math.MaxUint32); ok {
			t.Errorf("generation %d of a free place was cancelled", g)
		}
	}
}

// Every deadline that an int64 can hold has its place.
func TestExtremes(t *testing.T) {
	for _, tick := range []int64{1, 1000} {
		w := New(tick, sometime)
		for i, due := range []int64{math.MinInt64, -1, 0, sometime + 1e15, math.MaxInt64 - 5000} {
			w.Add(due, uint64(i))
		}
		if got := advance(w, sometime); !slices.Equal(got, []uint64{0, 1, 2}) {
			t.Fatalf("tick %d: emitted %v of the past", tick, got)
		}
		if got := advance(w, sometime+1e15-1); got != nil {
			t.Fatalf("tick %d: emitted %v early", tick, got)
		}
		if got := advance(w, math.MaxInt64); !slices.Equal(got, []uint64{3, 4}) {
			t.Fatalf("tick %d: emitted %v of the far future", tick, got)
		}
		if got := advance(w, math.MinInt64); got != nil || w.Len() != 0 {
			t.Fatalf("tick %d: emitted %v in the end, leaving %d", tick, got, w.Len())
		}
	}
}

func TestSetBackWaitsAgain(t *testing.T) {
	w := New(1, sometime)
	w.Add(sometime+100, 1)
	w.Add(sometime+5000, 2)
	advance(w, sometime+50)
	w.SetBack(sometime - 1_000_000)
	w.Add(sometime-500_000, 3)
	if got := advance(w, sometime-500_001); got != nil {
		t.Fatalf("emitted %v early on the clock that was set back", got)
	}
	for i, at := range []int64{sometime - 500_000, sometime + 100, sometime + 5000} {
		if got := advance(w, at-1); got != nil {
			t.Fatalf("emitted %v a tick early", got)
		}
		if got, want := advance(w, at), []uint64{[]uint64{3, 1, 2}[i]}; !slices.Equal(got, want) {
			t.Fatalf("emitted %v, want %v", got, want)
		}
	}
}

// emit may add and cancel; what it adds that is due goes out in the same Advance.
func TestEmitMayAddAndCancel(t *testing.T) {
	w := New(1, sometime)
	w.Add(sometime+1, 1)
	var later Timer
	var got []uint64
	n := w.Advance(sometime+1, func(values []uint64) {
		got = append(got, values...)
		switch values[0] {
		case 1:
			w.Add(sometime, 2)
			later = w.Add(sometime+2, 3)
		case 2:
			w.Cancel(later)
		}
	})
	if n != 2 || !slices.Equal(got, []uint64{1, 2}) || w.Len() != 0 {
		t.Errorf("emitted %d: %v, leaving %d; want 2: [1 2], 0", n, got, w.Len())
	}
}

func TestBurstComesInBatches(t *testing.T) {
	const n = 3*batchSize + 1
	w := New(1, sometime)
	for v := range uint64(n) {
		w.Add(sometime+300, v) // from level 1, or more
	}
	var sizes []int
	total := w.Advance(sometime+300, func(values []uint64) { sizes = append(sizes, len(values)) })
	if total != n || slices.Max(sizes) > batchSize {
		t.Errorf("emitted %d of %d in batches of %v", total, n, sizes)
	}
}

func TestTickBelowOnePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("New accepted a tick of 0")
		}
	}()
	New(0, sometime)
}

// The present goes no further than where a bucket begins: what is due there, and what is added
// meanwhile, come in their order.
func TestSkipStopsAtABucket(t *testing.T) {
	w := New(1, 0)
	w.Add(slots+6, 1)
	w.skip(slots) // the bucket of the first one begins there
	w.Add(slots+36, 2)
	for _, step := range []struct {
		now  int64
		want []uint64
	}{{slots + 5, nil}, {slots + 10, []uint64{1}}, {slots + 36, []uint64{2}}} {
		if got := advance(w, step.now); !slices.Equal(got, step.want) {
			t.Errorf("at %d: %v; want %v", step.now, got, step.want)
		}
	}
}

// The last tick is later than what an int64 can hold.
func TestNextOfTheLastTick(t *testing.T) {
	w := New(1000, math.MaxInt64-5000)
	w.Add(math.MaxInt64, 1)
	if at, ok := w.Next(); !ok || at != math.MaxInt64 {
		t.Errorf("Next = %d, %v", at, ok)
	}
}
