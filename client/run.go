package client

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

const (
	flushTime  = 5 * time.Second // for settling when a worker's grace is over
	otherCalls = 4               // concurrent calls of return, release and bury
	// patience is how old a reserve may be for its answer to be on the way.
	patience = 500 * time.Millisecond
)

// A run is one Run of a worker. A delivery is open from its reservation until it is settled. It
// waits in queue while all handlers are busy (with Prefetch, or when the worker stops), then its
// handler runs, then it is added to acks or others.
type run struct {
	*Worker
	ctx  context.Context    // ends when no more is to be reserved or begun
	stop context.CancelFunc // of ctx

	handlers   sync.WaitGroup
	handling   context.Context // of handlers; ends with the grace
	endHandler context.CancelCauseFunc
	settling   context.Context // of the calls that settle
	giveUp     context.CancelFunc
	acks       gatherer[*held]
	others     gatherer[*held]
	freed      chan struct{} // has room for one: there may be room for more deliveries

	// guarded by Worker.mu
	open    map[*held]struct{}
	queue   []*held
	running int
	failure error // what ended the run, if not its context
}

// A held delivery is one that is not settled yet.
type held struct {
	Delivery
	judgement judgement // valid once ended is true

	// guarded by Worker.mu
	until time.Time               // the end of the lease, as far as it is known
	end   context.CancelCauseFunc // ends the context of its handler; nil before that begins
	ended bool                    // it is judged: the handler has returned, or will not begin
	late  bool                    // until has passed, and the handler knows
	lost  bool                    // the server says that the delivery is over
}

func newRun(ctx context.Context, w *Worker, stop context.CancelFunc) *run {
	r := &run{Worker: w, ctx: ctx, stop: stop, freed: make(chan struct{}, 1), open: make(map[*held]struct{})}
	kept := context.WithoutCancel(ctx) // the values of ctx, but not its end
	r.handling, r.endHandler = context.WithCancelCause(kept)
	r.settling, r.giveUp = context.WithCancel(kept)
	fit := func(waiting []*held) int { return min(len(waiting), maxReceipt) }
	r.acks = gatherer[*held]{most: 1, fit: fit, call: func(batch []*held) { r.settle(batch, judgement{verb: ack}) }}
	r.others = gatherer[*held]{most: otherCalls, fit: fit, call: r.settleEach}
	return r
}

// receive reserves and begins deliveries until the run's context ends.
func (r *run) receive(ctx context.Context) {
	failures, told := 0, false
	for n := r.room(); n > 0; n = r.room() {
		asked := time.Now()
		list, err := r.reserve(ctx, n)
		r.accept(list)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !heals(err):
			r.fail(err)
			return
		case err == nil && (len(list) > 0 || time.Since(asked) >= r.o.Wait/2):
			if told {
				r.o.Log.Info("tasks can be reserved again")
			}
			failures, told = 0, false
			continue
		case err != nil && !told:
			r.o.Log.Warn("tasks cannot be reserved; trying again until they can", "error", err)
			told = true
		}
		// An answer without an error and without tasks means that the server does not wait: it
		// shuts down.
		r.client.rest(ctx, failures, err)
		failures++
	}
}

// reserve makes one call. If ctx ends while the answer may be on its way already, it waits for the
// answer: otherwise no receiver would have those tasks until their leases are over. An older call
// waits for tasks, and is given up.
func (r *run) reserve(ctx context.Context, n int) ([]Delivery, error) {
	polling, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	asked := time.Now()
	defer context.AfterFunc(ctx, func() {
		timer := time.NewTimer(patience - time.Since(asked))
		defer timer.Stop()
		select {
		case <-timer.C:
			giveUp()
		case <-polling.Done():
		}
	})()
	return r.client.Reserve(polling, r.topic, Reservation{Max: n, Wait: r.o.Wait, Lease: r.o.Lease})
}

// room waits until there is room for deliveries, and returns for how many; 0 when the run's context
// has ended. Besides those that handlers can take, as many again may wait for the answer to their
// settlement.
func (r *run) room() int {
	for r.ctx.Err() == nil {
		most := r.o.Concurrency + r.o.Prefetch
		r.mu.Lock()
		n := min(most-r.running-len(r.queue), 2*most-len(r.open), maxReceipt)
		r.mu.Unlock()
		if n > 0 {
			return n
		}
		select {
		case <-r.freed:
		case <-r.ctx.Done():
		}
	}
	return 0
}

// accept adds deliveries to the run, and begins as many as there are handlers.
func (r *run) accept(list []Delivery) {
	until := time.Now().Add(r.o.Lease)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.totals.Reserved += int64(len(list))
	for i := range list {
		h := &held{Delivery: list[i], until: until}
		r.open[h] = struct{}{}
		r.queue = append(r.queue, h)
	}
	for r.running < r.o.Concurrency && r.beginLocked() {
		r.running++
	}
}

// beginLocked starts the handler of the delivery that has waited longest. It reports false if there
// is none, or none may begin any more.
func (r *run) beginLocked() bool {
	if len(r.queue) == 0 || r.ctx.Err() != nil {
		return false
	}
	h := r.queue[0]
	r.queue[0] = nil
	r.queue = r.queue[1:]
	ctx, end := context.WithCancelCause(r.handling)
	h.end = end
	r.handlers.Add(1)
	go r.handle(ctx, h)
	return true
}

// handle runs the handler of a delivery, and hands its judgement over for settling.
func (r *run) handle(ctx context.Context, h *held) {
	defer r.handlers.Done()
	h.judgement = judgement{verb: release, reason: "the handler ended its goroutine"}
	defer func() { // also when the handler has ended this goroutine
		j := &h.judgement
		if j.verb == release && !j.given && errors.Is(context.Cause(ctx), ErrStopped) {
			j.given = true // at once: the task is not at fault
		}
		h.end(nil)
		r.mu.Lock()
		h.ended = true
		if !r.beginLocked() {
			r.running--
		}
		lost := h.lost
		if lost {
			r.closeLocked(h)
			r.totals.Lost++
		}
		r.mu.Unlock()
		switch {
		case lost:
		case j.verb == ack:
			r.acks.add(h)
		default:
			r.others.add(h)
		}
		r.free()
	}()
	h.judgement = r.attempt(ctx, h)
	if h.judgement.verb != ack {
		r.o.Log.Debug("an attempt has failed", "task", h.ID, "attempt", h.Attempt, "error", h.judgement.reason)
	}
}

// attempt calls the handler.
func (r *run) attempt(ctx context.Context, h *held) (j judgement) {
	defer func() {
		if p := recover(); p != nil {
			j = judgement{verb: release, reason: reason(fmt.Sprintf("panic: %v", p))}
			r.o.Log.Error("a handler panicked", "task", h.ID, "attempt", h.Attempt, "panic", p, "stack", string(debug.Stack()))
			r.mu.Lock()
			r.totals.Panicked++
			r.mu.Unlock()
		}
	}()
	d := h.Delivery // a copy: the receipt is ours
	return judge(r.handler(ctx, &d))
}

// drain ends a run whose context has ended.
func (r *run) drain() error {
	r.giveBack()
	done := make(chan struct{})
	go func() { r.handlers.Wait(); close(done) }()
	grace := time.NewTimer(r.o.Grace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
		r.endHandler(ErrStopped)
	}
	flush, cancel := context.WithTimeout(context.Background(), flushTime)
	defer cancel()
	await(flush, done)
	await(flush, r.acks.idle())
	await(flush, r.others.idle())
	r.giveUp()
	<-r.acks.idle()
	<-r.others.idle()
	r.endHandler(ErrStopped)
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.failure
	if n := len(r.open); n > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %d of them, %d with handlers that still run", ErrUnsettled, n, r.running))
	}
	return err
}

// await waits until c is closed, or ctx ends.
func await(ctx context.Context, c <-chan struct{}) {
	select {
	case <-c:
	case <-ctx.Done():
	}
}

// giveBack returns deliveries whose handlers have not begun.
func (r *run) giveBack() {
	r.mu.Lock()
	waiting := r.queue
	r.queue = nil
	for _, h := range waiting {
		h.ended = true
		h.judgement = judgement{verb: giveBack}
	}
	r.mu.Unlock()
	for _, h := range waiting {
		r.others.add(h)
	}
}

// fail ends the run for a reason that does not pass.
func (r *run) fail(err error) {
	r.mu.Lock()
	if r.failure == nil {
		r.failure = err
	}
	r.mu.Unlock()
	r.stop()
}

// closeLocked removes a delivery from the run, whatever its outcome was.
func (r *run) closeLocked(h *held) { delete(r.open, h) }

// free wakes room.
func (r *run) free() {
	select {
	case r.freed <- struct{}{}:
	default:
	}
}
