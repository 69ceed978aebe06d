package engine

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// addTrace appends the trace of the call that creates a task, if any, to its encoded headers. A
// caller that has put a trace into the headers keeps that. Past the limits of headers it leaves out
// first the tracestate, then all of it.
func addTrace(encoded []byte, headers map[string]string, t *task.TraceContext) []byte {
	if t == nil || t.Parent == "" || len(headers) >= task.MaxHeaders {
		return encoded
	}
	_, parent := headers[task.TraceParent]
	_, state := headers[task.TraceState]
	if parent || state {
		return encoded
	}
	with := record.AppendHeader(encoded[:len(encoded):len(encoded)], task.TraceParent, t.Parent)
	if len(with) > task.MaxHeaderBytes {
		return encoded
	}
	if t.State == "" || len(headers) == task.MaxHeaders-1 {
		return with
	}
	if all := record.AppendHeader(with, task.TraceState, t.State); len(all) <= task.MaxHeaderBytes {
		return all
	}
	return with
}

// trace begins a span for each attempt that a worker makes, and has its receiver get the trace of
// that. It returns the context for the deliverer, which has the span if it is one attempt, and what
// ends the spans.
func (s *Engine) trace(ctx context.Context, ds []*Delivery) (inner context.Context, ends []func(task.Judgement)) {
	kind := task.Handler
	s.Mu.Lock()
	if t := s.TopicTable.ByName[ds[0].Topic]; t != nil {
		kind = t.Kind()
	}
	s.Mu.Unlock()
	ends = make([]func(task.Judgement), len(ds))
	for i, d := range ds {
		var t task.TraceContext
		inner, t, ends[i] = s.Config.Tracer.Attempt(ctx, &d.Delivery, kind)
		d.SendTrace(t)
	}
	if len(ds) > 1 {
		inner = ctx
	}
	return inner, ends
}

// endSpans ends the spans of attempts as these were judged.
func endSpans(ends []func(task.Judgement), vs []task.Judgement) {
	for i, end := range ends {
		end(vs[i])
	}
}

// TraceReserved makes a span of an attempt that a receiver of this node has reserved, and has the
// receiver get the trace of that. The span ends here: what settles the delivery may come to any
// node.
func (s *Engine) TraceReserved(ctx context.Context, d *Delivery) {
	if s.Config.Tracer == nil {
		return
	}
	_, t, end := s.Config.Tracer.Attempt(ctx, &d.Delivery, task.Pull)
	d.SendTrace(t)
	end(task.Judgement{})
}
