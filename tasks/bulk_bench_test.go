package tasks_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkBulk measures a start over a line of 1 Gbit/s to a Redis with much to read: until Open
// returns, until an overdue task is delivered, and until replay is over.
func BenchmarkBulk(b *testing.B) {
	for _, c := range []struct {
		name          string
		pending, dead int
		size          int // of a payload, in bytes
	}{
		{"pending/20000x65kB", 20_000, 0, 65_000},
		{"dead/1600x65kB", 0, 1_600, 65_000},
		{"dead/1000000x200B", 0, 1_000_000, 200},
	} {
		b.Run(c.name, func(b *testing.B) {
			server := redistest.Start(b)
			payload := []byte(`"` + strings.Repeat("x", c.size) + `"`)
			bulk(b, server, c.pending, c.dead, payload)
		})
	}
}

func bulk(b *testing.B, server *redistest.Server, pending, dead int, payload []byte) {
	s := open(b, onRedis(b, server.URL()), tasks.Config{Topics: map[string]tasks.TopicSettings{
		"overdue": {Paused: true}, "dead": {Concurrency: 1024},
	}})
	if err := s.Handle("dead", func(context.Context, *tasks.Delivery) error { return tasks.Kill(errors.New("no use")) }); err != nil {
		b.Fatal(err)
	}
	add := func(n int, topic string, due time.Time) {
		requests := make([]tasks.Request, min(1000, 32<<20/len(payload)))
		for n > 0 {
			requests = requests[:min(len(requests), n)]
			for i := range requests {
				requests[i] = tasks.Request{Topic: topic, Due: due, Payload: payload}
			}
			if _, err := s.ScheduleBatch(b.Context(), requests); err != nil {
				b.Fatal(err)
			}
			n -= len(requests)
		}
	}
	add(pending, "later", time.Now().Add(24*time.Hour))
	add(dead, "dead", time.Now())
	wait(func() bool { return s.Stats().Total.Dead == int64(dead) })
	add(1, "overdue", time.Now())
	if err := s.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
	line := redistest.NewProxy(b, server.Addr)
	line.Throttle(1e9 / 8)
	for b.Loop() {
		began := time.Now()
		s := open(b, onRedis(b, line.URL()), tasks.Config{Grace: time.Millisecond})
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "open-ms")
		first := firstOverdue(b, s, "overdue", began)
		b.ReportMetric(float64((<-first).Milliseconds()), "first-overdue-ms")
		wait(func() bool { return s.Readiness().Ready })
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ready-ms")
		b.StopTimer()
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
