package httpapi

import (
	"container/list"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// LimitConnections bounds the connections of a server that HTTPServer has made; call
// it before the server starts, and serve what it returns.
//
// At the limit, a new connection takes the place of the one whose request has been incomplete
// for the longest time, if that is longer than unfinishedFor; or else of the one that has been
// idle for the longest time, unless so many requests are incomplete that the idle ones would be
// gone before it is known who is slow. Where none gives way the new one waits, in the backlog of
// the operating system behind one that was accepted already: a burst is late that way, and not
// refused.
//
// One address has at most Config.MaxConnectionsPerAddress of them; further ones are closed.
func (s *Server) LimitConnections(server *http.Server, l net.Listener, limit int) net.Listener {
	perSource := s.perSource
	if perSource == 0 {
		perSource = max(1, limit/2)
	}
	return s.limit(server, l, limit, perSource, s.log)
}

func (s *Server) limit(server *http.Server, l net.Listener, limit, perSource int, log *slog.Logger) net.Listener {
	c := &connections{
		sources:  sources{limit: perSource, log: log, open: make(map[netip.Prefix]int)},
		tooMany:  func() { s.refusals[refusedAddress].Add(1) },
		Listener: l, limit: limit, log: log,
		idle: list.New(), places: make(map[*connected]*list.Element), unfinished: list.New(),
		changed: make(chan struct{}, 1), closed: make(chan struct{}),
		gaveWay: func() { s.refusals[refusedUnfinished].Add(1) },
	}
	server.ConnState = c.note
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		if known := connectedOf(conn); known != nil {
			return context.WithValue(ctx, connectedKey{}, known)
		}
		return ctx
	}
	return c
}

// unfinishedFor is how long a request may be incomplete before its connection gives way at the
// limit.
const unfinishedFor = 500 * time.Millisecond

// connectedKey is where the context of a request has its *connected.
type connectedKey struct{}

// hasArrived notes that all of a request is there.
func hasArrived(r *http.Request) {
	if c, ok := r.Context().Value(connectedKey{}).(*connected); ok {
		c.of.mu.Lock()
		c.of.finishLocked(c)
		c.of.mu.Unlock()
	}
}

// connections is a listener that knows which of its connections are open, and idle.
type connections struct {
	net.Listener
	limit int
	log   *slog.Logger

	changed   chan struct{} // holds a token when a connection was closed or has become idle
	closed    chan struct{} // closed by Close
	closeOnce sync.Once
	sources   sources
	tooMany   func() // called for each connection that was closed since its address has too many
	gaveWay   func() // called for each connection that was closed with an incomplete request

	mu     sync.Mutex // guards everything below
	open   int
	idle   *list.List                   // of *connected, the one that has been idle longest in front
	places map[*connected]*list.Element // where each of them stands there
	warned time.Time

	unfinished *list.List // of *connected without a complete request, the longest in front
}

// A connected is a connection that tells when it is closed.
type connected struct {
	net.Conn
	of   *connections
	once sync.Once

	source netip.Prefix // for sources

	unfinished *list.Element // guarded by connections.mu; nil: its request is complete
	since      time.Time     // when that began
}

// Accept waits for a connection, and then for a place for it.
func (c *connections) Accept() (net.Conn, error) {
	conn, source, err := c.accept()
	if err != nil {
		return nil, err
	}
	made := &connected{Conn: conn, of: c, source: source}
	for !c.place(made) {
		again := time.NewTimer(unfinishedFor / 10)
		select {
		case <-c.changed:
		case <-again.C: // until a request has been incomplete for too long
		case <-c.closed:
			again.Stop()
			conn.Close()
			c.sources.end(source)
			return nil, net.ErrClosed
		}
		again.Stop()
	}
	return made, nil
}

// accept waits for a connection of an address that may have one more.
func (c *connections) accept() (net.Conn, netip.Prefix, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, netip.Prefix{}, err
		}
		source, ok := c.sources.begin(conn)
		if ok {
			return conn, source, nil
		}
		conn.Close()
		c.tooMany()
	}
}

// Close ends the listener, and the wait for a place.
func (c *connections) Close() error {
	c.closeOnce.Do(func() { close(c.closed) })
	return c.Listener.Close()
}

// place takes a place for a connection, if there is one. If there is none it makes room for the
// next attempt, if it can.
func (c *connections) place(made *connected) bool {
	c.mu.Lock()
	if c.open < c.limit {
		c.open++
		c.beginLocked(made)
		c.mu.Unlock()
		return true
	}
	var victim *connected
	slow := c.unfinished.Front()
	switch front := c.idle.Front(); {
	case slow != nil && time.Since(slow.Value.(*connected).since) >= unfinishedFor:
		victim = slow.Value.(*connected)
		c.finishLocked(victim)
		c.gaveWay()
	case front != nil && c.unfinished.Len() <= c.limit/4:
		victim = c.idle.Remove(front).(*connected)
		delete(c.places, victim)
	case time.Since(c.warned) > time.Minute:
		c.warned = time.Now()
		c.log.Warn("all connections are in use; others wait", "limit", c.limit)
	}
	c.mu.Unlock()
	if victim != nil {
		victim.Close() // which wakes Accept
	}
	return false
}

// note is told by the server what its connections do.
func (c *connections) note(conn net.Conn, state http.ConnState) {
	known := connectedOf(conn)
	if known == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case state == http.StateActive && known.unfinished == nil:
		c.beginLocked(known)
	case state == http.StateClosed || state == http.StateHijacked:
		c.finishLocked(known)
	}
	if e, was := c.places[known]; was {
		c.idle.Remove(e)
		delete(c.places, known)
	}
	if state == http.StateIdle {
		c.finishLocked(known)
		c.places[known] = c.idle.PushBack(known)
		c.wake()
	}
}

// connectedOf returns what Accept has made of a connection, or nil.
func connectedOf(conn net.Conn) *connected {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	known, _ := conn.(*connected)
	return known
}

// beginLocked notes that a connection has no complete request from now on.
func (c *connections) beginLocked(known *connected) {
	known.since = time.Now()
	known.unfinished = c.unfinished.PushBack(known)
}

// finishLocked notes that it has one, or needs none.
func (c *connections) finishLocked(known *connected) {
	if known.unfinished != nil {
		c.unfinished.Remove(known.unfinished)
		known.unfinished = nil
	}
}

func (c *connections) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// Close closes the connection and gives its place up.
func (c *connected) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.of.sources.end(c.source)
		c.of.mu.Lock()
		c.of.open--
		c.of.finishLocked(c)
		c.of.mu.Unlock()
		c.of.wake()
	})
	return err
}
