package stream

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/redispipe"
	"github.com/lapsehq/lapse/tasks/task"
)

// An adder delivers the tasks of one topic, to streams of their own if they have some. It
// implements task.BatchDeliverer and task.Targeter.
type adder struct {
	way    *Way
	stream string
	maxLen int64 // 0: never trimmed

	taskStreams []string // patterns of those that tasks may choose; nil: all
}

// Receiver returns the stream's key.
func (a *adder) Receiver() string { return a.stream }

// Deliver implements task.Deliverer.
func (a *adder) Deliver(ctx context.Context, d *task.Delivery) error {
	return a.DeliverBatch(ctx, []*task.Delivery{d})[0]
}

// DeliverBatch implements task.BatchDeliverer.
func (a *adder) DeliverBatch(ctx context.Context, ds []*task.Delivery) []error {
	errs := make([]error, len(ds))
	commands := make([]redispipe.Command, 0, len(ds))
	sent := make([]int, 0, len(ds)) // the index of each command's delivery
	for i, d := range ds {
		stream := a.stream
		if own := d.OwnSettings(); own != nil {
			if stream, errs[i] = a.target(own); errs[i] != nil {
				errs[i] = fmt.Errorf("not sent: %w", errs[i])
				a.way.tally.Count(refusedTarget)
				continue
			}
		}
		commands, sent = append(commands, a.command(stream, d)), append(sent, i)
	}
	redispipe.Send(ctx, a.way.client, commands)
	for k := range commands {
		if err := commands[k].Err; err != nil {
			errs[sent[k]] = fmt.Errorf("stream %v: %w", commands[k].Args[1], err)
		}
		a.way.tally.Count(outcomeOf(commands[k].Err))
	}
	return errs
}

// command adds a task to a stream.
func (a *adder) command(stream string, d *task.Delivery) redispipe.Command {
	args := make([]any, 0, 18+2*len(d.Headers))
	args = append(args, "xadd", stream)
	if a.maxLen > 0 {
		args = append(args, "maxlen", "~", a.maxLen)
	}
	args = append(args, "*", "id", d.ID, "topic", d.Topic, "due", d.Due.UnixMilli(), "attempt", d.Attempt)
	if d.Group != "" {
		args = append(args, "group", d.Group)
	}
	args = append(args, "payload", d.Payload)
	size := len(stream) + len(d.ID) + len(d.Topic) + len(d.Group) + len(d.Payload)
	for name, value := range d.Headers {
		args = append(args, "h:"+name, value)
		size += len(name) + len(value)
	}
	return redispipe.Command{Args: args, Bytes: size}
}

// An outcome is the result of an attempt.
type outcome int

const (
	added         outcome = iota
	refused               // Redis replied with an error
	unreachable           // it did not reply
	refusedTarget         // not sent: the task's own delivery does not hold (any more)
)

var outcomeNames = []string{added: "added", refused: "refused", unreachable: "unreachable", refusedTarget: "refused_target"}

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
