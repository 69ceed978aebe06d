package nats

import (
	"context"
	"errors"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Errors of attempts that the server has not answered.
var (
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the way is closed")
	// ErrTimeout is returned when there was no answer in time.
	ErrTimeout = errors.New("no acknowledgement in time")
)

// mostPending is how many messages may be sent and unanswered at once: far more than a scheduler
// has deliveries, so that no delivery waits for a place.
const mostPending = 1 << 20

// A link is the connection, which reconnects when it breaks, or the attempt to make the first one.
type link struct {
	done chan struct{} // closed when the fields below are set
	conn *natsgo.Conn
	js   jetstream.JetStream
	err  error
}

// jetStream returns the connection. The first caller makes it, and callers that come meanwhile wait
// for the same.
func (w *Way) jetStream(ctx context.Context) (jetstream.JetStream, error) {
	l, err := w.current()
	if err != nil {
		return nil, err
	}
	select {
	case <-l.done:
		return l.js, l.err
	case <-ctx.Done():
		return nil, gaveUp(ctx)
	}
}

func (w *Way) current() (*link, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, ErrClosed
	}
	if w.link == nil || w.link.ended() {
		w.link = &link{done: make(chan struct{})}
		l := w.link
		w.wg.Go(func() { w.connect(l) })
	}
	return w.link, nil
}

// ended reports whether a link is closed for good.
func (l *link) ended() bool {
	select {
	case <-l.done:
		return l.err != nil || l.conn.IsClosed()
	default:
		return false
	}
}

// connect makes a connection. That takes a few seconds at most: without a server, it goes on in the
// background.
func (w *Way) connect(l *link) {
	defer close(l.done)
	if l.conn, l.err = w.options.Connect(); l.err != nil {
		return
	}
	l.js, l.err = jetstream.New(l.conn, jetstream.WithPublishAsyncMaxPending(mostPending), jetstream.WithPublishAsyncTimeout(w.timeout))
	if l.err != nil {
		l.conn.Close()
	}
}

// gaveUp is the error of an attempt whose context has ended.
func gaveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrTimeout
	}
	return ctx.Err()
}
