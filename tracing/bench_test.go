package tracing_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tracing"
)

// BenchmarkTraces schedules tasks that are due, and waits until a handler has had all of them:
// without a tracer, as a server without a collector; with one whose sampler takes no span; and with
// one that takes all of them, and throws them away. Compare the second and third with the first.
func BenchmarkTraces(b *testing.B) {
	for _, c := range []struct {
		name   string
		tracer func() tasks.Tracer
	}{
		{"off", func() tasks.Tracer { return nil }},
		{"unsampled", func() tasks.Tracer { return tracing.New(sdk.NewTracerProvider(sdk.WithSampler(sdk.NeverSample()))) }},
		{"sampled", func() tasks.Tracer { return tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(discarded{}))) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, err := tasks.Open(b.Context(), memledger.New(), tasks.Config{Tracer: c.tracer(), Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close(context.Background())
			var handled atomic.Int64
			all := make(chan struct{})
			err = s.Handle("t", func(context.Context, *tasks.Delivery) error {
				if handled.Add(1) == int64(b.N) {
					close(all)
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				if _, err := s.Schedule(b.Context(), tasks.Request{Topic: "t"}); err != nil {
					b.Fatal(err)
				}
			}
			<-all
		})
	}
}

// discarded is a processor of spans that does nothing with them.
type discarded struct{}

func (discarded) OnStart(context.Context, sdk.ReadWriteSpan) {}
func (discarded) OnEnd(sdk.ReadOnlySpan)                     {}
func (discarded) Shutdown(context.Context) error             { return nil }
func (discarded) ForceFlush(context.Context) error           { return nil }
