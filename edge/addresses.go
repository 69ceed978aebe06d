package edge

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Addresses counts the connections of each address, so that no address can have all of them. It is
// safe for concurrent use.
type Addresses struct {
	limit   int
	log     *slog.Logger
	tooMany func()

	mu     sync.Mutex // guards everything below
	open   map[netip.Prefix]int
	warned time.Time
}

// NewAddresses returns a count that allows each address so many connections. tooMany is called for
// each connection that is refused.
func NewAddresses(limit int, log *slog.Logger, tooMany func()) *Addresses {
	return &Addresses{limit: limit, log: log, tooMany: tooMany, open: make(map[netip.Prefix]int)}
}

// Count returns how many addresses have connections.
func (a *Addresses) Count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.open)
}

// Begin counts a connection, unless its address has too many. The function that it returns must be
// called once the connection ends; it may be called more than once. It is nil if the connection is
// not counted.
func (a *Addresses) Begin(conn net.Conn) (end func(), ok bool) {
	address := addressOf(conn.RemoteAddr())
	if !address.IsValid() {
		return nil, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[address] >= a.limit {
		if time.Since(a.warned) > time.Minute {
			a.warned = time.Now()
			a.log.Warn("an address has too many connections; further ones are closed", "address", address, "limit", a.limit)
		}
		a.tooMany()
		return nil, false
	}
	a.open[address]++
	return sync.OnceFunc(func() { a.end(address) }), true
}

// end frees the place of a connection.
func (a *Addresses) end(address netip.Prefix) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[address]--; a.open[address] == 0 {
		delete(a.open, address)
	}
}

// addressOf returns the prefix that counts as the address of a connection. It is not valid for
// connections without a bound: from the loopback address, which all callers on this machine share,
// and without TCP.
func addressOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, ok := netip.AddrFromSlice(tcp.IP)
	if !ok || ip.Unmap().IsLoopback() {
		return netip.Prefix{}
	}
	return prefixOf(ip)
}

// prefixOf returns the prefix that counts as one address: of IPv6 a /64, since a machine may have
// all of its addresses.
func prefixOf(ip netip.Addr) netip.Prefix {
	bits := 32
	if ip = ip.Unmap(); ip.Is6() {
		bits = 64
	}
	address, _ := ip.Prefix(bits)
	return address
}

// Listener returns a listener that closes the connections of addresses that have too many.
func (a *Addresses) Listener(l net.Listener) net.Listener { return &listener{l, a} }

type listener struct {
	net.Listener
	addresses *Addresses
}

// Accept waits for a connection of an address that may have one more.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		end, ok := l.addresses.Begin(conn)
		switch tcp, isTCP := conn.(*net.TCPConn); {
		case !ok:
			conn.Close()
		case end == nil:
			return conn, nil
		case isTCP: // it keeps what only TCP has
			return &countedTCP{tcp, end}, nil
		default:
			return &counted{conn, end}, nil
		}
	}
}

// A counted connection frees its place when it is closed.
type counted struct {
	net.Conn
	end func()
}

// Close closes the connection.
func (c *counted) Close() error {
	c.end()
	return c.Conn.Close()
}

type countedTCP struct {
	*net.TCPConn
	end func()
}

// Close closes the connection.
func (c *countedTCP) Close() error {
	c.end()
	return c.TCPConn.Close()
}
