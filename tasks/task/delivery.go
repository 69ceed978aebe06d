package task

import (
	"context"
	"errors"
	"time"
)

// Limits of Reserve and of leases.
const (
	MaxReserve   = 1000
	MaxWait      = 60 * time.Second
	MinLease     = time.Second
	MaxLease     = 24 * time.Hour
	LeaseRange   = "must be from 1 s to 24 h"
	ReserveRange = "must be from 1 to 1000"
	WaitRange    = "must be from 0 to 60 s"
)

// A Deliverer hands a task to its receiver: one way of delivery. Whatever the way, attempts,
// leases, retries and death are the scheduler's.
type Deliverer interface {
	// Deliver makes one attempt. nil acknowledges it; an error fails it, and Kill and RetryAfter
	// say more. ErrLater leaves it open: its receipt settles it before its lease ends. After
	// ErrNoReceiver and ErrUnwanted the attempt does not count. ctx ends with the lease.
	Deliver(ctx context.Context, d *Delivery) error
}

// Errors by which a Deliverer says that it has neither succeeded nor failed.
var (
	// ErrLater is returned by a Deliverer whose receiver settles by receipt.
	ErrLater = errors.New("settled later by its receipt")
	// ErrNoReceiver is returned by a Deliverer that has no receiver at the moment for tasks of the
	// topic, such as one that hands tasks to connected clients. The task is ready again at once.
	// The attempt does not count, and is no failure. If a deliverer returns it for all deliveries
	// that it was given together, the topic's tasks wait at this node until Admin.ReceiverCame
	// is called, or Admin.Reconsider. Until then one task a second is tried. Meanwhile
	// Topic.Undeliverable has the text of the error.
	ErrNoReceiver = errors.New("no receiver at the moment")
	// ErrUnwanted is returned by a Deliverer that has receivers for tasks of the topic, and none at
	// the moment that wants this one. As after ErrNoReceiver the attempt does not count. The task
	// waits outside of the queue, where it holds up no other one, until Admin.ReceiverCame is
	// called, or Admin.Reconsider. Until then a few such tasks of a topic are tried each
	// second, in turn.
	ErrUnwanted = errors.New("no receiver wants it at the moment")
)

// HandlerFunc is a Deliverer that is a function of this process.
type HandlerFunc func(ctx context.Context, d *Delivery) error

// Deliver calls f.
func (f HandlerFunc) Deliver(ctx context.Context, d *Delivery) error { return f(ctx, d) }

// A BatchDeliverer is a Deliverer whose receiver takes many tasks in one go for little more than
// one: then a goroutine makes many deliveries at once, of whatever has become ready while it was
// busy with those before. No task waits for a batch to fill. Each task of a batch is a delivery of
// its own, with its own attempt, receipt and outcome, and counts as one against the topic's
// Concurrency.
type BatchDeliverer interface {
	Deliverer
	// DeliverBatch makes one attempt for each of ds, of which there are 1 to 256, all of one topic,
	// and returns as many errors in their order, each of which means what it means from Deliver.
	// ctx ends with the first of their leases. A panic fails all of them.
	DeliverBatch(ctx context.Context, ds []*Delivery) []error
}

// A Delivery is one attempt to hand a task to its receiver.
type Delivery struct {
	Task
	LeaseUntil time.Time // unsettled by then, the attempt has failed

	token Token
}

// NewDelivery returns a delivery of t. The token makes its receipt.
func NewDelivery(t Task, leaseUntil time.Time, token Token) Delivery {
	return Delivery{Task: t, LeaseUntil: leaseUntil, token: token}
}

// Token returns the delivery as its scheduler knows it, nil if no scheduler made it.
func (d *Delivery) Token() Token { return d.token }

// Receipt returns the text that settles this delivery, and no other. The scheduler makes it with
// this call: most handlers need none. It is empty if no scheduler made the delivery.
func (d Delivery) Receipt() string {
	if d.token == nil {
		return ""
	}
	return d.token.Receipt()
}

// A Token is a delivery as its scheduler knows it.
type Token interface {
	// Receipt returns the text that settles the delivery.
	Receipt() string
}

// A Verb is what a receiver says of a delivery.
type Verb uint8

// The ways to settle a delivery.
const (
	Ack     Verb = iota + 1 // done: the task is finished
	Release                 // not done: again after Verdict.Delay, the attempt counts
	Extend                  // still at work: the lease begins anew, for Verdict.Lease
	Bury                    // never again: the task is dead, for Verdict.Reason
	Return                  // not begun: again at once, the attempt does not count
)

// A Verdict settles deliveries.
type Verdict struct {
	Verb Verb
	// Delay (Release) is the time until the next attempt, 0 to MaxAhead; nil: the topic's backoff.
	Delay  *time.Duration
	Lease  time.Duration // Extend: from now; 0 means the topic's lease. 1 s to 24 h
	Reason string        // Release, Bury: kept as the task's last error, cut at 1 KiB
	Aside  bool          // Return: it waits as after ErrUnwanted
}

// A Settled is the answer to one receipt.
type Settled struct {
	Receipt string
	ID      string // of the task, if the receipt could be read
	// Recorded: the ledger has confirmed it. If false, it holds in memory and is recorded later.
	Recorded   bool
	LeaseUntil time.Time // Extend only
	// Err is ErrReceipt, ErrStale, ErrReplaying or ErrClosed; where the task is another node's also
	// ErrUnavailable or ErrUnknown. It is nil if the delivery was settled.
	Err error
}
