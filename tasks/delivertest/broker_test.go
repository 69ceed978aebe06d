package delivertest_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/delivertest"
)

// A broker is a way of delivery to a store, which receivers read later. It is its own rig.
type broker struct {
	receiver *delivertest.Receiver
	readers  sync.WaitGroup

	mu    sync.Mutex // guards the rest
	fault delivertest.Fault
	over  chan struct{} // closed when the fault is
}

func TestBroker(t *testing.T) {
	t.Parallel()
	delivertest.Run(t, func(t *testing.T, r *delivertest.Receiver) delivertest.Rig {
		b := &broker{receiver: r, over: make(chan struct{})}
		t.Cleanup(b.readers.Wait)
		return b
	})
}

func (b *broker) Ways() []tasks.Way { return []tasks.Way{b} }

func (b *broker) Settings() tasks.TopicSettings { return tasks.TopicSettings{Kind: b.Kind()} }

func (b *broker) Serve(context.Context, *tasks.Scheduler, string) error { return nil }

func (b *broker) Cannot() map[delivertest.Ability]string { return nil }

func (b *broker) Kind() tasks.Kind { return "broker" }

func (b *broker) Deliverer(string, json.RawMessage) (tasks.Deliverer, error) {
	return tasks.HandlerFunc(b.deliver), nil
}

func (b *broker) Break(f delivertest.Fault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.over)
	b.fault, b.over = f, make(chan struct{})
}

var errBroken = errors.New("the connection is broken")

func (b *broker) deliver(ctx context.Context, d *tasks.Delivery) error {
	b.mu.Lock()
	fault, over := b.fault, b.over
	b.mu.Unlock()
	switch fault {
	case delivertest.Refuse, delivertest.Cut:
		return errBroken
	case delivertest.Hang:
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
	case delivertest.Lose:
		b.store(d)
		return errBroken
	case delivertest.Flaky:
		if rand.N(10) < 3 {
			return errBroken
		}
	}
	b.store(d)
	return nil
}

func (b *broker) store(d *tasks.Delivery) {
	a := arrival(d)
	b.readers.Go(func() { b.receiver.Receive(context.Background(), a) })
}
