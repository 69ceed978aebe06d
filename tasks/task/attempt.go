package task

import (
	"context"
	"time"
)

// MaxAttempts bounds Task.Attempts.
const MaxAttempts = 10

// An Attempt is a delivery that has ended: without success, or as that of a finished task.
type Attempt struct {
	Number int       // as Task.Attempt was; a requeued task begins with 1 again
	Ended  time.Time // to the millisecond
	// Took is how long it took, at least 1 ms; 0: not known, because the server was restarted
	// meanwhile, or the task has changed its owner.
	Took time.Duration
	// By is its receiver: what the Deliverer says (see Receiver), the caller of Reserve (see
	// WithReceiver), otherwise the node that made the attempt or whose receiver had the task. Empty
	// if it is not known. At most MaxAttemptBy bytes.
	By      string
	Outcome AttemptOutcome
	Error   string // why, at most MaxAttemptError bytes
}

// Bounds of the texts of an Attempt, in bytes.
const (
	MaxAttemptBy    = 128
	MaxAttemptError = 256
)

// An AttemptOutcome says how an attempt has ended.
type AttemptOutcome string

// How attempts end that are kept. Task.Reason says whether one was the last.
const (
	AttemptFailed       AttemptOutcome = "failed"        // it failed, or was released
	AttemptLeaseExpired AttemptOutcome = "lease_expired" // it was not settled within its lease
	AttemptBuried       AttemptOutcome = "buried"        // its receiver has given the task up
	// AttemptProcessEnded is the outcome of an attempt during which the process ended, in topics
	// that count crashes.
	AttemptProcessEnded AttemptOutcome = "process_ended"
	// AttemptDelivered is the outcome of the last attempt of a finished task that is kept.
	AttemptDelivered AttemptOutcome = "delivered"
)

// A Receiver is a Deliverer that names what it delivers to, for Attempt.By.
type Receiver interface {
	// Receiver returns the name, such as a URL. It holds no password and no other secret.
	Receiver() string
}

type receiverKey struct{}

// WithReceiver returns the context of a Reserve by a receiver of that name, for Attempt.By.
func WithReceiver(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, receiverKey{}, name)
}

// ReceiverOf returns the name of the receiver that calls, "" if it has none.
func ReceiverOf(ctx context.Context) string {
	name, _ := ctx.Value(receiverKey{}).(string)
	return name
}
