package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of connections. The number of concurrent connections needs no bound of its own: each
// belongs to a delivery, or is one of the idle ones. A bound per host would let one URL that hangs
// delay another one of the same host.
const (
	// DNS and connecting; the attempt's own timeout may be shorter.
	connectWithin = 30 * time.Second
	secureWithin  = 10 * time.Second // TLS

	// This is less than the time for which common servers keep an idle connection (many for 5 s): a
	// request that is sent while the server closes the connection is a failed attempt.
	idleFor     = 4 * time.Second
	idlePerHost = 256
	idleInAll   = 4096

	// usedFor is how long connections are used for new requests. So the name of a host is resolved
	// again that often, however many requests there are.
	usedFor = 30 * time.Second

	maxAnswerHead = 64 << 10 // bytes of an answer's headers
)

// Connections are those of a transport, and after usedFor those of the next one.
type connections struct {
	begin func() *http.Transport

	mu    sync.Mutex // guards everything below
	now   *http.Transport
	since time.Time
}

// at returns the transport for requests that begin at a time. The connections of the one before are
// closed as soon as their requests are over.
func (c *connections) at(t time.Time) *http.Transport {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now == nil || t.Sub(c.since) >= usedFor {
		before := c.now
		c.now, c.since = c.begin(), t
		if before != nil {
			before.CloseIdleConnections() // the others are closed after idleFor
		}
	}
	return c.now
}

// newConnections makes what keeps the connections. The rest is as of newTransport.
func newConnections(closed context.Context, p *policy, resolver *net.Resolver, roots *x509.CertPool) *connections {
	sessions := tls.NewLRUClientSessionCache(256)
	return &connections{begin: func() *http.Transport { return newTransport(closed, p, resolver, roots, sessions) }}
}

// newTransport makes a transport that keeps the connections. Requests go through it directly, not
// through an http.Client: nothing follows redirects, keeps cookies or adds a Referer. It begins no
// connection after closed ends.
func newTransport(closed context.Context, p *policy, resolver *net.Resolver, roots *x509.CertPool, sessions tls.ClientSessionCache) *http.Transport {
	d := &dialer{
		closed: closed,
		net:    net.Dialer{Timeout: connectWithin, Resolver: resolver, ControlContext: p.control},
		tls: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			RootCAs:            roots,
			NextProtos:         []string{"h2", "http/1.1"},
			ClientSessionCache: sessions,
		},
	}
	return &http.Transport{
		Proxy:                  nil, // not the one of the environment either
		DialContext:            d.dial,
		DialTLSContext:         d.dialTLS,
		ForceAttemptHTTP2:      true, // which is not the default with a dialer of one's own
		DisableCompression:     true, // an answer's body is not used
		MaxIdleConns:           idleInAll,
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: maxAnswerHead,
		// All requests to a host may share one connection of HTTP/2. A connection whose other end
		// has gone silently must be noticed.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// A stage is what an attempt waits for while it has no connection.
type stage int32

const (
	connected  stage = iota // or no dial has begun yet
	resolving               // DNS
	connecting              // TCP
	securing                // TLS
)

// A progress is the stage of an attempt. It is passed in the context, since the transport dials by
// itself, and goes on dialling when the attempt is over: an attempt that runs out of time would
// otherwise not learn what it has waited for. A connection that comes late is good for the next
// attempt, but connections that never come must not pile up behind short attempts.
type progress struct {
	stage  atomic.Int32
	giveUp time.Time // when dialling ends
}

type progressKey struct{}

func enter(ctx context.Context, s stage) {
	if p, ok := ctx.Value(progressKey{}).(*progress); ok {
		p.stage.Store(int32(s))
	}
}

// A dialError is the end of an attempt to connect.
type dialError struct {
	error
	stage stage
}

func (e dialError) Unwrap() error { return e.error }

// A dialer connects.
type dialer struct {
	closed context.Context
	net    net.Dialer
	tls    *tls.Config
}

// until ends a context with the way as well, and some time after its attempt.
func (d *dialer) until(ctx context.Context) (context.Context, context.CancelFunc) {
	latest := time.Now().Add(connectWithin + secureWithin)
	if p, ok := ctx.Value(progressKey{}).(*progress); ok && p.giveUp.Before(latest) {
		latest = p.giveUp
	}
	ctx, cancel := context.WithDeadline(ctx, latest)
	stop := context.AfterFunc(d.closed, cancel)
	return ctx, func() { stop(); cancel() }
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := d.until(ctx)
	defer cancel()
	defer enter(ctx, connected)
	return d.connect(ctx, network, address)
}

func (d *dialer) connect(ctx context.Context, network, address string) (net.Conn, error) {
	if err := d.closed.Err(); err != nil {
		return nil, dialError{err, connecting}
	}
	enter(ctx, resolving)
	conn, err := d.net.DialContext(ctx, network, address)
	if err == nil {
		return conn, nil
	}
	reached := connecting
	if name := (*net.DNSError)(nil); errors.As(err, &name) {
		reached = resolving
	}
	return nil, dialError{err, reached}
}

func (d *dialer) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := d.until(ctx)
	defer cancel()
	defer enter(ctx, connected)
	plain, err := d.connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	enter(ctx, securing)
	cfg := d.tls.Clone()
	if cfg.ServerName, _, err = net.SplitHostPort(address); err != nil {
		plain.Close()
		return nil, dialError{err, securing}
	}
	within, end := context.WithTimeout(ctx, secureWithin)
	defer end()
	conn := tls.Client(plain, cfg)
	if err := conn.HandshakeContext(within); err != nil {
		plain.Close()
		return nil, dialError{fmt.Errorf("TLS: %w", err), securing}
	}
	return conn, nil
}
