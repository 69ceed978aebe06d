package edge

import (
	"cmp"
	"net"
	"net/netip"
	"sync"
	"time"
)

// addresses counts the connections of each address, so that no address can have all of them. It is
// safe for concurrent use.
type addresses struct {
	limits ConnectionLimits
	limit  int // of one address

	mu     sync.Mutex // guards everything below
	open   map[netip.Prefix]int
	warned time.Time
}

func newAddresses(limits ConnectionLimits) *addresses {
	limit := cmp.Or(limits.PerAddress, max(1, limits.Most/2))
	return &addresses{limits: limits, limit: limit, open: make(map[netip.Prefix]int)}
}

// begin counts a connection. It reports false, and counts nothing, if the address has too many. An
// address that is not valid has no bound.
func (a *addresses) begin(from netip.Prefix) bool {
	if !from.IsValid() {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[from] >= a.limit {
		if time.Since(a.warned) > time.Minute {
			a.warned = time.Now()
			a.limits.Log.Warn("an address has too many connections; further ones are closed", "address", from, "limit", a.limit)
		}
		a.limits.Closed.Address.Add(1)
		return false
	}
	a.open[from]++
	return true
}

// end frees the place of a connection that begin has counted.
func (a *addresses) end(from netip.Prefix) {
	if !from.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open[from]--; a.open[from] == 0 {
		delete(a.open, from)
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
