package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Bounds of connections. How many there may be at once needs no bound of its own: each
// belongs to a delivery, or is one of the idle. A bound per host would let one URL that
// hangs delay another one of the same host.
const (
	connectWithin = 30 * time.Second // DNS and connecting; the attempt's own timeout may be shorter
	secureWithin  = 10 * time.Second // TLS

	// Less than common servers keep an idle connection (many for 5 s): a request that
	// crosses their farewell is a failed attempt.
	idleFor     = 4 * time.Second
	idlePerHost = 256
	idleInAll   = 4096

	maxAnswerHead = 64 << 10 // bytes of an answer's headers
)

// newTransport makes what keeps the connections. Requests go through it directly, not
// through an http.Client: nothing follows redirects, keeps cookies or adds a Referer.
// No connection is begun after closed ends.
func newTransport(closed context.Context, p *policy, resolver *net.Resolver, roots *x509.CertPool) *http.Transport {
	d := &dialer{
		closed: closed,
		net:    net.Dialer{Timeout: connectWithin, Resolver: resolver, ControlContext: p.control},
		tls: &tls.Config{
			MinVersion:         tls.VersionTLS12,
			RootCAs:            roots,
			NextProtos:         []string{"h2", "http/1.1"},
			ClientSessionCache: tls.NewLRUClientSessionCache(256),
		},
	}
	return &http.Transport{
		Proxy:                  nil, // also not the one that the environment names
		DialContext:            d.dial,
		DialTLSContext:         d.dialTLS,
		ForceAttemptHTTP2:      true, // which it would not with a dialer of our own
		DisableCompression:     true, // an answer's body is of no interest
		MaxIdleConns:           idleInAll,
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        idleFor,
		MaxResponseHeaderBytes: maxAnswerHead,
		// All requests to a host may share one connection of HTTP/2. If its other end has
		// gone without a word, it must not swallow them for ever.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second},
	}
}

// A stage is what an attempt waits for while there is no connection for it.
type stage int32

const (
	connected  stage = iota // or nobody has begun to dial yet
	resolving               // DNS
	connecting              // TCP
	securing                // TLS
)

// A progress is where an attempt stands. It travels in the context: the transport dials
// on its own, and goes on dialling when the attempt is over, so that an attempt that runs
// out of time would not learn what it has been waiting for. A connection that comes late is good for
// the next attempt; but attempts that are short must not pile up those that never come.
type progress struct {
	stage  atomic.Int32
	giveUp time.Time // dialling
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
