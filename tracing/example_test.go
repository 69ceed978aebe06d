package tracing_test

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tracing"
)

// A program passes the provider that it has, with its own exporter and sampler.
func ExampleNew() {
	ctx := context.Background()
	spans := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(spans))

	s, err := tasks.Open(ctx, memledger.New(), tasks.Config{Tracer: tracing.New(provider)})
	if err != nil {
		panic(err)
	}
	done := make(chan bool)
	if err := s.Handle("order.unpaid", func(context.Context, *tasks.Delivery) error {
		close(done)
		return nil
	}); err != nil {
		panic(err)
	}
	if _, err := s.Schedule(ctx, tasks.Request{ID: "42", Topic: "order.unpaid"}); err != nil {
		panic(err)
	}
	<-done
	if err := s.Close(ctx); err != nil {
		panic(err)
	}
	for _, span := range spans.GetSpans() {
		fmt.Println(span.SpanKind, span.Name, len(span.Links))
	}
	// Unordered output:
	// producer schedule order.unpaid 0
	// consumer deliver order.unpaid 1
}
