package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/redispipe"
	"github.com/lapsehq/lapse/tasks/task"
)

// An adder delivers the tasks of one topic. It implements task.BatchDeliverer.
type adder struct {
	way    *Way
	stream string
	maxLen int64 // 0: never trimmed
}

// Receiver returns the stream's key.
func (a *adder) Receiver() string { return a.stream }

// Deliver implements task.Deliverer.
func (a *adder) Deliver(ctx context.Context, d *task.Delivery) error {
	return a.DeliverBatch(ctx, []*task.Delivery{d})[0]
}

// DeliverBatch implements task.BatchDeliverer.
func (a *adder) DeliverBatch(ctx context.Context, ds []*task.Delivery) []error {
	commands := make([]redispipe.Command, len(ds))
	for i, d := range ds {
		commands[i] = a.command(d)
	}
	redispipe.Send(ctx, a.way.client, commands)
	errs := make([]error, len(ds))
	for i := range commands {
		if err := commands[i].Err; err != nil {
			errs[i] = fmt.Errorf("stream %s: %w", a.stream, err)
		}
		a.way.tally.Count(outcomeOf(commands[i].Err))
	}
	return errs
}

// command adds a task.
func (a *adder) command(d *task.Delivery) redispipe.Command {
	args := make([]any, 0, 18+2*len(d.Headers))
	args = append(args, "xadd", a.stream)
	if a.maxLen > 0 {
		args = append(args, "maxlen", "~", a.maxLen)
	}
	args = append(args, "*", "id", d.ID, "topic", d.Topic, "due", d.Due.UnixMilli(), "attempt", d.Attempt)
	if d.Group != "" {
		args = append(args, "group", d.Group)
	}
	args = append(args, "payload", d.Payload)
	size := len(a.stream) + len(d.ID) + len(d.Topic) + len(d.Group) + len(d.Payload)
	for name, value := range d.Headers {
		args = append(args, "h:"+name, value)
		size += len(name) + len(value)
	}
	return redispipe.Command{Args: args, Bytes: size}
}

// An outcome is the result of an attempt.
type outcome int

const (
	added       outcome = iota
	refused             // Redis replied with an error
	unreachable         // it did not reply
)

var outcomeNames = []string{added: "added", refused: "refused", unreachable: "unreachable"}

func outcomeOf(err error) outcome {
	switch {
	case err == nil:
		return added
	case errors.Is(err, redispipe.ErrUnreachable):
		return unreachable
	}
	return refused
}

// Tally implements task.Tally, with the names above.
func (w *Way) Tally() map[string]int64 { return w.tally.Tally() }
