package httpapi

import (
	"container/list"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// LimitConnections bounds the connections of a server that HTTPServer has made; call
// it before the server starts, and serve what it returns.
//
// At the limit, whoever connects takes the place of the connection that has been idle
// for the longest time. Where none is idle he waits, in the backlog of the operating
// system behind one that was accepted already, until one becomes idle or is closed: a
// burst is late that way, and not refused.
func (s *Server) LimitConnections(server *http.Server, l net.Listener, limit int) net.Listener {
	c := &connections{
		Listener: l, limit: limit, log: s.log,
		idle: list.New(), places: make(map[*connected]*list.Element),
		changed: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	server.ConnState = c.note
	return c
}

// connections is a listener that knows which of its connections are open, and idle.
type connections struct {
	net.Listener
	limit int
	log   *slog.Logger

	changed   chan struct{} // holds a token when a connection was closed or has become idle
	closed    chan struct{} // closed by Close
	closeOnce sync.Once

	mu     sync.Mutex // guards everything below
	open   int
	idle   *list.List                   // of *connected, the one that has been idle longest in front
	places map[*connected]*list.Element // where each of them stands there
	warned time.Time
}

// A connected is a connection that tells when it is closed.
type connected struct {
	net.Conn
	of   *connections
	once sync.Once
}

// Accept waits for a connection, and then for a place for it.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for !c.place() {
		select {
		case <-c.changed:
		case <-c.closed:
			conn.Close()
			return nil, net.ErrClosed
		}
	}
	return &connected{Conn: conn, of: c}, nil
}

// Close ends the listener, and the wait for a place.
func (c *connections) Close() error {
	c.closeOnce.Do(func() { close(c.closed) })
	return c.Listener.Close()
}

// place takes a place, if there is one. If there is none it makes room for the next
// attempt, if it can.
func (c *connections) place() bool {
	c.mu.Lock()
	if c.open < c.limit {
		c.open++
		c.mu.Unlock()
		return true
	}
	var victim *connected
	if front := c.idle.Front(); front != nil {
		victim = c.idle.Remove(front).(*connected)
		delete(c.places, victim)
	} else if time.Since(c.warned) > time.Minute {
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
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	known, ok := conn.(*connected)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, was := c.places[known]; was {
		c.idle.Remove(e)
		delete(c.places, known)
	}
	if state == http.StateIdle {
		c.places[known] = c.idle.PushBack(known)
		c.wake()
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
		c.of.mu.Lock()
		c.of.open--
		c.of.mu.Unlock()
		c.of.wake()
	})
	return err
}
