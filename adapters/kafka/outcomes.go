package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// An outcome is the result of an attempt.
type outcome int

const (
	stored      outcome = iota
	noTopic             // the cluster has no such topic
	refused             // a broker refused
	timeout             // no acknowledgement in time, with or without a broker
	unreachable         // the client gave up sooner
)

var outcomeNames = []string{
	stored: "stored", noTopic: "no_topic", refused: "refused", timeout: "timeout", unreachable: "unreachable",
}

func outcomeOf(err error) outcome {
	var said *kerr.Error
	switch {
	case err == nil:
		return stored
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return noTopic
	case errors.As(err, &said):
		return refused
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, kgo.ErrRecordTimeout):
		return timeout
	}
	return unreachable
}

// Tally implements tasks.Tally, with the names above. All of them are always there.
func (w *Way) Tally() map[string]int64 { return w.tally.Tally() }
