package rabbitmq

import (
	"context"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// An outcome is the result of an attempt.
type outcome int

const (
	confirmed   outcome = iota
	unroutable          // routed to no queue
	refused             // a queue or the broker refused
	timeout             // the broker did not answer in time
	blocked             // the broker accepts no messages
	unreachable         // there was no connection, or it broke
)

var outcomeNames = []string{
	confirmed: "confirmed", unroutable: "unroutable", refused: "refused",
	timeout: "timeout", blocked: "blocked", unreachable: "unreachable",
}

func outcomeOf(err error) outcome {
	var said *amqp.Error
	switch {
	case err == nil:
		return confirmed
	case errors.Is(err, ErrUnroutable):
		return unroutable
	case errors.Is(err, ErrRefused), errors.As(err, &said) && said.Recover:
		return refused
	case errors.Is(err, ErrBlocked):
		return blocked
	case errors.Is(err, ErrTimeout), errors.Is(err, context.Canceled):
		return timeout
	}
	return unreachable
}

// Tally implements tasks.Tally, with the names above. All of them are always there.
func (w *Way) Tally() map[string]int64 { return w.tally.Tally() }
