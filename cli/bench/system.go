package bench

import (
	"context"
	"errors"
	"time"
)

// ErrNoBatch is returned by System.ScheduleBatch when the system accepts tasks only one by one.
var ErrNoBatch = errors.New("the system takes no batches")

// A Task is what a workload asks a system to deliver.
type Task struct {
	Due     time.Time // to the millisecond
	Payload []byte    // JSON; the receiver gets an equal value
}

// A System schedules tasks and delivers them. Its methods may be called from many
// goroutines, except Receive and Close.
type System interface {
	// Schedule returns once the task is accepted and stored, as far as the system stores tasks.
	Schedule(ctx context.Context, t Task) error
	// ScheduleBatch does so for many tasks in one request, or returns ErrNoBatch.
	ScheduleBatch(ctx context.Context, ts []Task) error
	// Receive begins to call got with the payload of each delivery, from many
	// goroutines, and to acknowledge it afterwards. It ends with Close.
	Receive(ctx context.Context, got func(payload []byte)) error
	// Standing returns the state of the tasks. An error means that a receiver has failed, or that
	// the system cannot be asked.
	Standing(ctx context.Context) (Standing, error)
	// Close ends the receivers and removes all that was scheduled.
	Close() error
}

// A Standing is the state of the tasks as the system reports it.
type Standing struct {
	Left      int // accepted, and not finished and forgotten yet
	Explained int // deliveries that are repeated for a reason
}
