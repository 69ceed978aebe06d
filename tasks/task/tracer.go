package task

import "context"

// A Tracer makes spans of what a scheduler does, such as that of package tracing. Its methods are
// called from many goroutines, without any lock held, and must not wait for anything.
type Tracer interface {
	// Schedule begins the span of a call that creates tasks: one of Schedule and Replace, up to
	// MaxBatch of ScheduleBatch. The requests are not checked yet. What has caused the call is in
	// ctx, as the tracer puts it there or as TraceOf. Schedule returns the trace that the tasks
	// keep, and the function that ends the span, which takes a result for each request,
	// or one for all of them.
	Schedule(ctx context.Context, requests []Request) (TraceContext, func([]Result))
	// Attempt begins the span of an attempt. The headers of d have the trace that the task keeps.
	// It returns the context for the deliverer, the trace that goes to the receiver, and the
	// function that ends the span. With the zero value as trace, the receiver gets the one that
	// the task keeps. A judgement without a verb leaves the delivery open: only its receipt
	// settles it.
	Attempt(ctx context.Context, d *Delivery, kind Kind) (context.Context, TraceContext, func(Judgement))
}

// SendTrace makes t the trace that the receiver of the delivery gets, unless it is the zero value.
func (d *Delivery) SendTrace(t TraceContext) {
	if t.Parent == "" {
		return
	}
	if d.Headers == nil {
		d.Headers = make(map[string]string, 1)
	}
	d.Headers[TraceParent] = t.Parent
	if delete(d.Headers, TraceState); t.State != "" {
		d.Headers[TraceState] = t.State
	}
}
