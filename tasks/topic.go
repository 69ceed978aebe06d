package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A Topic is the name of a topic together with the type of what its tasks carry: each payload is
// the JSON of a T. It is a value of the program, like a constant, and opens nothing:
//
//	var unpaid = tasks.NewTopic[Order]("order.unpaid")
//
// Package client has the same for programs that talk to a server.
type Topic[T any] struct {
	name string
}

// NewTopic names a topic, in the alphabet of Request.Topic. A name that is not valid is refused by
// what the topic is used for, with ErrInvalid.
func NewTopic[T any](name string) Topic[T] { return Topic[T]{name} }

// Name returns the name of the topic.
func (t Topic[T]) Name() string { return t.name }

// Request makes the request for a task of the topic that is due after delay, for callers that add
// to it, such as Request.Group. Error: ErrInvalid if v has no JSON.
func (t Topic[T]) Request(id string, delay time.Duration, v T) (Request, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return Request{}, task.Invalid("payload", err.Error())
	}
	return Request{ID: id, Topic: t.name, Delay: delay, Payload: payload}, nil
}

// Schedule takes a task in that is due after delay. An empty id has one made. Errors: as of
// Scheduler.Schedule; ErrInvalid if v has no JSON.
func (t Topic[T]) Schedule(ctx context.Context, s *Scheduler, id string, delay time.Duration, v T) (Task, error) {
	r, err := t.Request(id, delay, v)
	if err != nil {
		return Task{}, err
	}
	return s.Schedule(ctx, r)
}

// Replace takes a task in like Schedule, in place of the pending one of the same id, if there is
// one. Errors: as of Scheduler.Replace; ErrInvalid if v has no JSON.
func (t Topic[T]) Replace(ctx context.Context, s *Scheduler, id string, delay time.Duration, v T) (Task, error) {
	r, err := t.Request(id, delay, v)
	if err != nil {
		return Task{}, err
	}
	return s.Replace(ctx, r)
}

// Handle delivers the tasks of the topic to f, with their payload decoded. A payload that does not
// decode kills its task, which another program may requeue. Errors: as of Scheduler.Handle.
func (t Topic[T]) Handle(s *Scheduler, f func(ctx context.Context, v T, d *Delivery) error) error {
	return s.Handle(t.name, func(ctx context.Context, d *Delivery) error {
		v, err := t.Value(d)
		if err != nil {
			return Kill(err)
		}
		return f(ctx, v, d)
	})
}

// Handler is Handle as a part of a program, see Run.
func (t Topic[T]) Handler(f func(ctx context.Context, v T, d *Delivery) error) Part {
	return func(_ context.Context, s *Scheduler) error { return t.Handle(s, f) }
}

// Value decodes the payload of a delivery, for receivers that reserve.
func (t Topic[T]) Value(d *Delivery) (v T, err error) {
	if err := json.Unmarshal(d.Payload, &v); err != nil {
		return v, fmt.Errorf("payload of %s: %w", t.name, err)
	}
	return v, nil
}
