package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/task"
)

// ParseTrace returns the trace context that the headers traceparent and tracestate say, see
// task.ParseTrace.
func ParseTrace(parent, state string) TraceContext { return task.ParseTrace(parent, state) }

// WithTrace makes the context of a Schedule, ScheduleBatch or Replace that the trace has caused:
// its tasks keep it in their headers, see task.WithTrace.
func WithTrace(ctx context.Context, t TraceContext) context.Context { return task.WithTrace(ctx, t) }

// TraceOf returns the trace of a call, the zero value if there is none.
func TraceOf(ctx context.Context) TraceContext { return task.TraceOf(ctx) }

// traced makes a span of a call that creates one task.
func (s *Scheduler) traced(ctx context.Context, r Request, call func(context.Context, Request) (Task, error)) (Task, error) {
	trace, end := s.engine.Config.Tracer.Schedule(ctx, []Request{r})
	t, err := call(WithTrace(ctx, trace), r)
	end([]Result{{ID: t.ID, Err: err}})
	return t, err
}
