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
