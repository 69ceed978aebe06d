package nats

import (
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapsehq/lapse/adapters/internal/broker"
)

// Errors of attempts that the server has not answered.
var (
	// ErrClosed is returned after Close.
	ErrClosed = broker.ErrClosed
	// ErrTimeout is returned when there was no answer in time.
	ErrTimeout = broker.ErrTimeout
)

// mostPending is how many messages may be sent and unanswered at once: far more than a scheduler
// has deliveries, so that no delivery waits for a place.
const mostPending = 1 << 20

// A connection reconnects when it breaks.
type connection struct {
	conn *natsgo.Conn
	js   jetstream.JetStream
}

// connect makes a connection. That takes a few seconds at most: without a server, it goes on in the
// background.
func (w *Way) connect() (*connection, error) {
	conn, err := w.options.Connect()
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(mostPending), jetstream.WithPublishAsyncTimeout(w.timeout))
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &connection{conn, js}, nil
}
