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

// A publisher delivers the tasks of one topic. It implements task.BatchDeliverer.
type publisher struct {
	way     *Way
	channel string
	message func(d *task.Delivery) any // text or bytes
	least   int64
}

// Receiver returns the channel.
func (p *publisher) Receiver() string { return p.channel }

// Deliver implements task.Deliverer.
func (p *publisher) Deliver(ctx context.Context, d *task.Delivery) error {
	return p.DeliverBatch(ctx, []*task.Delivery{d})[0]
}

// DeliverBatch implements task.BatchDeliverer.
func (p *publisher) DeliverBatch(ctx context.Context, ds []*task.Delivery) []error {
	commands := make([]redispipe.Command, len(ds))
	for i, d := range ds {
		commands[i] = redispipe.Command{
			Args:  []any{"publish", p.channel, p.message(d)},
			Bytes: len(p.channel) + len(d.Payload) + len(d.ID) + headers(d),
		}
	}
	redispipe.Send(ctx, p.way.client, commands)
	errs := make([]error, len(ds))
	for i := range commands {
		errs[i] = p.judge(&commands[i])
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
		return fmt.Errorf("channel %s: %w", p.channel, err)
	}
	return nil
}

// An outcome is the result of an attempt.
type outcome int

const (
	published   outcome = iota
	unheard             // published and acknowledged, though there was no subscriber
	tooFew              // fewer than min_receivers
	refused             // Redis replied with an error
	unreachable         // it did not reply
)

var outcomeNames = []string{
	published: "published", unheard: "no_receivers", tooFew: "too_few_receivers", refused: "refused", unreachable: "unreachable",
}

// Tally implements task.Tally, with the names above.
func (w *Way) Tally() map[string]int64 { return w.tally.Tally() }
