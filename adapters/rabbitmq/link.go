package rabbitmq

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/adapters/internal/broker"
)

// Errors of attempts that the broker has not answered.
var (
	// ErrClosed is returned after Close.
	ErrClosed = broker.ErrClosed
	// ErrTimeout is returned when there was no answer in time.
	ErrTimeout = broker.ErrTimeout
	// ErrBlocked is returned while the broker takes no messages, because its memory
	// or disk is short.
	ErrBlocked = errors.New("the broker takes no messages")
)

const (
	// redialAfter is how long after a connection that could not be made the next one is tried.
	redialAfter = 500 * time.Millisecond
	// heartbeat is how often both ends show that they are alive. After three missing ones the
	// connection is given up.
	heartbeat = 5 * time.Second
	// mostChannels is how many batches may be on their way at once; more wait for one
	// another.
	mostChannels = 64
	// batch is how many messages a batch has at most (tasks.BatchDeliverer).
	batch = 256
)

// A connection has the channels of batches.
type connection struct {
	conn    *amqp.Connection
	blocked atomic.Pointer[string] // why the broker accepts nothing; nil if it does
	places  chan struct{}          // of channels, taken
	idle    chan *channel
}

// connect makes a connection to the first broker that accepts it.
func (w *Way) connect() (*connection, error) {
	properties := amqp.NewConnectionProperties()
	properties.SetClientConnectionName("lapse")
	var errs []error
	for _, u := range w.urls {
		conn, err := amqp.DialConfig(u, amqp.Config{TLSClientConfig: w.tls, Heartbeat: heartbeat, Properties: properties, Dial: w.dial})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c := &connection{conn: conn, places: make(chan struct{}, mostChannels), idle: make(chan *channel, mostChannels)}
		blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 1))
		w.wg.Go(func() { c.watch(blocked) })
		return c, nil
	}
	return nil, errors.Join(errs...)
}

// watch records whether the broker accepts messages, until the connection ends.
func (c *connection) watch(blocked <-chan amqp.Blocking) {
	for b := range blocked {
		if b.Active {
			c.blocked.Store(&b.Reason)
		} else {
			c.blocked.Store(nil)
		}
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
