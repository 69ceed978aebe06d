package delivertest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/delivertest"
)

// A function is a handler in this process.
type function struct{ receiver *delivertest.Receiver }

func TestHandler(t *testing.T) {
	t.Parallel()
	delivertest.Run(t, func(_ *testing.T, r *delivertest.Receiver) delivertest.Rig { return function{r} })
}

func (function) Ways() []tasks.Way { return nil }

func (function) Settings() tasks.TopicSettings { return tasks.TopicSettings{} }

func (function) Cannot() map[delivertest.Ability]string { return nil }

func (f function) Serve(_ context.Context, s *tasks.Scheduler, topic string) error {
	return s.Handle(topic, f.handle)
}

func (f function) handle(ctx context.Context, d *tasks.Delivery) error {
	answer := f.receiver.Receive(ctx, arrival(d))
	err := errors.New(answer.Why)
	switch answer.Say {
	case delivertest.Accept:
		return nil
	case delivertest.Wait:
		return tasks.RetryAfter(err, answer.Pause)
	case delivertest.Bury:
		return tasks.Kill(err)
	case delivertest.Later:
		return tasks.ErrLater
	case delivertest.Panic:
		panic("as the test wants it")
	case delivertest.Silence:
		return ctx.Err()
	}
	return err
}

func arrival(d *tasks.Delivery) delivertest.Arrival {
	return delivertest.Arrival{ID: d.ID, Attempt: d.Attempt, Payload: d.Payload, Headers: d.Headers, Receipt: d.Receipt()}
}
