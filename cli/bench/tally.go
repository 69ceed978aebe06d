package bench

import (
	"sync/atomic"
	"time"
)

// A tally has for each task of one round when it is due, how often it came, and how late it came
// first. Nothing here is locked, since every measured delivery passes through it.
type tally struct {
	due   func(i int) time.Time
	times []atomic.Int32 // by number: deliveries
	late  []int64        // by number: of the first delivery, ns; written by the one that counted 1
	first atomic.Int64   // distinct tasks that have come
	again atomic.Int64   // deliveries beyond the first
	early atomic.Int64   // deliveries before the task was due
}

func newTally(n int, due func(i int) time.Time) *tally {
	return &tally{due: due, times: make([]atomic.Int32, n), late: make([]int64, n)}
}

func (t *tally) note(number int, now time.Time) {
	// Both are read off the wall clock, as a deadline is.
	late := now.UnixNano() - t.due(number).UnixNano()
	if late < 0 {
		t.early.Add(1)
	}
	if t.times[number].Add(1) > 1 {
		t.again.Add(1)
		return
	}
	t.late[number] = late
	t.first.Add(1)
}

// complete reports whether every task has come.
func (t *tally) complete() bool { return t.first.Load() == int64(len(t.times)) }

// lateness is that of the first deliveries. No delivery may be running.
func (t *tally) lateness() histogram {
	h := newHistogram()
	for i := range t.times {
		if t.times[i].Load() > 0 {
			record(h, time.Duration(t.late[i]))
		}
	}
	return h
}

// rounds are the tallies of one system's receivers. A workload rehearses before it measures, and
// fills again if filling took too long.
type rounds struct {
	tallies [maxRounds]atomic.Pointer[tally]
	used    int
	foreign atomic.Int64 // deliveries of tasks that were never scheduled here
}

// begin adds a round of n tasks and returns its number. There are always enough:
// see appointment.
func (r *rounds) begin(n int, due func(i int) time.Time) (int, *tally) {
	t := newTally(n, due)
	round := r.used
	r.used++
	r.tallies[round].Store(t)
	return round, t
}

// got notes a delivery.
func (r *rounds) got(payload []byte) {
	now := time.Now()
	round, number, ok := parsePayload(payload)
	if ok {
		if t := r.tallies[round].Load(); t != nil && number < len(t.times) {
			t.note(number, now)
			return
		}
	}
	r.foreign.Add(1)
}

// faults adds up the counts that should be zero.
func (r *rounds) faults() Faults {
	f := Faults{Repeated: int(r.foreign.Load())}
	for i := range r.used {
		t := r.tallies[i].Load()
		f.Early += int(t.early.Load())
		f.Lost += len(t.times) - int(t.first.Load())
		f.Repeated += int(t.again.Load())
	}
	return f
}
