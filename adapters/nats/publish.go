package nats

import (
	"context"
	"fmt"
	"strconv"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapsehq/lapse/adapters/internal/broker"
	"github.com/lapsehq/lapse/tasks"
)

// A publisher delivers the tasks of one topic. It implements tasks.BatchDeliverer.
type publisher struct {
	way     *Way
	subject string
}

// Receiver returns the subject.
func (p *publisher) Receiver() string { return p.subject }

// Deliver implements tasks.Deliverer.
func (p *publisher) Deliver(ctx context.Context, d *tasks.Delivery) error {
	return p.DeliverBatch(ctx, []*tasks.Delivery{d})[0]
}

// DeliverBatch implements tasks.BatchDeliverer. It sends everything before it waits for the first
// acknowledgement.
func (p *publisher) DeliverBatch(ctx context.Context, ds []*tasks.Delivery) []error {
	ctx, cancel := context.WithTimeout(ctx, p.way.timeout)
	defer cancel()
	errs := make([]error, len(ds))
	acks := make([]jetstream.PubAckFuture, len(ds))
	c, err := p.way.link.Get(ctx)
	for i, d := range ds {
		if err != nil {
			errs[i] = err
			continue
		}
		acks[i], errs[i] = c.js.PublishMsgAsync(p.message(d), jetstream.WithRetryAttempts(0))
	}
	for i := range ds {
		if errs[i] == nil {
			errs[i] = p.await(ctx, acks[i])
			continue
		}
		errs[i] = p.failed(errs[i])
	}
	return errs
}

// await waits for the stream's answer to a message.
func (p *publisher) await(ctx context.Context, ack jetstream.PubAckFuture) error {
	var err error
	select {
	case a := <-ack.Ok():
		return p.acknowledged(a)
	case err = <-ack.Err():
	case <-ctx.Done():
		err = broker.GaveUp(ctx)
	}
	select {
	case a := <-ack.Ok(): // at the last moment
		return p.acknowledged(a)
	default:
		return p.failed(err)
	}
}

func (p *publisher) acknowledged(a *jetstream.PubAck) error {
	o := stored
	if a.Duplicate {
		o = duplicate
	}
	p.way.tally.Count(o)
	return nil
}

func (p *publisher) failed(err error) error {
	p.way.tally.Count(outcomeOf(err))
	return fmt.Errorf("subject %s: %w", p.subject, err)
}

// message makes the message of an attempt.
func (p *publisher) message(d *tasks.Delivery) *natsgo.Msg {
	h := make(natsgo.Header, 6+len(d.Headers))
	for name, value := range broker.Headers(d, "nats-") {
		h[name] = []string{value}
	}
	h[jetstream.MsgIDHeader] = []string{msgID(d)}
	return &natsgo.Msg{Subject: p.subject, Header: h, Data: d.Payload}
}

// msgID is the same for all attempts of a task as its caller has last scheduled it. It differs from
// that of any other task, also of a later one with the same id, which the stream would otherwise
// drop as a repetition.
func msgID(d *tasks.Delivery) string {
	return d.ID + "/" + strconv.FormatInt(d.Created.UnixMilli(), 10) + "/" + strconv.FormatInt(d.Revision, 10)
}
