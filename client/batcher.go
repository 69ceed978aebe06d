package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
)

// ErrClosed is returned by a Batcher that was closed. Nothing has happened.
var ErrClosed = errors.New("the batcher is closed")

// BatcherOptions configure a batcher. The zero value of each is its default.
type BatcherOptions struct {
	// Calls is how many calls may be under way at once, 1 to 64. Default 2.
	Calls int
	// MaxBatch is how many tasks one call may carry, 1 to 10,000. Default 1,000. A call
	// carries no more than 4 MiB either, unless a single task has more.
	MaxBatch int
	// MaxWaiting bounds the tasks that wait or are under way, 1 to 1,000,000. Default
	// 10,000. A Schedule beyond it waits for room.
	MaxWaiting int
}

// maxBatchBytes keeps a call well below what servers accept by default, 16 MiB.
const maxBatchBytes = 4 << 20

// A Batcher schedules the tasks of many goroutines together: each of its calls carries the tasks
// that were added during the previous calls. It uses no timer, so that a single task is sent at
// once. Under load it costs a fraction of single calls.
//
// It is safe for concurrent use.
type Batcher struct {
	client   *Client
	maxBatch int
	places   chan struct{} // one for each task that waits or is under way
	closing  chan struct{}
	close    sync.Once
	ctx      context.Context // of the calls; ends when a Close gives up
	giveUp   context.CancelFunc
	bookings gatherer[*booking]
}

// A booking is a task that waits for the server's answer.
type booking struct {
	id     string
	body   []byte
	state  atomic.Int32 // queued, sent or dropped
	answer chan error   // has room for the one answer
}

const (
	queued  int32 = iota
	sending       // the server decides the outcome
	dropped       // its caller gave up before it was sent
)

// NewBatcher makes a batcher over c. The error names all options that are wrong.
func NewBatcher(c *Client, o BatcherOptions) (*Batcher, error) {
	f := optionFaults{}
	if c == nil {
		f.add("the client must be given")
	}
	calls := f.number("Calls", o.Calls, 2, 1, 64)
	maxBatch := f.number("MaxBatch", o.MaxBatch, 1000, 1, 10_000)
	waiting := f.number("MaxWaiting", o.MaxWaiting, 10_000, 1, 1_000_000)
	if err := f.err(); err != nil {
		return nil, err
	}
	b := &Batcher{client: c, maxBatch: maxBatch, places: make(chan struct{}, waiting), closing: make(chan struct{})}
	b.ctx, b.giveUp = context.WithCancel(context.Background())
	b.bookings = gatherer[*booking]{most: calls, fit: b.fit, call: b.send}
	return b, nil
}

// Schedule has a task delivered when it is due, as Client.Schedule does. It returns once the server
// has recorded the task, or refused it. Each caller gets the outcome of its own task. A task
// without an id gets one before it is sent. The id is returned with an error, too, so that the same
// request can be repeated with it.
//
// When ctx ends before the task is sent, nothing has happened, and the error is that of ctx;
// afterwards it is also ErrUnknown.
//
// Errors: those of Client.Schedule, and ErrClosed.
func (b *Batcher) Schedule(ctx context.Context, r Request) (id string, err error) {
	if r.ID == "" {
		r.ID = NewID()
	}
	k := &booking{id: r.ID, answer: make(chan error, 1)}
	if k.body, err = r.encode(); err != nil {
		return k.id, err
	}
	if ctx.Err() != nil {
		return k.id, context.Cause(ctx)
	}
	select {
	case b.places <- struct{}{}:
	case <-ctx.Done():
		return k.id, context.Cause(ctx)
	case <-b.closing:
		return k.id, ErrClosed
	}
	if !b.bookings.add(k) {
		<-b.places
		return k.id, ErrClosed
	}
	select {
	case err = <-k.answer:
		return k.id, err
	case <-ctx.Done():
	}
	if k.state.CompareAndSwap(queued, dropped) {
		return k.id, context.Cause(ctx)
	}
	select {
	case err = <-k.answer: // it came at the same moment
		return k.id, err
	default:
		return k.id, fmt.Errorf("%w: %w", ErrUnknown, context.Cause(ctx))
	}
}

// Close accepts no more tasks and waits until the server has answered for all that were accepted,
// or until ctx ends. Then the callers of Schedule get ErrUnknown, or ErrClosed for a task that was
// not sent, and Close returns why ctx has ended. It may be called more than once.
func (b *Batcher) Close(ctx context.Context) error {
	b.close.Do(func() {
		b.bookings.close()
		close(b.closing)
	})
	idle := b.bookings.idle()
	select {
	case <-idle:
		b.giveUp()
		return nil
	case <-ctx.Done():
		b.giveUp()
		<-idle
		return context.Cause(ctx)
	}
}

// fit counts how many bookings make up a call. A repeated id must wait for the next call: within
// one call the server would refuse it, while the same request in two calls has the effect of one.
func (b *Batcher) fit(waiting []*booking) int {
	size, ids := 0, make(map[string]struct{}, min(len(waiting), b.maxBatch))
	for i, k := range waiting {
		_, twice := ids[k.id]
		if size += len(k.body) + 1; i > 0 && (twice || i == b.maxBatch || size > maxBatchBytes) {
			return i
		}
		ids[k.id] = struct{}{}
	}
	return len(waiting)
}

// send makes a call for those bookings whose callers still wait.
func (b *Batcher) send(batch []*booking) {
	wanted := make([]*booking, 0, len(batch))
	for _, k := range batch {
		if k.state.CompareAndSwap(queued, sending) {
			wanted = append(wanted, k)
		}
	}
	b.schedule(wanted)
	for range batch {
		<-b.places
	}
}

// schedule sends bookings, and answers each.
func (b *Batcher) schedule(batch []*booking) {
	if len(batch) == 0 {
		return
	}
	if b.ctx.Err() != nil {
		for _, k := range batch {
			k.answer <- ErrClosed
		}
		return
	}
	q := call{method: http.MethodPost, path: "/v1/tasks/batch", effect: same}
	results := make([]Result, len(batch))
	q.body = append(q.body, '[')
	for i, k := range batch {
		if i > 0 {
			q.body = append(q.body, ',')
		}
		q.body = append(q.body, k.body...)
		results[i].ID = k.id
	}
	q.body = append(q.body, ']')
	results, err := b.client.batch(b.ctx, q, results)
	if half := len(batch) / 2; half > 0 && refusesBody(err) {
		// One task can spoil a batch for all: by nesting too deep, or by its size.
		b.schedule(batch[:half])
		b.schedule(batch[half:])
		return
	}
	for i, k := range batch {
		switch {
		case err != nil:
			k.answer <- err
		case results[i].Problem != nil:
			k.answer <- results[i].Problem
		default:
			k.answer <- nil
		}
	}
}

// refusesBody reports whether a call was refused because of its body.
func refusesBody(err error) bool {
	p := (*Problem)(nil)
	if !errors.As(err, &p) {
		return false
	}
	switch p.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return true
	}
	return false
}
