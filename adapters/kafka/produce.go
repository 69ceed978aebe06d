package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lapsehq/lapse/adapters/internal/broker"
	"github.com/lapsehq/lapse/tasks"
)

// ErrTimeout is the error of an attempt that was not acknowledged in time, if the client has no
// other reason.
var ErrTimeout = broker.ErrTimeout

// A producer delivers the tasks of one topic. It implements tasks.BatchDeliverer.
type producer struct {
	way   *Way
	topic string
	key   keyFunc
}

// Receiver returns the topic of Kafka.
func (p *producer) Receiver() string { return p.topic }

// Deliver implements tasks.Deliverer.
func (p *producer) Deliver(ctx context.Context, d *tasks.Delivery) error {
	return p.DeliverBatch(ctx, []*tasks.Delivery{d})[0]
}

// A result is the outcome of one record of a batch.
type result struct {
	i   int
	err error
}

// DeliverBatch implements tasks.BatchDeliverer. It gives all records to the client before it waits
// for the first acknowledgement.
func (p *producer) DeliverBatch(ctx context.Context, ds []*tasks.Delivery) []error {
	ctx, cancel := context.WithTimeout(ctx, p.way.timeout)
	defer cancel() // the client takes back the open records
	results := make(chan result, len(ds))
	errs := make([]error, len(ds))
	for i, d := range ds {
		errs[i] = ErrTimeout
		p.way.client.Produce(ctx, p.record(d), func(_ *kgo.Record, err error) { results <- result{i, err} })
	}
	for range ds {
		r, ok := next(ctx, results)
		if !ok {
			break
		}
		errs[r.i] = r.err
	}
	for i, err := range errs {
		p.way.tally.Count(outcomeOf(err))
		if err != nil {
			errs[i] = fmt.Errorf("topic %s: %w", p.topic, err)
		}
	}
	return errs
}

// next returns a result, unless there is none when ctx ends.
func next(ctx context.Context, results <-chan result) (r result, ok bool) {
	select {
	case r = <-results:
		return r, true
	case <-ctx.Done():
	}
	select {
	case r = <-results: // at the last moment
		return r, true
	default:
		return r, false
	}
}

// record makes the record of an attempt.
func (p *producer) record(d *tasks.Delivery) *kgo.Record {
	r := &kgo.Record{Topic: p.topic, Key: p.key(d), Value: d.Payload, Headers: make([]kgo.RecordHeader, 0, 5+len(d.Headers))}
	if r.Value == nil {
		r.Value = []byte{} // null would delete the key where a topic is compacted
	}
	for name, value := range broker.Headers(d) {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
	}
	return r
}
