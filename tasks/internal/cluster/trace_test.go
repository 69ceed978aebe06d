package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// traceOf returns the nth trace context of the tests.
func traceOf(n int) TraceContext {
	return TraceContext{Parent: fmt.Sprintf("00-%032x-%016x-01", n, n), State: fmt.Sprintf("vendor=%d", n)}
}

func traced(t testing.TB, n int) context.Context { return WithTrace(t.Context(), traceOf(n)) }

// wantHeaders fails the test unless a task has exactly these headers.
func wantHeaders(t testing.TB, what string, task Task, headers map[string]string) {
	t.Helper()
	if !maps.Equal(task.Headers, headers) {
		t.Errorf("%s has the headers %q; want %q", what, task.Headers, headers)
	}
}

// headersOf returns those of the nth trace, and others.
func headersOf(n int, others ...string) map[string]string {
	h := map[string]string{"traceparent": traceOf(n).Parent, "tracestate": traceOf(n).State}
	for i := 0; i < len(others); i += 2 {
		h[others[i]] = others[i+1]
	}
	return h
}

func TestTraceIsKept(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		request := Request{ID: "a", Topic: "t", Delay: time.Hour, Headers: map[string]string{"tenant": "eu"}}
		got, err := r.Schedule(traced(t, 1), request)
		rig.Want(t, "Schedule", err, nil)
		wantHeaders(t, "the answer", got, headersOf(1, "tenant", "eu"))

		for n, ctx := range []context.Context{traced(t, 2), t.Context()} {
			got, err = r.Schedule(ctx, request)
			rig.Want(t, "the repeated Schedule", err, nil)
			if !got.Repeated {
				t.Errorf("another trace (%d) makes another request", n)
			}
			wantHeaders(t, "the repeated answer", got, headersOf(1, "tenant", "eu"))
		}
		got, err = r.Reschedule(traced(t, 3), "a", Move{Delay: rig.Ptr(2 * time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		wantHeaders(t, "moved, it", got, headersOf(1, "tenant", "eu"))
		got, err = r.Replace(traced(t, 4), request)
		rig.Want(t, "Replace", err, nil)
		wantHeaders(t, "replaced, it", got, headersOf(4, "tenant", "eu"))

		r.Crash()
		rig.Pass(0)
		wantHeaders(t, "after a crash, it", r.MustGet("a"), headersOf(4, "tenant", "eu"))
		rig.Pass(time.Hour)
		d := r.Pull("t", "a")[0]
		wantHeaders(t, "the delivery", d.Task, headersOf(4, "tenant", "eu"))
		r.SettleOne(Verdict{Verb: Bury}, d)
		wantHeaders(t, "dead, it", r.MustGet("a"), headersOf(4, "tenant", "eu"))
		_, err = r.Admin().Requeue(t.Context(), "t", Requeue{})
		rig.Want(t, "Requeue", err, nil)
		wantHeaders(t, "requeued, it", r.Pull("t", "a")[0].Task, headersOf(4, "tenant", "eu"))
	})
}

func TestTraceOfABatch(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		own := map[string]string{"traceparent": traceOf(7).Parent}
		requests := []Request{
			{ID: "a", Topic: "t", Delay: time.Hour},
			{ID: "b", Topic: "t", Delay: time.Hour, Headers: own},
			{ID: "c", Topic: "t", Delay: time.Hour, Headers: map[string]string{"traceparent": ""}},
		}
		for n := range 2 { // once more with another trace: repeated
			results, err := r.ScheduleBatch(traced(t, 1+n), requests)
			rig.Want(t, "ScheduleBatch", err, nil)
			for _, a := range results {
				rig.Want(t, "task "+a.ID, a.Err, nil)
			}
		}
		if n := r.Stats().Total.Scheduled; n != 3 {
			t.Errorf("%d tasks were scheduled", n)
		}
		wantHeaders(t, "a", r.MustGet("a"), headersOf(1))
		wantHeaders(t, "b, which has its own,", r.MustGet("b"), own)
		wantHeaders(t, "c, which wants none,", r.MustGet("c"), requests[2].Headers)
	})
}

// The limits of headers are those of what receivers get. They are the caller's to use: a trace
// takes what is left of them, and is never the reason why a task is refused.
func TestTraceTakesWhatRoomIsLeft(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		many := func(n, size int) map[string]string {
			h := make(map[string]string)
			for i := range n {
				h[fmt.Sprintf("x%02d", i)] = strings.Repeat("v", size)
			}
			return h
		}
		parent := map[string]string{"traceparent": traceOf(1).Parent}
		with := func(h map[string]string, more map[string]string) map[string]string {
			h = maps.Clone(h)
			maps.Copy(h, more)
			return h
		}
		// A pair takes its bytes and two more for lengths, three from 128 bytes on.
		one := func(left int) map[string]string {
			return map[string]string{"x": strings.Repeat("v", MaxHeaderBytes-4-left)}
		}
		const parentSize, stateSize = 2 + 11 + 55, 2 + 10 + 8
		for i, c := range []struct{ own, want map[string]string }{
			{many(MaxHeaders, 1), many(MaxHeaders, 1)},
			{many(MaxHeaders-1, 1), with(many(MaxHeaders-1, 1), parent)},
			{many(MaxHeaders-2, 1), with(many(MaxHeaders-2, 1), headersOf(1))},
			{one(parentSize - 1), one(parentSize - 1)},
			{one(parentSize), with(one(parentSize), parent)},
			{one(parentSize + stateSize - 1), with(one(parentSize+stateSize-1), parent)},
			{one(parentSize + stateSize), with(one(parentSize+stateSize), headersOf(1))},
		} {
			got, err := r.Schedule(traced(t, 1), Request{Topic: "t", Delay: time.Hour, Headers: c.own})
			rig.Want(t, fmt.Sprint("Schedule ", i), err, nil)
			wantHeaders(t, fmt.Sprint("task ", i), got, c.want)
		}
	})
}

func TestTraceAtEveryNode(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		f.Each(func(what string, owner, asked *rig.Node, task Task) {
			request := Request{ID: task.ID, Topic: "t", Delay: time.Hour}
			at := func(verb string, n int) {
				t.Helper()
				got, err := owner.Get(t.Context(), task.ID)
				rig.Want(t, "Get of "+what, err, nil)
				wantHeaders(t, what+" after "+verb, got, headersOf(n))
			}
			_, err := asked.Replace(traced(t, 1), request)
			rig.Want(t, "Replace of "+what, err, nil)
			at("Replace", 1)
			// The limits of the caller travel with the trace.
			limited := WithGrant(traced(t, 2), &Grant{Topics: []string{"t"}})
			rig.Want(t, "Cancel of "+what, asked.Cancel(t.Context(), task.ID), nil)
			_, err = asked.Schedule(limited, request)
			rig.Want(t, "Schedule of "+what, err, nil)
			_, err = asked.Schedule(traced(t, 3), request)
			rig.Want(t, "Schedule of "+what+" again", err, nil)
			found, err := asked.Get(t.Context(), task.ID)
			rig.Want(t, "Get of "+what, err, nil)
			wantHeaders(t, what+" after Schedule", found, headersOf(2))
			rig.Want(t, "Cancel of "+what, asked.Cancel(t.Context(), task.ID), nil)
			results, err := asked.ScheduleBatch(traced(t, 4), []Request{request})
			rig.Want(t, "ScheduleBatch of "+what, err, nil)
			rig.Want(t, "the batch of "+what, results[0].Err, nil)
			found, err = asked.Get(t.Context(), task.ID)
			rig.Want(t, "Get of "+what, err, nil)
			wantHeaders(t, what+" after ScheduleBatch", found, headersOf(4))
		})
	})
}

// A fakeTracer numbers the spans that it begins.
type fakeTracer struct {
	mu    sync.Mutex // guards the rest
	spans int
	open  int
	links map[string]int // attempts by the trace that their task keeps
}

func (f *fakeTracer) begin() TraceContext {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spans++
	f.open++
	return traceOf(f.spans)
}

func (f *fakeTracer) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
}

func (f *fakeTracer) Schedule(context.Context, []Request) (TraceContext, func([]Result)) {
	return f.begin(), func([]Result) { f.end() }
}

func (f *fakeTracer) Attempt(ctx context.Context, d *Delivery, _ Kind) (context.Context, TraceContext, func(task.Judgement)) {
	f.mu.Lock()
	if f.links == nil {
		f.links = make(map[string]int)
	}
	f.links[d.Headers["traceparent"]]++
	f.mu.Unlock()
	return ctx, f.begin(), func(task.Judgement) { f.end() }
}

// Whichever node has the task, the node that makes an attempt, or hands it to the receiver, makes
// one span of it, and the receiver gets the trace of that.
func TestAttemptsOfOtherNodesAreTraced(t *testing.T) {
	tracer := &fakeTracer{}
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		plain, tracing := f.Node("a"), f.Node("b")
		ctx := WithTrace(t.Context(), traceOf(99))
		_, err := plain.Schedule(ctx, Request{ID: "a", Topic: "t"})
		rig.Want(t, "Schedule", err, nil)
		ds, err := tracing.Reserve(t.Context(), "t", 1, time.Minute, 0)
		rig.Want(t, "Reserve at the node that makes spans", err, nil)
		wantHeaders(t, "reserved, it", ds[0].Task, headersOf(1))
		_, err = tracing.Settle(t.Context(), Verdict{Verb: Release, Delay: rig.Ptr(time.Duration(0))}, []string{ds[0].Receipt()})
		rig.Want(t, "Settle", err, nil)
		ds, err = plain.Reserve(t.Context(), "t", 1, time.Minute, 0)
		rig.Want(t, "Reserve at the other", err, nil)
		wantHeaders(t, "reserved again, it", ds[0].Task, headersOf(99))

		// The span of a request is made where it comes in, wherever its task belongs.
		_, err = tracing.Replace(t.Context(), Request{ID: "b", Topic: "u", Delay: time.Hour})
		rig.Want(t, "Replace", err, nil)
		got, err := plain.Get(t.Context(), "b")
		rig.Want(t, "Get", err, nil)
		wantHeaders(t, "replaced, it", got, headersOf(2))
		task := plain.Must(Request{Topic: "u", Delay: time.Hour})
		got, err = tracing.Replace(t.Context(), Request{ID: task.ID, Topic: "u", Delay: time.Hour})
		rig.Want(t, "Replace of a task of the other node", err, nil)
		wantHeaders(t, "it", got, headersOf(3))
		if tracer.spans != 3 || tracer.open != 0 {
			t.Errorf("%d spans, %d of them open", tracer.spans, tracer.open)
		}
	}, Config{}, Config{Tracer: tracer})
}

// A node that takes a part of a backlog makes the spans of its attempts, with links to what has
// scheduled the tasks at the node that has them.
func TestOffloadedAttemptsAreTraced(t *testing.T) {
	const count = 2000
	here, there := &fakeTracer{}, &fakeTracer{}
	rig.PoolBubble(t, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		for _, n := range f.Nodes {
			if err := n.Handle("x", func(context.Context, *Delivery) error {
				time.Sleep(100 * time.Millisecond)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		reqs := make([]Request, count)
		for i := range reqs {
			reqs[i] = Request{Topic: "x", Delay: time.Minute}
		}
		_, err := a.ScheduleBatch(t.Context(), reqs)
		rig.Want(t, "ScheduleBatch", err, nil)
		for a.Stats().Total.Delivered < count {
			rig.Pass(time.Second)
		}
		// Each task keeps span 1 of the first node, which is that of the batch.
		if linked := there.links[traceOf(1).Parent]; there.spans == 0 || linked != there.spans || here.open != 0 || there.open != 0 {
			t.Errorf("%d attempts of the helper, %d of them with a link to the batch; %d and %d spans are open",
				there.spans, linked, here.open, there.open)
		}
		if got := here.spans - 1 + there.spans; got != count {
			t.Errorf("%d spans of attempts; want %d", got, count)
		}
	}, Config{SweepBacklog: 100, Tracer: here}, Config{SweepHelper: []string{"backlog"}, Tracer: there})
}
