package engine

import (
	"cmp"
	"context"

	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A task's record has the attempts that have failed last. They are written with what a failed
// attempt writes anyway. A task that has not failed pays nothing. The record of a finished task
// that is kept has its delivery as well.

// receiverName returns the name of the receiver of deliveries that begin at a node.
func (b *beginning) receiverName(node string) string {
	named := b.topic.receiver
	if b.by == dispatch.ByReceiver {
		named = b.receiver
	}
	return cmp.Or(named, b.by.Node, node)
}

// pastAttemptLocked returns the attempt that a lease was for, which ends now.
func (s *Engine) pastAttemptLocked(sl *store.Slot, l Lease, outcome uint8, reason string) record.PastAttempt {
	a := record.PastAttempt{
		Outcome: outcome, Number: l.Attempt, Ended: s.Now(), Error: []byte(task.Cut(reason, task.MaxAttemptError)),
		By: []byte(task.Cut(cmp.Or(l.By, s.TopicTable.ByNumber[sl.Topic].receiverOf(s.Store.Record(sl))), task.MaxAttemptBy)),
	}
	if l.Began != notKnown {
		a.Took = max(1, record.RoundUpMillis(s.Elapsed()-l.Began))
	}
	return a
}

// addAttemptLocked adds an attempt to a record. It takes out those that the record has instead
// while the tasks use more than three quarters of the memory that they may: new tasks come before
// history. So the attempts of one topic that fails leave room for the tasks of all others, and the
// alert LapseMemoryRoom, at 80 %, is about tasks.
func (s *Engine) addAttemptLocked(f *record.Fields, a record.PastAttempt) {
	if s.Store.Live() > s.Config.MaxBytes/4*3 {
		f.Attempts = nil
		return
	}
	f.Attempts = record.AppendAttempt(f.Attempts, a)
}

// logCrashLocked adds the attempt that a task has claimed, and during which its process ended, to
// its record, which it returns. The caller writes it.
func (s *Engine) logCrashLocked(n uint32, sl *store.Slot) []byte {
	f := s.Store.Fields(sl)
	s.addAttemptLocked(&f, record.PastAttempt{
		Outcome: record.ProcessEnded, Number: f.Attempt, Ended: s.Now(), Error: []byte("the process ended during the attempt"),
	})
	s.Writes.scratch = f.Append(s.Writes.scratch[:0])
	s.Store.Rewrite(n, s.Writes.scratch)
	return s.Store.Record(sl)
}

var attemptOutcomes = [record.Outcomes]task.AttemptOutcome{
	record.Failed: task.AttemptFailed, record.LeaseExpired: task.AttemptLeaseExpired,
	record.GivenUp: task.AttemptBuried, record.ProcessEnded: task.AttemptProcessEnded, record.Acked: task.AttemptDelivered,
}

// attemptsOf returns the attempts of a record. Nothing of them points into the record.
func attemptsOf(f *record.Fields) []task.Attempt {
	past, err := record.DecodeAttempts(f.Attempts)
	if err != nil || len(past) == 0 {
		return nil // Decode has checked them
	}
	all := make([]task.Attempt, len(past))
	for i, a := range past {
		all[i] = task.Attempt{
			Number: int(a.Number), Ended: record.FromMillis(a.Ended), Took: millisDuration(a.Took),
			By: string(a.By), Outcome: attemptOutcomes[a.Outcome], Error: string(a.Error),
		}
	}
	return all
}

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
	s.mu.Lock()
	if t := s.TopicTable.ByName[ds[0].Topic]; t != nil {
		kind = t.Kind()
	}
	s.mu.Unlock()
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
