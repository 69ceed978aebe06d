package pubsub

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/redispipe"
)

// ErrTooFewReceivers is the error of an attempt whose message fewer have got than
// min_receivers asks for.
var ErrTooFewReceivers = errors.New("too few receivers")

// A publisher delivers the tasks of one topic. It implements tasks.BatchDeliverer.
type publisher struct {
	way     *Way
	channel string
	message func(d *tasks.Delivery) any // text or bytes
	least   int64
}

// Deliver implements tasks.Deliverer.
func (p *publisher) Deliver(ctx context.Context, d *tasks.Delivery) error {
	return p.DeliverBatch(ctx, []*tasks.Delivery{d})[0]
}

// DeliverBatch implements tasks.BatchDeliverer.
func (p *publisher) DeliverBatch(ctx context.Context, ds []*tasks.Delivery) []error {
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
		errs[i] = p.outcome(&commands[i])
	}
	return errs
}

// headers are the bytes of those that an envelope has, and a key may be one of.
func headers(d *tasks.Delivery) (size int) {
	for name, value := range d.Headers {
		size += len(name) + len(value)
	}
	return size
}

func (p *publisher) outcome(c *redispipe.Command) error {
	receivers, _ := c.Reply.(int64)
	counts := &p.way.counts
	err := c.Err
	switch {
	case errors.Is(err, redispipe.ErrUnreachable):
		counts.unreachable.Add(1)
	case err != nil:
		counts.refused.Add(1)
	case receivers < p.least:
		counts.tooFew.Add(1)
		err = fmt.Errorf("%w: %d of %d", ErrTooFewReceivers, receivers, p.least)
	case receivers == 0:
		counts.unheard.Add(1)
		return nil
	default:
		counts.published.Add(1)
		return nil
	}
	return fmt.Errorf("channel %s: %w", p.channel, err)
}

// counts are what has become of attempts.
type counts struct{ published, unheard, tooFew, refused, unreachable atomic.Int64 }

// Tally implements tasks.Tally: "published"; "no_receivers", published and acknowledged
// though nobody was there; "too_few_receivers", fewer than min_receivers; "refused",
// where Redis replied with an error; "unreachable", where it did not reply.
func (w *Way) Tally() map[string]int64 {
	c := &w.counts
	return map[string]int64{
		"published":         c.published.Load(),
		"no_receivers":      c.unheard.Load(),
		"too_few_receivers": c.tooFew.Load(),
		"refused":           c.refused.Load(),
		"unreachable":       c.unreachable.Load(),
	}
}
