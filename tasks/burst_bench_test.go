package tasks_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// ledgers are what the benchmarks run on.
func ledgers(b *testing.B) map[string]func() recovery.Ledger {
	return map[string]func() recovery.Ledger{
		"memory": func() recovery.Ledger { return memledger.New() },
		"disk":   func() recovery.Ledger { return onDisk(b, b.TempDir()) },
		"redis": func() recovery.Ledger {
			return onRedis(b, redistest.Start(b, "appendonly yes", "appendfsync everysec").URL())
		},
	}
}

func onDisk(b *testing.B, dir string) recovery.Ledger {
	l, err := diskledger.Open(dir, diskledger.Options{})
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// onRedis is the ledger in a Redis, of the same node every time.
func onRedis(b *testing.B, url string) recovery.Ledger {
	l, err := redisledger.Open(redisledger.Options{URL: url, Node: "bench", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	return l
}

// onEachKept runs a benchmark that opens the same ledger several times, on disk and in Redis.
func onEachKept(b *testing.B, run func(b *testing.B, ledger func() recovery.Ledger)) {
	b.Run("disk", func(b *testing.B) {
		dir := b.TempDir()
		run(b, func() recovery.Ledger { return onDisk(b, dir) })
	})
	b.Run("redis", func(b *testing.B) {
		server := redistest.Start(b, "appendonly yes", "appendfsync everysec")
		run(b, func() recovery.Ledger { return onRedis(b, server.URL()) })
	})
}

func open(b *testing.B, l recovery.Ledger, cfg tasks.Config) *tasks.Scheduler {
	cfg.Log = slog.New(slog.DiscardHandler)
	s, err := tasks.Open(b.Context(), l, cfg)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// fill schedules n tasks in batches and returns their ids.
func fill(b *testing.B, s *tasks.Scheduler, n int, topic string, due func(i int) time.Time) []string {
	ids := make([]string, 0, n)
	requests := make([]tasks.Request, 1000)
	for first := 0; first < n; first += len(requests) {
		for i := range requests {
			requests[i] = tasks.Request{Topic: topic, Due: due(first + i), Payload: payload200}
		}
		results, err := s.ScheduleBatch(context.Background(), requests)
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range results {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// BenchmarkBurst lets many tasks fall due at one instant and measures until all are
// handled and forgotten by the ledger.
func BenchmarkBurst(b *testing.B) {
	for name, ledger := range ledgers(b) {
		for _, n := range []int{100_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					s := open(b, ledger(), tasks.Config{})
					var handled atomic.Int64
					var early atomic.Int64
					if err := s.Handle("burst", func(_ context.Context, d *tasks.Delivery) error {
						if time.Now().Before(d.Due) {
							early.Add(1)
						}
						handled.Add(1)
						return nil
					}); err != nil {
						b.Fatal(err)
					}
					began := time.Now()
					due := began.Add(time.Duration(n) * 20 * time.Microsecond).Add(time.Second)
					fill(b, s, n, "burst", func(int) time.Time { return due })
					filled := time.Since(began)
					if time.Now().After(due) {
						b.Fatal("the burst began before all tasks were scheduled")
					}
					<-time.After(time.Until(due))
					b.StartTimer()
					for s.Stats().Total.Delivered < int64(n) || s.Stats().Ledger.Queued > 0 {
						<-time.After(2 * time.Millisecond)
					}
					b.StopTimer()
					took := time.Since(due)
					b.ReportMetric(float64(n)/took.Seconds(), "tasks/s")
					b.ReportMetric(float64(n)/filled.Seconds(), "filled/s")
					b.ReportMetric(float64(early.Load()), "early")
					b.ReportMetric(float64(s.Stats().Rescued), "rescued")
					if err := s.Close(context.Background()); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			})
		}
	}
}
