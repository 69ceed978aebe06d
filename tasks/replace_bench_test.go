package tasks_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkReplaceBatch replaces tasks on the disk: new ids, as BenchmarkReplaceBatch/schedule
// creates them, and ids of tasks that wait.
func BenchmarkReplaceBatch(b *testing.B) {
	type call func(*tasks.Scheduler, context.Context, []tasks.Request) ([]tasks.Result, error)
	for _, size := range []int{16, 1000} {
		for _, c := range []struct {
			name string
			call call
			ids  int // that are used again and again; 0: each is new
		}{
			{"schedule", (*tasks.Scheduler).ScheduleBatch, 0},
			{"new", (*tasks.Scheduler).ReplaceBatch, 0},
			{"existing", (*tasks.Scheduler).ReplaceBatch, 100_000},
		} {
			b.Run(fmt.Sprint(c.name, "/", size), func(b *testing.B) {
				s := open(b, onDisk(b, b.TempDir()), tasks.Config{MaxPending: 50_000_000, MaxBytes: 8 << 30})
				defer s.Close(context.Background())
				due := time.Now().Add(time.Hour)
				var next atomic.Int64
				request := func() tasks.Request {
					n := next.Add(1)
					if c.ids > 0 {
						n %= int64(c.ids)
					}
					return tasks.Request{ID: "key:" + strconv.FormatInt(n, 10), Topic: "batch", Due: due, Payload: payload200[:32]}
				}
				carryOut := func(call call, n int) {
					requests := make([]tasks.Request, n)
					for i := range requests {
						requests[i] = request()
					}
					results, err := call(s, b.Context(), requests)
					if err != nil {
						b.Error(err)
					}
					for _, r := range results {
						if r.Err != nil {
							b.Error(r.Err)
							return
						}
					}
				}
				for range c.ids / 1000 {
					carryOut((*tasks.Scheduler).ReplaceBatch, 1000)
				}
				b.SetParallelism(25) // of two processors each, as clients with pipelines
				b.ReportAllocs()
				b.ResetTimer()
				b.RunParallel(func(p *testing.PB) {
					for p.Next() {
						carryOut(c.call, size)
					}
				})
				b.StopTimer()
				b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "tasks/s")
			})
		}
	}
}

// BenchmarkReplaceSingle has 50 callers schedule or replace one task at a time, on the disk.
func BenchmarkReplaceSingle(b *testing.B) {
	for _, c := range []struct {
		name string
		call func(*tasks.Scheduler, context.Context, tasks.Request) (tasks.Task, error)
		ids  int
	}{
		{"schedule", (*tasks.Scheduler).Schedule, 1 << 40},
		{"new", (*tasks.Scheduler).Replace, 1 << 40},
		{"random", (*tasks.Scheduler).Replace, 100_000},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := open(b, onDisk(b, b.TempDir()), tasks.Config{MaxPending: 50_000_000, MaxBytes: 8 << 30})
			defer s.Close(context.Background())
			due := time.Now().Add(time.Hour)
			b.SetParallelism(25)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					id := "key:" + strconv.Itoa(rand.IntN(c.ids))
					if _, err := c.call(s, b.Context(), tasks.Request{ID: id, Topic: "single", Due: due, Payload: payload200[:32]}); err != nil {
						b.Error(err)
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
		})
	}
}
