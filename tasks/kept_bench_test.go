package tasks_test

import (
	"context"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// BenchmarkKeepFinished measures what it costs to keep finished tasks, beside deleting them: of
// tasks from the batch that schedules them until the ledger has the end of all.
func BenchmarkKeepFinished(b *testing.B) {
	const n = 100_000
	for name, ledger := range ledgers(b) {
		for setting, keep := range map[string]time.Duration{"off": 0, "on": time.Hour} {
			b.Run(name+"/"+setting, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					s := open(b, ledger(), tasks.Config{Topics: map[string]tasks.TopicSettings{"kept": {Concurrency: 1024, KeepFinished: keep}}})
					if err := s.Handle("kept", func(context.Context, *tasks.Delivery) error { return nil }); err != nil {
						b.Fatal(err)
					}
					now := time.Now()
					b.StartTimer()
					fill(b, s, n, "kept", func(int) time.Time { return now })
					wait(func() bool {
						now := s.Stats()
						return now.Total.Delivered == n && now.Ledger.Queued == 0 && now.Total.Finished%n == 0
					})
					b.StopTimer()
					if err := s.Close(context.Background()); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
			})
		}
	}
}

// BenchmarkKept measures what 1 million finished tasks cost that are kept: a start, memory, and the
// sweep that deletes them.
func BenchmarkKept(b *testing.B) { onEachKept(b, keptFinished) }

func keptFinished(b *testing.B, ledger func() recovery.Ledger) {
	const n = 1_000_000
	cfg := tasks.Config{Topics: map[string]tasks.TopicSettings{"kept": {Concurrency: 1024, KeepFinished: time.Hour}}}
	s := open(b, ledger(), cfg)
	if err := s.Handle("kept", func(context.Context, *tasks.Delivery) error { return nil }); err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	fill(b, s, n, "kept", func(int) time.Time { return now })
	wait(func() bool { return s.Stats().Total.Finished == n })
	shut := func() {
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	shut()
	for b.Loop() {
		before := heap()
		began := time.Now()
		s = open(b, ledger(), cfg)
		wait(func() bool { return s.Stats().Total.Finished == n })
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "open-ms")
		b.ReportMetric(float64(heap()-before)/n, "bytes/kept")
		shut()
	}
	cfg.Clock = func() time.Time { return time.Now().Add(2 * time.Hour) }
	s = open(b, ledger(), cfg)
	<-rig.Engine(s).Reading.Replayed
	before, began := s.Stats().Total.Finished, time.Now()
	wait(func() bool { return s.Stats().Total.Finished <= n-n/10 })
	b.ReportMetric(float64(before-s.Stats().Total.Finished)/time.Since(began).Seconds(), "expired/s")
	shut()
}
