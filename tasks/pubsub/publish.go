package pubsub

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/redispipe"
	"github.com/lapsehq/lapse/tasks/task"
)

// ErrTooFewReceivers is the error of an attempt whose message reached fewer subscribers than
// min_receivers asks for.
var ErrTooFewReceivers = errors.New("too few receivers")

// A publisher delivers the tasks of one topic, on channels of their own if they have some. It
// implements task.BatchDeliverer and task.Targeter.
type publisher struct {
	way     *Way
	channel string
	message func(d *task.Delivery) any // text or bytes
	least   int64

	taskChannels []string // patterns of those that tasks may choose; nil: all
}

// Receiver returns the channel.
func (p *publisher) Receiver() string { return p.channel }

// Deliver implements task.Deliverer.
func (p *publisher) Deliver(ctx context.Context, d *task.Delivery) error {
	return p.DeliverBatch(ctx, []*task.Delivery{d})[0]
}

// DeliverBatch implements task.BatchDeliverer.
func (p *publisher) DeliverBatch(ctx context.Context, ds []*task.Delivery) []error {
	errs := make([]error, len(ds))
	commands := make([]redispipe.Command, 0, len(ds))
	sent := make([]int, 0, len(ds)) // the index of each command's delivery
	for i, d := range ds {
		channel := p.channel
		if own := d.OwnSettings(); own != nil {
			if channel, errs[i] = p.target(own); errs[i] != nil {
				errs[i] = fmt.Errorf("not sent: %w", errs[i])
				p.way.tally.Count(refusedTarget)
				continue
			}
		}
		sent = append(sent, i)
		commands = append(commands, redispipe.Command{
			Args:  []any{"publish", channel, p.message(d)},
			Bytes: len(channel) + len(d.Payload) + len(d.ID) + headers(d),
		})
	}
	redispipe.Send(ctx, p.way.client, commands)
	for k := range commands {
		errs[sent[k]] = p.judge(&commands[k])
	}
	return errs
}

// headers returns the size of the headers, which an envelope has, and one of which may be the key.
func headers(d *task.Delivery) (size int) {
	for name, value := range d.Headers {
		size += len(name) + len(value)
	}
	return size
}

// judge counts an attempt and returns its result for the task.
func (p *publisher) judge(c *redispipe.Command) error {
	receivers, _ := c.Reply.(int64)
	o, err := published, c.Err
	switch {
	case errors.Is(err, redispipe.ErrUnreachable):
		o = unreachable
	case err != nil:
		o = refused
	case receivers < p.least:
		o, err = tooFew, fmt.Errorf("%w: %d of %d", ErrTooFewReceivers, receivers, p.least)
	case receivers == 0:
		o = unheard
	}
	p.way.tally.Count(o)
	if err != nil {
		return fmt.Errorf("channel %v: %w", c.Args[1], err)
	}
	return nil
}

// An outcome is the result of an attempt.
type outcome int

const (
	published     outcome = iota
	unheard               // published and acknowledged, though there was no subscriber
	tooFew                // fewer than min_receivers
	refused               // Redis replied with an error
	unreachable           // it did not reply
	refusedTarget         // not sent: the task's own delivery does not hold (any more)
)

var outcomeNames = []string{
	published: "published", unheard: "no_receivers", tooFew: "too_few_receivers", refused: "refused", unreachable: "unreachable",
	refusedTarget: "refused_target",
}

// Tally implements task.Tally, with the names above.
func (w *Way) Tally() map[string]int64 { return w.tally.Tally() }
