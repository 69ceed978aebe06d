package rabbitmq

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Errors of attempts that the broker has not answered.
var (
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the way is closed")
	// ErrTimeout is returned when there was no answer in time.
	ErrTimeout = errors.New("no confirmation in time")
	// ErrBlocked is returned while the broker takes no messages, because its memory
	// or disk is short.
	ErrBlocked = errors.New("the broker takes no messages")
)

const (
	// heartbeat is how often both ends show that they are alive. After three missing ones the
	// connection is given up.
	heartbeat = 5 * time.Second
	// mostChannels is how many batches may be on their way at once; more wait for one
	// another.
	mostChannels = 64
	// batch is how many messages a batch has at most (tasks.BatchDeliverer).
	batch = 256
)

// A link is a connection, or the attempt to make one.
type link struct {
	done   chan struct{} // closed when the fields below are set
	conn   *amqp.Connection
	err    error
	failed time.Time // when err was found

	blocked atomic.Pointer[string] // why the broker accepts nothing; nil if it does
	places  chan struct{}          // of channels, taken
	idle    chan *channel
}

// connection returns the connection. The first caller makes it, and callers that come meanwhile
// wait for the same.
func (w *Way) connection(ctx context.Context) (*link, error) {
	l, err := w.current()
	if err != nil {
		return nil, err
	}
	select {
	case <-l.done:
		return l, l.err
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
	if w.link == nil || w.link.ended(w.redialAfter) {
		w.link = &link{
			done:   make(chan struct{}),
			places: make(chan struct{}, mostChannels),
			idle:   make(chan *channel, mostChannels),
		}
		l := w.link
		w.wg.Go(func() { w.connect(l) })
	}
	return w.link, nil
}

// ended reports whether a link is closed, or could not be made, and it is time for another one.
func (l *link) ended(redialAfter time.Duration) bool {
	select {
	case <-l.done:
	default:
		return false
	}
	if l.err != nil {
		return time.Since(l.failed) >= redialAfter
	}
	return l.conn.IsClosed()
}

// connect makes a connection to the first broker that accepts it.
func (w *Way) connect(l *link) {
	defer close(l.done)
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("lapse")
	var errs []error
	for _, u := range w.urls {
		conn, err := amqp.DialConfig(u, amqp.Config{TLSClientConfig: w.tls, Heartbeat: heartbeat, Properties: properties, Dial: w.dial})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.conn = conn
		blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
		w.wg.Go(func() { l.watch(blocked) })
		return
	}
	l.err, l.failed = errors.Join(errs...), time.Now()
}

// watch records whether the broker accepts messages, until the connection ends.
func (l *link) watch(blocked <-chan amqp.Blocking) {
	for b := range blocked {
		if b.Active {
			l.blocked.Store(&b.Reason)
		} else {
			l.blocked.Store(nil)
		}
	}
}

func (l *link) close(patience time.Duration) {
	if l.err == nil {
		_ = l.conn.CloseDeadline(time.Now().Add(patience))
	}
}

// dial connects within the timeout, and bounds the handshake that follows by it, and
// later every write.
func (w *Way) dial(network, addr string) (net.Conn, error) {
	conn, err := net.DialTimeout(network, addr, w.timeout)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(w.timeout)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &punctual{conn, w.timeout}, nil
}

// A punctual connection breaks when a write takes too long: a broker that reads nothing would block
// all batches for ever.
type punctual struct {
	net.Conn
	timeout time.Duration
}

func (p *punctual) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(p.timeout)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// gaveUp is the error of an attempt whose context has ended.
func gaveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrTimeout
	}
	return ctx.Err()
}
