package tasks_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkSingle has 64 callers schedule one task at a time.
func BenchmarkSingle(b *testing.B) {
	for name, ledger := range ledgers(b) {
		b.Run(name, func(b *testing.B) {
			s := open(b, ledger(), tasks.Config{})
			defer s.Close(context.Background())
			due := time.Now().Add(time.Hour)
			var failed atomic.Int64
			b.SetParallelism(32) // of two processors each
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if _, err := s.Schedule(context.Background(), tasks.Request{Topic: "single", Due: due, Payload: payload200}); err != nil {
						failed.Add(1)
					}
				}
			})
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
			if n := failed.Load(); n > 0 {
				b.Errorf("%d were refused", n)
			}
		})
	}
}
