package wheel

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"github.com/RussellLuo/timingwheel"
)

// Every benchmark puts the contenders into one run, because machines differ and only ratios carry
// over. One operation is a whole load of timers; the metrics are per timer. LAPSE_BENCH_10M=1 pends
// 10 million instead of 1.

func benchPending() int {
	if os.Getenv("LAPSE_BENCH_10M") != "" {
		return 10_000_000
	}
	return 1_000_000
}

// contender is one way to have n timers, numbered from 0.
type contender struct {
	name string
	// open makes one for up to n timers; fired gets how many have fired.
	open func(n int, fired func(n int64)) timers
}

// Each gets the deadline in the form that it takes: Unix milliseconds or from now. Neither has to
// be converted in a loop that is measured.
type deadline struct {
	due   int64
	ahead time.Duration
}

type timers interface {
	schedule(i int, d deadline)
	cancel(i int)
	close()
}

var contenders = []contender{
	{"Wheel", openWheel}, {"Runner", openRunner}, {"TimingWheel", openTimingWheel}, {"AfterFunc", openAfterFunc},
}

type wheelTimers struct {
	*Wheel
	timers []Timer
}

func openWheel(n int, _ func(int64)) timers {
	return &wheelTimers{New(1, nowMillis()), make([]Timer, n)}
}

func (w *wheelTimers) schedule(i int, d deadline) { w.timers[i] = w.Add(d.due, uint64(i)) }
func (w *wheelTimers) cancel(i int)               { w.Cancel(w.timers[i]) }
func (w *wheelTimers) close()                     {}

type runnerTimers struct {
	*Runner
	timers []Timer
}

func openRunner(n int, fired func(int64)) timers {
	r, err := NewRunner(Config{Fire: func(values []uint64) { fired(int64(len(values))) }})
	if err != nil {
		panic(err)
	}
	return &runnerTimers{r, make([]Timer, n)}
}

func (r *runnerTimers) schedule(i int, d deadline) { r.timers[i] = r.Add(d.due, uint64(i)) }
func (r *runnerTimers) cancel(i int)               { r.Cancel(r.timers[i]) }
func (r *runnerTimers) close()                     { r.Close() }

type timingWheelTimers struct {
	*timingwheel.TimingWheel
	fire   func()
	timers []*timingwheel.Timer
}

func openTimingWheel(n int, fired func(int64)) timers {
	t := timingwheel.NewTimingWheel(time.Millisecond, 512)
	t.Start()
	return &timingWheelTimers{t, func() { fired(1) }, make([]*timingwheel.Timer, n)}
}

func (t *timingWheelTimers) schedule(i int, d deadline) {
	t.timers[i] = t.AfterFunc(d.ahead, t.fire)
}
func (t *timingWheelTimers) cancel(i int) { t.timers[i].Stop() }
func (t *timingWheelTimers) close()       { t.Stop() }

type afterFuncTimers struct {
	fire   func()
	timers []*time.Timer
}

func openAfterFunc(n int, fired func(int64)) timers {
	return &afterFuncTimers{func() { fired(1) }, make([]*time.Timer, n)}
}

func (a *afterFuncTimers) schedule(i int, d deadline) {
	a.timers[i] = time.AfterFunc(d.ahead, a.fire)
}
func (a *afterFuncTimers) cancel(i int) { a.timers[i].Stop() }
func (a *afterFuncTimers) close() {
	for _, t := range a.timers {
		if t != nil {
			t.Stop()
		}
	}
}

type noTimers struct{}

func (noTimers) schedule(int, deadline) {}
func (noTimers) cancel(int)             {}
func (noTimers) close()                 {}

// spread returns n deadlines, spread at random over half an hour that begins in
// ten minutes: none falls due during a benchmark.
func spread(n int) []deadline {
	rng := rand.New(rand.NewPCG(1, 2))
	now := nowMillis()
	all := make([]deadline, n)
	for i := range all {
		ahead := 10*time.Minute + time.Duration(rng.Int64N(int64(30*time.Minute)))
		all[i] = deadline{now + ahead.Milliseconds() + 1, ahead}
	}
	return all
}

func perTimer(b *testing.B, d time.Duration, n int) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(d.Nanoseconds())/float64(b.N)/float64(n), "ns/timer")
}

func BenchmarkSchedule(b *testing.B) {
	n := benchPending()
	deadlines := spread(n)
	for _, c := range contenders {
		b.Run(c.name, func(b *testing.B) {
			var took time.Duration
			for range b.N {
				t := c.open(n, func(int64) {})
				runtime.GC()
				begun := time.Now()
				for i, d := range deadlines {
					t.schedule(i, d)
				}
				took += time.Since(begun)
				t.close()
			}
			perTimer(b, took, n)
		})
	}
}

func BenchmarkScheduleCancel(b *testing.B) {
	n := benchPending()
	deadlines := spread(n)
	for _, c := range contenders {
		b.Run(c.name, func(b *testing.B) {
			t := c.open(n+1, func(int64) {})
			defer t.close()
			for i, d := range deadlines {
				t.schedule(i, d)
			}
			runtime.GC()
			begun := time.Now()
			for range b.N {
				for _, d := range deadlines {
					t.schedule(n, d)
					t.cancel(n)
				}
			}
			perTimer(b, time.Since(begun), n)
		})
	}
}

// BenchmarkPending measures what pending timers cost: heap, and the time of one
// full collection. What a collection takes with no timer at all is shown beside.
func BenchmarkPending(b *testing.B) {
	n := benchPending()
	deadlines := spread(n)
	nothing := contender{"Nothing", func(int, func(int64)) timers { return noTimers{} }}
	for _, c := range append([]contender{nothing}, contenders...) {
		b.Run(c.name, func(b *testing.B) {
			var heap, collecting float64
			for range b.N {
				before := liveHeap()
				t := c.open(n, func(int64) {})
				for i, d := range deadlines {
					t.schedule(i, d)
				}
				heap += liveHeap() - before
				begun := time.Now()
				runtime.GC()
				collecting += float64(time.Since(begun).Microseconds()) / 1000
				t.close()
			}
			b.ReportMetric(0, "ns/op")
			// A Timer is 8 bytes, as is a pointer: leave out the slice of them.
			b.ReportMetric(heap/float64(b.N)/float64(n)-8, "B/timer")
			b.ReportMetric(collecting/float64(b.N), "ms/GC")
		})
	}
}

func liveHeap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// BenchmarkBurst lets all fall due in one millisecond, and measures from then
// until the last has fired, and by how much the memory in use grew meanwhile.
func BenchmarkBurst(b *testing.B) {
	n := benchPending()
	for _, c := range contenders[1:] {
		b.Run(c.name, func(b *testing.B) {
			var took time.Duration
			var growth float64
			for range b.N {
				var left atomic.Int64
				left.Store(int64(n))
				done := make(chan struct{})
				t := c.open(n, func(k int64) {
					if left.Add(-k) == 0 {
						close(done)
					}
				})
				runtime.GC()
				due := time.Now().Add(time.Duration(n) * 3 * time.Microsecond).Truncate(time.Millisecond)
				for i := range n {
					t.schedule(i, deadline{due.UnixMilli(), time.Until(due)})
				}
				if !time.Now().Before(due) {
					b.Fatal("the machine is too slow: the burst was due before it was scheduled")
				}
				runtime.GC()
				before := memoryInUse()
				peak := watchMemory(done)
				<-done
				took += time.Since(due)
				growth += max(0, <-peak-before)
				t.close()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "ms/burst")
			b.ReportMetric(growth/float64(b.N)/1e6, "MB/growth")
		})
	}
}

// memoryInUse is the heap, with garbage not yet swept, and the goroutines' stacks.
func memoryInUse() float64 {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"},
	}
	metrics.Read(samples)
	return float64(samples[0].Value.Uint64() + samples[1].Value.Uint64())
}

// watchMemory samples the memory in use every millisecond until done, and then
// sends the peak.
func watchMemory(done <-chan struct{}) <-chan float64 {
	result := make(chan float64, 1)
	go func() {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		for peak := 0.0; ; {
			peak = max(peak, memoryInUse())
			select {
			case <-ticker.C:
			case <-done:
				result <- max(peak, memoryInUse())
				return
			}
		}
	}()
	return result
}

// BenchmarkThrough takes the bare Wheel through the life of its timers, cascades
// included: spread over half an hour, or all due in one millisecond of it. In an
// aged slab, earlier ones have left their places in random order.
func BenchmarkThrough(b *testing.B) {
	n := benchPending()
	deadlines := spread(n)
	for _, aged := range []bool{false, true} {
		for _, burst := range []bool{false, true} {
			b.Run(fmt.Sprintf("aged=%v/burst=%v", aged, burst), func(b *testing.B) {
				var took, last time.Duration
				for range b.N {
					w := New(1, nowMillis())
					emit := func([]uint64) {}
					if aged {
						for i, d := range deadlines {
							w.Add(d.due, uint64(i))
						}
						w.Advance(deadlines[0].due+time.Hour.Milliseconds(), emit)
					}
					begin := w.present()
					end := begin + (40 * time.Minute).Milliseconds() + 77
					for i, d := range deadlines {
						due := end
						if !burst {
							due = begin + d.ahead.Milliseconds()
						}
						w.Add(due, uint64(i))
					}
					runtime.GC()
					begun := time.Now()
					w.Advance(end-1, emit)
					beforeLast := time.Now()
					w.Advance(end, emit)
					took += time.Since(begun)
					last += time.Since(beforeLast)
				}
				perTimer(b, took, n)
				if burst {
					b.ReportMetric(float64(last.Nanoseconds())/float64(b.N)/float64(n), "ns/emitted")
				}
			})
		}
	}
}
