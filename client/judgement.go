package client

import (
	"context"
	"errors"
	"strings"
	"time"
)

// A Handler handles a delivery. nil acknowledges it. With an error the task is delivered again
// after its topic's backoff, or as RetryAfter says, or never with Kill. A panic counts as an error.
// The error's text is kept as the task's LastError, cut at 1 KiB.
//
// Several handlers run at once. The lease is extended for as long as one runs. ctx ends with
// ErrLeaseLost as its cause when that failed, so that another worker may have the task; and with
// ErrStopped when the worker stops and its grace is over.
type Handler func(ctx context.Context, d *Delivery) error

// A deathError makes a failed attempt the last one.
type deathError struct{ error }

func (e deathError) Unwrap() error { return e.error }

// Kill marks a handler's error that another attempt cannot mend: the task becomes dead.
func Kill(err error) error { return deathError{some(err)} }

// A pauseError says when the next attempt may start.
type pauseError struct {
	error
	pause time.Duration
}

func (e pauseError) Unwrap() error { return e.error }

// RetryAfter marks a handler's error after which the next attempt starts in pause,
// instead of after the topic's backoff. At most 10 years; a negative pause is none.
func RetryAfter(err error, pause time.Duration) error { return pauseError{some(err), pause} }

func some(err error) error {
	if err == nil {
		return errors.New("no reason given")
	}
	return err
}

const (
	maxReason  = 1 << 10 // bytes; the server cuts there, too
	tenYears   = 10 * 365 * day
	maxReceipt = 1000 // receipts in a call
)

type verb uint8

const (
	ack verb = iota
	giveBack
	release
	bury
)

// A judgement is how a delivery is to be settled. Deliveries with equal judgements are settled by
// one call.
type judgement struct {
	verb   verb
	reason string
	pause  time.Duration // release: valid if given is true
	given  bool          // else the topic's backoff
}

// judge reads a handler's error. It calls methods of that error, which may panic.
func judge(err error) judgement {
	var death deathError
	var pause pauseError
	switch {
	case err == nil:
		return judgement{verb: ack}
	case errors.As(err, &death):
		return judgement{verb: bury, reason: reason(err.Error())}
	case errors.As(err, &pause):
		return judgement{verb: release, reason: reason(err.Error()), pause: min(max(pause.pause, 0), tenYears), given: true}
	}
	return judgement{verb: release, reason: reason(err.Error())}
}

func reason(text string) string { return strings.ToValidUTF8(text[:min(len(text), maxReason)], "") }

// settle makes the call.
func (j *judgement) settle(ctx context.Context, c *Client, receipts []string) (*Settlement, error) {
	switch j.verb {
	case ack:
		return c.Ack(ctx, receipts...)
	case giveBack:
		return c.Return(ctx, receipts...)
	case bury:
		return c.Bury(ctx, j.reason, receipts...)
	}
	var pause *time.Duration
	if j.given {
		pause = &j.pause
	}
	return c.Release(ctx, pause, j.reason, receipts...)
}
