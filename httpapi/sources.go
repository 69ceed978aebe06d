package httpapi

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// sources counts the connections of each address, so that no address can have all of them.
type sources struct {
	limit int
	log   *slog.Logger

	mu     sync.Mutex // guards everything below
	open   map[netip.Prefix]int
	warned time.Time
}

// begin counts a connection, unless its address has too many. The source that it returns is for
// end.
func (s *sources) begin(conn net.Conn) (source netip.Prefix, ok bool) {
	source = sourceOf(conn.RemoteAddr())
	if !source.IsValid() {
		return source, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[source] >= s.limit {
		if time.Since(s.warned) > time.Minute {
			s.warned = time.Now()
			s.log.Warn("an address has too many connections; further ones are closed", "address", source, "limit", s.limit)
		}
		return source, false
	}
	s.open[source]++
	return source, true
}

// end frees the place of a connection.
func (s *sources) end(source netip.Prefix) {
	if !source.IsValid() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[source]--; s.open[source] == 0 {
		delete(s.open, source)
	}
}

// sourceOf returns the prefix that counts as one address: of IPv6 a /64, since a machine may have
// all of its addresses. The result is not valid for connections without a bound: from the loopback
// address, which all callers on this machine share, and without TCP.
func sourceOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, ok := netip.AddrFromSlice(tcp.IP)
	if ip = ip.Unmap(); !ok || ip.IsLoopback() {
		return netip.Prefix{}
	}
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	source, _ := ip.Prefix(bits)
	return source
}

// LimitSources bounds the connections that one address has at a listener that is not of HTTP, by
// the rules of LimitConnections. Further ones are closed.
func (s *Server) LimitSources(l net.Listener, limit int) net.Listener {
	return &sourceListener{Listener: l, sources: sources{limit: limit, log: s.log, open: make(map[netip.Prefix]int)},
		tooMany: func() { s.refusals[refusedAddress].Add(1) }}
}

// A sourceListener accepts connections of addresses that may have one more.
type sourceListener struct {
	net.Listener
	sources sources
	tooMany func() // called for each connection that was closed
}

// Accept waits for a connection of an address that may have one more.
func (l *sourceListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source, ok := l.sources.begin(conn)
		switch {
		case ok && !source.IsValid():
			return conn, nil
		case ok:
			return &sourceConn{Conn: conn, end: sync.OnceFunc(func() { l.sources.end(source) })}, nil
		}
		conn.Close()
		l.tooMany()
	}
}

// A sourceConn frees its place when it is closed.
type sourceConn struct {
	net.Conn
	end func()
}

// Close closes the connection.
func (c *sourceConn) Close() error {
	c.end()
	return c.Conn.Close()
}
