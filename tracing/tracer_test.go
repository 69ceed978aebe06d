package tracing_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tracing"
)

// A rig is a scheduler that makes spans, in fake time.
type rig struct {
	*tasks.Scheduler
	t        *testing.T
	spans    *tracetest.SpanRecorder
	provider *sdk.TracerProvider
}

func bubble(t *testing.T, test func(t *testing.T, r *rig), options ...sdk.TracerProviderOption) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, spans: tracetest.NewSpanRecorder()}
		r.provider = sdk.NewTracerProvider(append(options, sdk.WithSpanProcessor(r.spans))...)
		r.Scheduler = open(t, r.provider)
		test(t, r)
	})
}

func open(t *testing.T, provider trace.TracerProvider) *tasks.Scheduler {
	s, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Tracer: tracing.New(provider), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// named returns the only span with a name.
func (r *rig) named(name string) sdk.ReadOnlySpan {
	r.t.Helper()
	var found []sdk.ReadOnlySpan
	for _, s := range r.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	if len(found) != 1 {
		r.t.Fatalf("%d spans %q among %d", len(found), name, len(r.spans.Ended()))
	}
	return found[0]
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestSpansOfAProgram(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var inner trace.SpanContext
		if err := r.Handle("t", func(ctx context.Context, d *tasks.Delivery) error {
			inner = trace.SpanContextFromContext(ctx)
			if !strings.Contains(d.Headers["traceparent"], inner.SpanID().String()) {
				t.Errorf("the handler gets the headers %v in the span %v", d.Headers, inner)
			}
			return tasks.Kill(errors.New("no \xff use"))
		}); err != nil {
			t.Fatal(err)
		}
		// The span of the program comes before the trace of a request that it may have got.
		ctx, caller := r.provider.Tracer("test").Start(t.Context(), "caller")
		ctx = tasks.WithTrace(ctx, tasks.ParseTrace(parent, ""))
		if _, err := r.Schedule(ctx, tasks.Request{ID: "a", Topic: "t", Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
		caller.End()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		schedule, attempt := r.named("schedule t"), r.named("deliver t")
		if schedule.Parent().SpanID() != caller.SpanContext().SpanID() {
			t.Errorf("the parent of the scheduling span is %v", schedule.Parent())
		}
		if attempt.SpanContext().SpanID() != inner.SpanID() || attempt.Parent().IsValid() || len(attempt.Links()) != 1 ||
			attempt.Links()[0].SpanContext.SpanID() != schedule.SpanContext().SpanID() {
			t.Errorf("the attempt %v, below %v, has the links %v", attempt.SpanContext(), attempt.Parent(), attempt.Links())
		}
		if s := attempt.Status(); s.Code != codes.Error || s.Description != "no ? use" {
			t.Errorf("its status is %+v", s)
		}
	})
}

// batches delivers many tasks at once.
type batches struct{ got chan []*tasks.Delivery }

func (b batches) Deliver(ctx context.Context, d *tasks.Delivery) error {
	return b.DeliverBatch(ctx, []*tasks.Delivery{d})[0]
}

func (b batches) DeliverBatch(_ context.Context, ds []*tasks.Delivery) []error {
	b.got <- ds
	return make([]error, len(ds))
}

func TestSpansOfABatch(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		b := batches{make(chan []*tasks.Delivery, 10)}
		if err := r.Deliver("t", b); err != nil {
			t.Fatal(err)
		}
		requests := make([]tasks.Request, 10)
		for i := range requests {
			requests[i] = tasks.Request{Topic: "t", Delay: time.Second}
		}
		requests[9].Topic = "not a topic"
		if _, err := r.ScheduleBatch(t.Context(), requests); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		close(b.got)
		parents := make(map[string]bool)
		for ds := range b.got {
			for _, d := range ds {
				parents[d.Headers["traceparent"]] = true
			}
		}
		schedule, attempts := r.named("schedule"), 0
		for _, s := range r.spans.Ended() {
			if s.Name() == "deliver t" {
				attempts++
				if s.Links()[0].SpanContext.SpanID() != schedule.SpanContext().SpanID() {
					t.Errorf("an attempt has a link to %v", s.Links()[0].SpanContext)
				}
			}
		}
		if len(parents) != 9 || attempts != 9 {
			t.Errorf("%d traceparents, %d spans of attempts", len(parents), attempts)
		}
	})
}

// Where no span is sampled, or none is made, the trace of the caller still comes through: to the
// task and to its receiver. The receiver's own call has a trace as well, which is not the task's.
func TestTracesThatAreNotSampled(t *testing.T) {
	pull := func(t *testing.T, s *tasks.Scheduler) map[string]string {
		t.Helper()
		ctx, span := sdk.NewTracerProvider().Tracer("receiver").Start(t.Context(), "pull")
		defer span.End()
		ds, err := s.Reserve(ctx, "t", 1, time.Minute, 0)
		if err != nil {
			t.Fatal(err)
		}
		return ds[0].Headers
	}
	check := func(t *testing.T, s *tasks.Scheduler) {
		t.Helper()
		caused := tasks.WithTrace(t.Context(), tasks.ParseTrace(parent, "a=b"))
		inProgram, span := sdk.NewTracerProvider().Tracer("program").Start(caused, "caller")
		defer span.End()
		own := span.SpanContext()
		for _, c := range []struct {
			ctx           context.Context
			parent, state string
		}{{caused, parent, "a=b"}, {inProgram, "00-" + own.TraceID().String() + "-" + own.SpanID().String() + "-01", ""}} {
			got, err := s.Schedule(c.ctx, tasks.Request{Topic: "t"})
			if err != nil {
				t.Fatal(err)
			}
			for what, h := range map[string]map[string]string{"the task": got.Headers, "the receiver": pull(t, s)} {
				if h["traceparent"] != c.parent || h["tracestate"] != c.state {
					t.Errorf("%s has the headers %v; want %s", what, h, c.parent)
				}
			}
		}
	}
	bubble(t, func(t *testing.T, r *rig) {
		check(t, r.Scheduler)
		// Without a caller's trace the task has what says that its call was not sampled.
		got, err := r.Schedule(t.Context(), tasks.Request{Topic: "t"})
		if err != nil {
			t.Fatal(err)
		}
		kept := got.Headers["traceparent"]
		if h := pull(t, r.Scheduler); !strings.HasSuffix(kept, "-00") || h["traceparent"] != kept {
			t.Errorf("the task keeps %s, its receiver gets the headers %v", kept, h)
		}
		if n := len(r.spans.Ended()); n != 0 {
			t.Errorf("%d spans", n)
		}
	}, sdk.WithSampler(sdk.NeverSample()))
	synctest.Test(t, func(t *testing.T) {
		s := open(t, noop.NewTracerProvider())
		check(t, s)
		got, err := s.Schedule(t.Context(), tasks.Request{Topic: "t"})
		if h := pull(t, s); err != nil || len(got.Headers) != 0 || len(h) != 0 {
			t.Errorf("%v: the task has the headers %v, its receiver %v", err, got.Headers, h)
		}
	})
}

// A refused batch is one span, whatever its requests say.
func TestSpanOfARefusal(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		_, _ = r.Schedule(t.Context(), tasks.Request{ID: "\xff", Topic: "\xff"})
		s := r.named("schedule")
		if s.Status().Code != codes.Error {
			t.Errorf("its status is %+v", s.Status())
		}
		_, err := r.ScheduleBatch(t.Context(), make([]tasks.Request, tasks.MaxBatch+1))
		if !errors.Is(err, tasks.ErrInvalid) || len(r.spans.Ended()) != 1 {
			t.Errorf("%v, %d spans", err, len(r.spans.Ended()))
		}
	})
}
