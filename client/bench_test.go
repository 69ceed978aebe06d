package client_test

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
)

// BenchmarkReceive compares a Worker with the loop that it replaces: reserve, handle, acknowledge.
// Handlers do nothing, so that all of the time is spent on calls.
func BenchmarkReceive(b *testing.B) {
	const at = 64
	receive := map[string]func(*testing.B, *client.Client){
		"worker": func(b *testing.B, c *client.Client) {
			var left atomic.Int64
			left.Store(int64(b.N))
			done := make(chan struct{})
			stop := run(b, worker(b, c, client.WorkerOptions{Concurrency: at}, func(context.Context, *client.Delivery) error {
				if left.Add(-1) == 0 {
					close(done)
				}
				return nil
			}))
			<-done
			b.StopTimer() // it waits for tasks that do not come
			check(b, "Run", stop(), nil)
		},
		"loop": func(b *testing.B, c *client.Client) {
			for n := 0; n < b.N; {
				list, err := c.Reserve(b.Context(), "x", client.Reservation{Max: at, Wait: time.Minute})
				check(b, "Reserve", err, nil)
				receipts := make([]string, len(list))
				for i := range list {
					receipts[i] = list[i].Receipt
				}
				_, err = c.Ack(b.Context(), receipts...)
				check(b, "Ack", err, nil)
				n += len(list)
			}
		},
		"loop-one-by-one": func(b *testing.B, c *client.Client) {
			var left atomic.Int64
			left.Store(int64(b.N))
			var all sync.WaitGroup
			for range at {
				all.Go(func() {
					for left.Add(-1) >= 0 {
						list, err := c.Reserve(b.Context(), "x", client.Reservation{Wait: time.Minute})
						if err != nil {
							b.Error(err)
							return
						}
						if _, err := c.Ack(b.Context(), list[0].Receipt); err != nil {
							b.Error(err)
						}
					}
				})
			}
			all.Wait()
		},
	}
	for _, name := range []string{"worker", "loop", "loop-one-by-one"} {
		b.Run(name, func(b *testing.B) {
			c := served(b)
			schedule(b, c, b.N)
			runtime.GC() // of what scheduling has left
			b.ResetTimer()
			receive[name](b, c)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
		})
	}
}

// BenchmarkSchedule compares a Batcher with single calls of as many goroutines.
func BenchmarkSchedule(b *testing.B) {
	for _, name := range []string{"batcher", "single"} {
		b.Run(name, func(b *testing.B) {
			c := served(b)
			t := batcher(b, c, client.BatcherOptions{})
			b.SetParallelism(128)
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					r := client.Request{Topic: "x", Delay: time.Hour}
					var err error
					if name == "batcher" {
						_, err = t.Schedule(b.Context(), r)
					} else {
						_, err = c.Schedule(b.Context(), r)
					}
					if err != nil {
						b.Error(err)
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
			check(b, "Close", t.Close(b.Context()), nil)
		})
	}
}
