package httpapi

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/edge"
)

// LimitConnections bounds the connections of a server that HTTPServer has made. Call it before the
// server starts, and serve the listener that it returns.
//
// At the limit, a new connection takes the place of another one. The first that applies gives way:
//
//  1. the connection whose request has been incomplete for the longest time, if that is longer
//     than unfinishedFor;
//  2. the connection that has been idle for the longest time, unless so many requests are
//     incomplete or so many answers unread that the idle ones would be gone before the slow ones;
//  3. the connection that has been blocked in a write for the longest time, if that is longer
//     than unreadFor: its caller does not read the answer.
//
// If none gives way, the new connection waits. One that is already accepted waits in front of it,
// and the others wait in the backlog of the operating system. A burst is delayed that way, not
// refused.
//
// One address has at most Config.MaxConnectionsPerAddress connections. Further ones are closed.
func (s *Server) LimitConnections(server *http.Server, l net.Listener, limit int) net.Listener {
	perSource := s.perSource
	if perSource == 0 {
		perSource = max(1, limit/2)
	}
	return s.limit(server, l, limit, perSource, s.log)
}

func (s *Server) limit(server *http.Server, l net.Listener, limit, perSource int, log *slog.Logger) net.Listener {
	c := &connections{
		addresses: s.addresses(perSource, log),
		Listener:  l, limit: limit, log: log, began: time.Now(), open: make(map[*connected]bool),
		idle: list.New(), places: make(map[*connected]*list.Element), unfinished: list.New(),
		changed: make(chan struct{}, 1), closed: make(chan struct{}),
		gaveWay: func(why refusal) { s.refusals[why].Add(1) },
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

const (
	// unfinishedFor is how long a request may be incomplete before its connection gives way at
	// the limit.
	unfinishedFor = 500 * time.Millisecond
	// unreadFor is how long a write may be blocked before its connection gives way. It is longer
	// than unfinishedFor, since the buffers of the operating system hide a slow reader's progress
	// for a while.
	unreadFor = 2 * time.Second
	// atTheLimit is how often a waiting connection looks for one that gives way.
	atTheLimit = 50 * time.Millisecond
)

// connectedKey is where the context of a request has its *connected.
type connectedKey struct{}

// hasArrived notes that a request is complete.
func hasArrived(r *http.Request) {
	if c, ok := r.Context().Value(connectedKey{}).(*connected); ok {
		c.of.mu.Lock()
		c.of.finishLocked(c)
		c.of.mu.Unlock()
	}
}

// connections is a listener that knows which of its connections are open, and which are idle.
type connections struct {
	net.Listener
	limit int
	log   *slog.Logger
	began time.Time

	changed   chan struct{} // holds a token when a connection was closed or became idle
	closed    chan struct{} // closed by Close
	closeOnce sync.Once
	addresses *edge.Addresses
	gaveWay   func(refusal) // called for each connection that was closed while in use

	mu     sync.Mutex // guards everything below
	open   map[*connected]bool
	idle   *list.List                   // of *connected, longest idle first
	places map[*connected]*list.Element // the element of each in idle
	warned time.Time

	unfinished *list.List // of *connected without a complete request, oldest first

	unread []*connected // blocked in a write for unreadFor, oldest first
	looked time.Time    // when unread was made
}

// A connected is a connection that reports when it is closed.
type connected struct {
	net.Conn
	of   *connections
	once sync.Once

	end func() // frees its place among those of its address

	unfinished *list.Element // guarded by connections.mu; nil: the request is complete
	since      time.Time     // when the request became incomplete

	// writing is when the write that is under way began, as the time since connections.began; 0: no
	// write is under way. Writes take no lock for it. At the limit, place looks at all connections
	// instead.
	writing atomic.Int64
}

// Accept waits for a connection, and then for a place for it.
func (c *connections) Accept() (net.Conn, error) {
	conn, end, err := c.accept()
	if err != nil {
		return nil, err
	}
	made := &connected{Conn: conn, of: c, end: end}
	for !c.place(made) {
		again := time.NewTimer(atTheLimit)
		select {
		case <-c.changed:
		case <-again.C: // until a request or a write has taken too long
		case <-c.closed:
			again.Stop()
			conn.Close()
			end()
			return nil, net.ErrClosed
		}
		again.Stop()
	}
	return made, nil
}

// accept waits for a connection from an address that may have one more.
func (c *connections) accept() (conn net.Conn, end func(), err error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, nil, err
		}
		switch end, ok := c.addresses.Begin(conn); {
		case ok && end == nil:
			return conn, func() {}, nil
		case ok:
			return conn, end, nil
		}
		conn.Close()
	}
}

// addresses returns a count that allows each address so many connections.
func (s *Server) addresses(limit int, log *slog.Logger) *edge.Addresses {
	return edge.NewAddresses(limit, log, func() { s.refusals[refusedAddress].Add(1) })
}

// LimitAddresses bounds the connections that one address has at a listener that is not of HTTP, by
// the rules of LimitConnections. Further ones are closed.
func (s *Server) LimitAddresses(l net.Listener, limit int) net.Listener {
	return s.addresses(limit, s.log).Listener(l)
}

// Close closes the listener and ends the wait for a place.
func (c *connections) Close() error {
	c.closeOnce.Do(func() { close(c.closed) })
	return c.Listener.Close()
}

// place takes a place for a connection and reports whether there was one. If there is none, it
// makes room for the next attempt if it can.
func (c *connections) place(made *connected) bool {
	c.mu.Lock()
	if len(c.open) < c.limit {
		c.open[made] = true
		c.beginLocked(made)
		c.mu.Unlock()
		return true
	}
	var victim *connected
	c.findUnreadLocked()
	slow := c.unfinished.Front()
	switch front := c.idle.Front(); {
	case slow != nil && time.Since(slow.Value.(*connected).since) >= unfinishedFor:
		victim = slow.Value.(*connected)
		c.finishLocked(victim)
		c.gaveWay(refusedUnfinished)
	case front != nil && max(c.unfinished.Len(), len(c.unread)) <= c.limit/4:
		victim = c.idle.Remove(front).(*connected)
		delete(c.places, victim)
	case len(c.unread) > 0:
		victim = c.unread[0]
		c.unread = c.unread[1:]
		c.gaveWay(refusedUnread)
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

// findUnreadLocked looks for connections that are blocked in a write. It does not look at all of
// them each time, only when the first known one is no longer blocked.
func (c *connections) findUnreadLocked() {
	if time.Since(c.looked) >= atTheLimit {
		c.looked = time.Now()
		c.unread = c.unread[:0]
		for known := range c.open {
			if known.isUnread() {
				c.unread = append(c.unread, known)
			}
		}
		slices.SortFunc(c.unread, func(a, b *connected) int {
			return cmp.Compare(a.writing.Load(), b.writing.Load())
		})
	}
	for len(c.unread) > 0 && !c.unread[0].isUnread() {
		c.unread = c.unread[1:]
	}
}

// note is called by the server when the state of a connection changes.
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

// connectedOf returns the connection that Accept has made, or nil.
func connectedOf(conn net.Conn) *connected {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	known, _ := conn.(*connected)
	return known
}

// beginLocked notes that a connection has no complete request.
func (c *connections) beginLocked(known *connected) {
	known.since = time.Now()
	known.unfinished = c.unfinished.PushBack(known)
}

// finishLocked notes that the request of a connection is complete, or that it needs none.
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

// isUnread reports whether the connection has been blocked in a write for unreadFor.
func (c *connected) isUnread() bool {
	writing := time.Duration(c.writing.Load())
	return writing != 0 && time.Since(c.of.began)-writing >= unreadFor
}

// Write records when it began, for as long as it lasts.
func (c *connected) Write(p []byte) (int, error) {
	c.writing.Store(int64(time.Since(c.of.began)))
	n, err := c.Conn.Write(p)
	c.writing.Store(0)
	return n, err
}

// Close closes the connection and frees its place.
func (c *connected) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.end()
		c.of.mu.Lock()
		delete(c.of.open, c)
		c.of.finishLocked(c)
		c.of.mu.Unlock()
		c.of.wake()
	})
	return err
}
