package client

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Causes of the end of a handler's context, see context.Cause.
var (
	// ErrLeaseLost: the lease could not be extended, because the server says that the delivery is
	// over, or did not answer for too long. Another worker may have the task.
	ErrLeaseLost = errors.New("the lease was lost")
	// ErrStopped: the worker has stopped, and its grace is over.
	ErrStopped = errors.New("the worker has stopped")
)

// Errors of Worker.Run.
var (
	// ErrRunning: Run was called before an earlier call has returned.
	ErrRunning = errors.New("the worker runs already")
	// ErrUnsettled: deliveries were left open, because their handlers did not return, or the server
	// did not answer. Their tasks are delivered again after their leases.
	ErrUnsettled = errors.New("deliveries are left unsettled")
)

// WorkerOptions configure a worker. The zero value of each is its default.
type WorkerOptions struct {
	// Concurrency is how many handlers may run at once, 1 to 10,000. Default 16.
	Concurrency int
	// Prefetch is how many deliveries may wait for a handler, 0 to 1,000. Default 0: no more are
	// reserved than can begin at once. A few hide the time of the calls from handlers that take no
	// longer than a call. Deliveries that still wait when the worker stops are returned, and do not
	// count as attempts.
	Prefetch int
	// Lease is for how long other receivers do not get the tasks of a worker that has died, 1 s to
	// 24 h. Default 30 s. It bounds no handler: it is extended between a third and half of the
	// time.
	Lease time.Duration
	// Wait is how long a call waits for tasks, 1 s to 60 s. Default 30 s. A proxy on the way
	// must not cut it short.
	Wait time.Duration
	// Grace is how long handlers may run on when the worker stops, 1 ms to 24 h. Default
	// 10 s.
	Grace time.Duration
	// Log receives messages for the operator: panics, lost leases, a server that went away and came
	// back; and each failed attempt at level debug. Default slog.Default().
	Log *slog.Logger
}

// A Worker receives the tasks of one topic: it reserves ready tasks, hands each delivery to a
// handler, extends leases while handlers run, and settles the deliveries by their results. For
// several topics make several workers; they may share a Client.
type Worker struct {
	client  *Client
	topic   string
	handler Handler
	o       WorkerOptions // with defaults

	mu     sync.Mutex // guards everything below, and the run's
	totals WorkerStats
	run    *run // the current one, or nil
}

// WorkerStats are totals since the worker was made, and counts of this moment.
type WorkerStats struct {
	Reserved int64 // deliveries that came
	Acked    int64 // finished
	Released int64 // failed: delivered again, or dead after the last attempt
	Buried   int64 // given up with Kill
	Returned int64 // given back before they began, because the worker stopped; no attempts
	Lost     int64 // whose lease was lost before they were settled
	Panicked int64 // handlers that panicked; they also count in one of the above
	Extended int64 // leases that were extended

	Waiting   int // deliveries that wait for a handler
	Running   int // handlers that run
	Unsettled int // deliveries that are not settled yet, those above included
}

// NewWorker makes a worker for a topic. It does not connect. The error names everything
// that is wrong with the arguments.
func NewWorker(c *Client, topic string, h Handler, o WorkerOptions) (*Worker, error) {
	f := optionFaults{}
	if c == nil {
		f.add("the client must be given")
	}
	if _, err := pathOf("", "topic", topic); err != nil {
		f.add("the topic must be given")
	}
	if h == nil {
		f.add("the handler must be given")
	}
	o.Concurrency = f.number("Concurrency", o.Concurrency, 16, 1, 10_000)
	o.Prefetch = f.number("Prefetch", o.Prefetch, 0, 0, 1000)
	o.Lease = f.span("Lease", o.Lease, 30*time.Second, time.Second, day)
	o.Wait = f.span("Wait", o.Wait, 30*time.Second, time.Second, time.Minute)
	o.Grace = f.span("Grace", o.Grace, 10*time.Second, time.Millisecond, day)
	if err := f.err(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	o.Log = o.Log.With("topic", topic)
	return &Worker{client: c, topic: topic, handler: h, o: o}, nil
}

// Run receives until ctx ends, and then returns nil once the open deliveries are settled. It
// reserves nothing more. Deliveries that have not begun are returned: their tasks are ready at once
// for other receivers, and the attempts do not count. Handlers get Grace, after which their
// contexts end. Their results are settled. That takes at most Grace and five seconds more.
//
// While the server is away or overloaded Run waits, without a bound, and handlers run on. An error
// that does not pass ends Run as the end of ctx does, and is returned: ErrUnauthorized, ErrHandled,
// ErrInvalid (a topic's name), or another *Problem that says that this is no server for this
// client. Run also returns ErrUnsettled when deliveries were left open, and ErrRunning when it is
// called twice at once. It may be called again after it has returned.
func (w *Worker) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	r := newRun(ctx, w, stop)
	w.mu.Lock()
	if w.run != nil {
		w.mu.Unlock()
		return ErrRunning
	}
	w.run = r
	w.mu.Unlock()
	var keeper sync.WaitGroup
	keeping, settled := context.WithCancel(context.WithoutCancel(ctx))
	keeper.Go(func() { r.keep(keeping) })
	r.receive(ctx)
	err := r.drain()
	settled()
	keeper.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run = nil
	return err
}

// Stats returns the counts of the worker.
func (w *Worker) Stats() WorkerStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.totals
	if r := w.run; r != nil {
		s.Waiting, s.Running, s.Unsettled = len(r.queue), r.running, len(r.open)
	}
	return s
}
