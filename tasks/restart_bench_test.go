package tasks_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkRestart measures a start with 1 million tasks in the ledger, a tenth of
// them overdue: until the first overdue one is delivered, and until replay is
// over.
func BenchmarkRestart(b *testing.B) { onEachKept(b, restart) }

func restart(b *testing.B, ledger func() recovery.Ledger) {
	const n = 1_000_000
	s := open(b, ledger(), tasks.Config{Topics: map[string]tasks.TopicSettings{"restart": {Paused: true}}})
	base := time.Now()
	fill(b, s, n, "restart", func(i int) time.Time {
		if i%10 == 0 {
			return base.Add(-time.Duration(i) * time.Microsecond)
		}
		return base.Add(time.Hour + time.Duration(i)*time.Millisecond)
	})
	if err := s.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		began := time.Now()
		s := open(b, ledger(), tasks.Config{Grace: time.Millisecond})
		first := firstOverdue(b, s, "restart", began)
		for !s.Readiness().Ready {
			<-time.After(time.Millisecond)
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ready-ms")
		b.ReportMetric(float64((<-first).Microseconds())/1000, "first-overdue-ms")
		b.StopTimer()
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// firstOverdue handles a topic, and tells how long after began its first task was delivered. The
// tasks stay overdue for the next iteration.
func firstOverdue(b *testing.B, s *tasks.Scheduler, topic string, began time.Time) <-chan time.Duration {
	first := make(chan time.Duration, 1)
	var once atomic.Bool
	if err := s.Handle(topic, func(ctx context.Context, _ *tasks.Delivery) error {
		if once.CompareAndSwap(false, true) {
			first <- time.Since(began)
		}
		<-ctx.Done()
		return ctx.Err()
	}); err != nil {
		b.Fatal(err)
	}
	return first
}
