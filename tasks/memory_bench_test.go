package tasks_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
)

// resident is the resident memory of this process after everything unused has
// been given back.
func resident(b *testing.B) int64 {
	debug.FreeOSMemory()
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Skip("needs /proc: ", err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(raw), &size, &pages); err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func gcCPU() time.Duration {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	runtime.GC() // the figure is brought up to date by a cycle
	metrics.Read(sample)
	return time.Duration(sample[0].Value.Float64() * float64(time.Second))
}

// BenchmarkMemory measures what a pending task with a payload of 200 bytes costs
// in resident memory, what an idle node costs in CPU, what a listing costs, and
// how memory falls when nine tasks of ten are cancelled. With LAPSE_BENCH_10M=1
// also for 10 million, and the marginal cost between the two.
func BenchmarkMemory(b *testing.B) {
	sizes := []int{1_000_000}
	if os.Getenv("LAPSE_BENCH_10M") != "" {
		sizes = append(sizes, 10_000_000)
	}
	var before, small int64
	for _, n := range sizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				before = resident(b)
				s := open(b, ledgertest.Null{}, tasks.Config{})
				far := time.Now().Add(1000 * time.Hour)
				ids := fill(b, s, n, "memory", func(i int) time.Time { return far.Add(time.Duration(i) * time.Millisecond) })
				full := resident(b) - before - int64(n)*(36+16) // less the ids that are kept here
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(full)/float64(n), "B/task")
				if n == sizes[0] {
					small = full
				} else {
					b.ReportMetric(float64(full-small)/float64(n-sizes[0]), "B/task-marginal")
				}

				gc, busy, began := gcCPU(), cpu(), time.Now()
				<-time.After(5 * time.Second)
				idle := time.Since(began)
				b.ReportMetric(100*float64(cpu()-busy)/float64(idle), "%core-idle")
				b.ReportMetric(100*float64(gcCPU()-gc)/float64(idle), "%core-gc")

				began = time.Now()
				page, err := s.List(b.Context(), tasks.Query{Limit: 1000})
				if err != nil || len(page.Tasks) != 1000 {
					b.Fatal(len(page.Tasks), err)
				}
				b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/list")

				cancelMost(b, s, ids)
				left := resident(b) - before - int64(n)*(36+16)
				b.ReportMetric(float64(left)/float64(full), "left-of-memory")
				if err := s.Close(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// cancelMost cancels nine tasks of ten and lets the sweep tidy up.
func cancelMost(b *testing.B, s *tasks.Scheduler, ids []string) {
	b.Helper()
	var group sync.WaitGroup
	for part := range slices.Chunk(ids, len(ids)/64) {
		group.Go(func() {
			for i, id := range part {
				if i%10 == 0 {
					continue
				}
				if err := s.Cancel(context.Background(), id); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	for s.Stats().ArenaBytes > 2*s.Stats().ArenaLive {
		<-time.After(100 * time.Millisecond)
	}
}

// BenchmarkSteady measures lateness at 10,000 tasks a second beside
// time.AfterFunc with the same handler, in one run.
func BenchmarkSteady(b *testing.B) {
	const rate, length = 10_000, 5 * time.Second
	n := rate * int(length/time.Second)
	when := func(base time.Time) func(i int) time.Time {
		return func(i int) time.Time { return base.Add(time.Duration(i) * time.Second / rate) }
	}
	for b.Loop() {
		var timers, lapse lateness
		base := time.Now().Add(2 * time.Second)
		at := when(base)
		for i := range n {
			due := at(i)
			time.AfterFunc(time.Until(due), func() { timers.add(time.Since(due)) })
		}
		<-time.After(time.Until(base.Add(length + time.Second)))

		s := open(b, ledgers(b)["disk"](), tasks.Config{})
		if err := s.Handle("steady", func(_ context.Context, d *tasks.Delivery) error {
			lapse.add(time.Since(d.Due))
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		base = time.Now().Add(3 * time.Second).Truncate(time.Millisecond)
		fill(b, s, n, "steady", when(base))
		<-time.After(time.Until(base.Add(length + time.Second)))
		b.ReportMetric(timers.quantile(0.99), "timers-p99-ms")
		b.ReportMetric(lapse.quantile(0.5), "p50-ms")
		b.ReportMetric(lapse.quantile(0.99), "p99-ms")
		b.ReportMetric(lapse.quantile(1), "max-ms")
		b.ReportMetric(lapse.quantile(0.99)/timers.quantile(0.99), "p99-ratio")
		b.ReportMetric(float64(lapse.early()), "early")
		b.ReportMetric(float64(n-lapse.count()), "missing")
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

var payload200 = []byte(`{"text":"` + strings.Repeat("x", 189) + `"}`)
