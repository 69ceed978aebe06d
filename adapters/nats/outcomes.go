package nats

import (
	"context"
	"errors"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// An outcome is the result of an attempt.
type outcome int

const (
	stored      outcome = iota
	duplicate           // the stream had it already: it counts as delivered
	noStream            // none listens on the subject
	refused             // the server refused
	timeout             // the server did not answer in time
	unreachable         // there was no connection, or it broke
)

var outcomeNames = []string{
	stored: "stored", duplicate: "duplicate", noStream: "no_stream",
	refused: "refused", timeout: "timeout", unreachable: "unreachable",
}

// outcomeOf is the outcome of an attempt that was not acknowledged.
func outcomeOf(err error) outcome {
	var api *jetstream.APIError
	switch {
	case errors.Is(err, jetstream.ErrNoStreamResponse):
		return noStream
	case errors.As(err, &api), errors.Is(err, natsgo.ErrMaxPayload), errors.Is(err, jetstream.ErrInvalidJSAck):
		return refused
	case errors.Is(err, ErrTimeout), errors.Is(err, context.Canceled), errors.Is(err, jetstream.ErrAsyncPublishTimeout):
		return timeout
	}
	return unreachable
}

// Tally implements tasks.Tally, with the names above. All of them are always there.
func (w *Way) Tally() map[string]int64 { return w.tally.Tally() }
