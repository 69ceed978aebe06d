package wheel

import (
	"testing"
	"time"
)

const sometime = 1_795_000_000_000 // Unix milliseconds

func TestWheelAllocatesNothingOnceWarm(t *testing.T) {
	now := int64(sometime)
	w := New(1, now)
	emit := func([]uint64) {}
	round := func() {
		for v := range uint64(2000) {
			w.Cancel(w.Add(now+int64(v), v))
			w.Add(now+int64(v*v), v)
		}
		now += 10_000_000
		w.Advance(now, emit)
	}
	round()
	if n := testing.AllocsPerRun(10, round); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
}

func TestRunnerAllocatesNothingOnceWarm(t *testing.T) {
	r, err := NewRunner(Config{Fire: func([]uint64) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	due := time.Now().Add(24 * time.Hour).UnixMilli()
	timers := make([]Timer, 100)
	round := func() {
		for i := range timers {
			timers[i] = r.Add(due+int64(i), uint64(i))
		}
		for _, timer := range timers {
			r.Cancel(timer)
		}
	}
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations a round of 100 timers", n)
	}
}

// Adding to and emptying one bucket again and again must not fill the queue.
func TestOneElementABucket(t *testing.T) {
	r, err := NewRunner(Config{Fire: func([]uint64) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	due := time.Now().Add(24 * time.Hour).UnixMilli()
	n := testing.AllocsPerRun(1000, func() { r.Cancel(r.Add(due, 1)) })
	if n != 0 {
		t.Errorf("%v allocations a timer that is added and cancelled", n)
	}
}
