package wheel

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/RussellLuo/timingwheel"
)

// BenchmarkLateness schedules timers at a steady rate, each with a deadline of
// its own between 0.1 and 1 s ahead, and measures how late they fire. Deadlines
// are finer than a millisecond, so that ours are rounded up. One operation is
// one and a half seconds of it.
//
// Lateness is taken on the monotonic clock. What was early is counted on both
// clocks: the promise is about the wall clock, and a thread that is preempted
// within time.Now, between its two readings, gets a deadline that differs on the
// two by as long as that took (up to 9.6 ms was seen on a loaded machine).
func BenchmarkLateness(b *testing.B) {
	for _, rate := range []int{10_000, 100_000} {
		for _, c := range latenessContenders {
			b.Run(fmt.Sprintf("%dk/%s", rate/1000, c.name), func(b *testing.B) {
				var all, wall []time.Duration
				for range b.N {
					l, w := lateness(c.open, rate)
					all, wall = append(all, l...), append(wall, w...)
				}
				slices.Sort(all)
				slices.Sort(wall)
				early, _ := slices.BinarySearch(all, 0)
				earlyByWall, _ := slices.BinarySearch(wall, 0)
				ms := func(share float64) float64 {
					return float64(all[int(share*float64(len(all)-1))].Microseconds()) / 1000
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(ms(0.5), "p50-ms")
				b.ReportMetric(ms(0.99), "p99-ms")
				b.ReportMetric(ms(1), "max-ms")
				b.ReportMetric(ms(0), "min-ms")
				b.ReportMetric(100*float64(earlyByWall)/float64(len(all)), "%early")
				b.ReportMetric(100*float64(early)/float64(len(all)), "%early-mono")
			})
		}
	}
}

var latenessContenders = []struct {
	name string
	// open takes what is to be called with the number of each that fires.
	open func(fired func(i uint64)) (schedule func(i uint64, due time.Time), stop func())
}{
	{"Runner", func(fired func(uint64)) (func(uint64, time.Time), func()) {
		r, err := NewRunner(Config{Fire: func(values []uint64) {
			for _, v := range values {
				fired(v)
			}
		}})
		if err != nil {
			panic(err)
		}
		return func(i uint64, due time.Time) { r.Add(roundUp(due), i) }, r.Close
	}},
	{"TimingWheel", func(fired func(uint64)) (func(uint64, time.Time), func()) {
		t := timingwheel.NewTimingWheel(time.Millisecond, 512)
		t.Start()
		return func(i uint64, due time.Time) { t.AfterFunc(time.Until(due), func() { fired(i) }) }, t.Stop
	}},
	{"AfterFunc", func(fired func(uint64)) (func(uint64, time.Time), func()) {
		return func(i uint64, due time.Time) { time.AfterFunc(time.Until(due), func() { fired(i) }) }, func() {}
	}},
}

// lateness returns how late each of a second and a half's timers fired, by the
// monotonic clock and by the wall clock.
func lateness(open func(func(uint64)) (func(uint64, time.Time), func()), rate int) (mono, wall []time.Duration) {
	n := rate * 3 / 2
	dues := make([]time.Time, n)
	mono, wall = make([]time.Duration, n), make([]time.Duration, n)
	var waiting sync.WaitGroup
	waiting.Add(n)
	schedule, stop := open(func(i uint64) {
		now := time.Now()
		mono[i], wall[i] = now.Sub(dues[i]), now.Round(0).Sub(dues[i].Round(0))
		waiting.Done()
	})
	rng := rand.New(rand.NewPCG(1, 2))
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	begun := time.Now()
	for i := 0; i < n; <-ticker.C {
		for due := int(time.Since(begun).Seconds() * float64(rate)); i < min(due, n); i++ {
			ahead := 100*time.Millisecond + time.Duration(rng.Int64N(int64(900*time.Millisecond)))
			dues[i] = time.Now().Add(ahead)
			schedule(uint64(i), dues[i])
		}
	}
	waiting.Wait()
	stop()
	return mono, wall
}
