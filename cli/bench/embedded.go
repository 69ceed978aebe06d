package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// topic is that of all tasks, except on a server that has other users.
const topic = "bench"

// embedded is a scheduler in this process.
type embedded struct {
	scheduler *tasks.Scheduler
	close     func() error
}

// start opens a scheduler on the ledger of a place. After it was closed, then is called.
func (p *place) start(ctx context.Context, settings tasks.TopicSettings, then func() error) (*embedded, error) {
	ledger, err := p.open()
	if err != nil {
		return nil, errors.Join(err, then())
	}
	scheduler, err := tasks.Open(ctx, ledger, tasks.Config{
		MaxPending: 200_000_000, MaxBytes: 1 << 40, // the caller limits memory
		AnswerWithin: time.Minute, // the figures are to show a disk that is busy for seconds
		Topics:       map[string]tasks.TopicSettings{topic: settings},
		Log:          quiet,
	})
	if err != nil {
		return nil, errors.Join(err, ledger.Close(), then())
	}
	return &embedded{scheduler, sync.OnceValue(func() error {
		return errors.Join(scheduler.Close(context.Background()), then())
	})}, nil
}

func (e *embedded) Schedule(ctx context.Context, t Task) error {
	_, err := e.scheduler.Schedule(ctx, tasks.Request{Topic: topic, Due: t.Due, Payload: t.Payload})
	return err
}

func (e *embedded) ScheduleBatch(ctx context.Context, ts []Task) error {
	requests := make([]tasks.Request, len(ts))
	for i, t := range ts {
		requests[i] = tasks.Request{Topic: topic, Due: t.Due, Payload: t.Payload}
	}
	results, err := e.scheduler.ScheduleBatch(ctx, requests)
	if err != nil {
		return err
	}
	for i := range results {
		if results[i].Err != nil {
			return fmt.Errorf("task %d of a batch: %w", i, results[i].Err)
		}
	}
	return nil
}

func (e *embedded) Receive(_ context.Context, got func([]byte)) error {
	return e.scheduler.Handle(topic, func(_ context.Context, d *tasks.Delivery) error {
		got(d.Payload)
		return nil
	})
}

func (e *embedded) Standing(context.Context) (Standing, error) {
	if err := e.scheduler.Err(); err != nil {
		return Standing{}, err
	}
	t, err := e.scheduler.Topic(topic)
	if errors.Is(err, tasks.ErrNoTopic) {
		return Standing{}, nil
	}
	c := &t.Counts
	return Standing{Left: int(c.Pending + c.Ready + c.Delivering + c.Dead), Explained: int(c.Failed)}, err
}

func (e *embedded) Close() error { return e.close() }
