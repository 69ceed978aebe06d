package stream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/redispipe"
)

// An adder delivers the tasks of one topic. It implements tasks.BatchDeliverer.
type adder struct {
	way    *Way
	stream string
	maxLen int64 // 0: never trimmed
}

// Deliver implements tasks.Deliverer.
func (a *adder) Deliver(ctx context.Context, d *tasks.Delivery) error {
	return a.DeliverBatch(ctx, []*tasks.Delivery{d})[0]
}

// DeliverBatch implements tasks.BatchDeliverer.
func (a *adder) DeliverBatch(ctx context.Context, ds []*tasks.Delivery) []error {
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
		a.way.counts.count(commands[i].Err)
	}
	return errs
}

// command adds a task.
func (a *adder) command(d *tasks.Delivery) redispipe.Command {
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

// counts are what has become of attempts.
type counts struct{ added, refused, unreachable atomic.Int64 }

func (c *counts) count(err error) {
	switch {
	case err == nil:
		c.added.Add(1)
	case errors.Is(err, redispipe.ErrUnreachable):
		c.unreachable.Add(1)
	default:
		c.refused.Add(1)
	}
}

// Tally implements tasks.Tally: "added"; "refused", where Redis replied with an error;
// "unreachable", where it did not reply.
func (w *Way) Tally() map[string]int64 {
	return map[string]int64{
		"added":       w.counts.added.Load(),
		"refused":     w.counts.refused.Load(),
		"unreachable": w.counts.unreachable.Load(),
	}
}
