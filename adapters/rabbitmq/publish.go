package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/adapters/internal/broker"
	"github.com/lapsehq/lapse/tasks"
)

// Errors of attempts whose message the broker has not stored.
var (
	// ErrUnroutable is returned when a message was routed to no queue.
	ErrUnroutable = errors.New("routed to no queue")
	// ErrRefused is returned when a queue could not take a message, for instance
	// because it is full.
	ErrRefused = errors.New("a queue has refused it")
)

// A publisher delivers the tasks of one topic. It implements tasks.BatchDeliverer.
type publisher struct {
	way           *Way
	exchange, key string
}

// Receiver returns the exchange, if there is one, and the routing key.
func (p *publisher) Receiver() string { return strings.TrimPrefix(p.exchange+"/"+p.key, "/") }

// Deliver implements tasks.Deliverer.
func (p *publisher) Deliver(ctx context.Context, d *tasks.Delivery) error {
	return p.DeliverBatch(ctx, []*tasks.Delivery{d})[0]
}

// DeliverBatch implements tasks.BatchDeliverer. It publishes everything before it waits for the
// first confirmation.
func (p *publisher) DeliverBatch(ctx context.Context, ds []*tasks.Delivery) []error {
	ctx, cancel := context.WithTimeout(ctx, p.way.timeout)
	defer cancel()
	errs := make([]error, 0, len(ds))
	for part := range slices.Chunk(ds, batch) {
		errs = append(errs, p.publish(ctx, part)...)
	}
	for i, err := range errs {
		p.way.tally.Count(outcomeOf(err))
		if err != nil {
			errs[i] = fmt.Errorf("exchange %q, routing key %q: %w", p.exchange, p.key, err)
		}
	}
	return errs
}

func (p *publisher) publish(ctx context.Context, ds []*tasks.Delivery) []error {
	errs := make([]error, len(ds))
	ch, err := p.way.acquire(ctx)
	if err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	confirmations := make([]*amqp.DeferredConfirmation, len(ds))
	for i, d := range ds {
		confirmations[i], errs[i] = ch.PublishWithDeferredConfirm(p.exchange, p.key, true, false, message(d))
	}
	fit := true
	for i, c := range confirmations {
		if errs[i] == nil {
			errs[i] = ch.await(ctx, c)
		} else {
			errs[i] = ch.failure(ctx, errs[i])
		}
		fit = fit && (errs[i] == nil || errors.Is(errs[i], ErrRefused))
	}
	returned := ch.returned()
	p.way.release(ch, fit)
	for i, d := range ds {
		if text, is := returned[d.ID]; is && errs[i] == nil {
			errs[i] = fmt.Errorf("%w: %s", ErrUnroutable, text)
		}
	}
	return errs
}

// await waits for the confirmation of a message.
func (ch *channel) await(ctx context.Context, c *amqp.DeferredConfirmation) error {
	select {
	case <-c.Done():
	case <-ctx.Done():
		if !c.Acked() {
			return broker.GaveUp(ctx)
		}
	}
	if c.Acked() {
		return nil
	}
	return ch.failure(ctx, ErrRefused)
}

// message makes the message of an attempt.
func message(d *tasks.Delivery) amqp.Publishing {
	h := make(amqp.Table, 5+len(d.Headers))
	for name, value := range broker.Headers(d, "x-") {
		h[name] = value
	}
	delete(h, contentType)
	m := amqp.Publishing{Headers: h, ContentType: "application/json", DeliveryMode: amqp.Persistent, MessageId: d.ID, Body: d.Payload}
	if t, given := d.Headers[contentType]; given && len(t) <= 255 {
		m.ContentType = t
	}
	return m
}

const contentType = "content-type"
