package client

import (
	"context"
	"encoding/json" // as in package tasks: payloads are the caller's
	"fmt"
	"time"
)

// A Topic is the name of a topic together with the type of what its tasks carry: each payload is
// the JSON of a T. It is a value of the program, like a constant, and calls nothing:
//
//	var unpaid = client.NewTopic[Order]("order.unpaid")
//
// Package tasks has the same for programs that embed the scheduler.
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
		return Request{}, fmt.Errorf("%w: payload: %w", ErrInvalid, err)
	}
	return Request{ID: id, Topic: t.name, Delay: delay, Payload: payload}, nil
}

// Schedule has a task delivered after delay. An empty id has one made. Errors: as of
// Client.Schedule; ErrInvalid if v has no JSON.
func (t Topic[T]) Schedule(ctx context.Context, c *Client, id string, delay time.Duration, v T) (*Task, error) {
	r, err := t.Request(id, delay, v)
	if err != nil {
		return nil, err
	}
	return c.Schedule(ctx, r)
}

// Replace schedules like Schedule, in place of the pending task of the same id, if there is one.
// Errors: as of Client.Replace; ErrInvalid if v has no JSON.
func (t Topic[T]) Replace(ctx context.Context, c *Client, id string, delay time.Duration, v T) (*Task, error) {
	r, err := t.Request(id, delay, v)
	if err != nil {
		return nil, err
	}
	return c.Replace(ctx, r)
}

// Handler makes a handler that hands f the decoded payloads. A payload that is missing or does not
// decode kills its task, which can be requeued.
func (t Topic[T]) Handler(f func(ctx context.Context, v T, d *Delivery) error) Handler {
	return func(ctx context.Context, d *Delivery) error {
		v, err := t.Value(d)
		if err != nil {
			return Kill(err)
		}
		return f(ctx, v, d)
	}
}

// Worker makes a worker of the topic with Handler's handler. Errors: as of NewWorker.
func (t Topic[T]) Worker(c *Client, f func(ctx context.Context, v T, d *Delivery) error, o WorkerOptions) (*Worker, error) {
	return NewWorker(c, t.name, t.Handler(f), o)
}

// Value decodes the payload of a delivery, for receivers that reserve.
func (t Topic[T]) Value(d *Delivery) (v T, err error) {
	if err := json.Unmarshal(d.Payload, &v); err != nil {
		return v, fmt.Errorf("payload of %s: %w", t.name, err)
	}
	return v, nil
}
