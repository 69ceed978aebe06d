package webhook

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// ownFor is how long the addresses of this machine are cached: they change while the process runs,
// and are read for each connection.
const ownFor = 5 * time.Second

// ownAddresses are those of this machine. A public one among them reaches services that listen on
// this machine alone, past the firewall in front of it.
type ownAddresses struct {
	mu     sync.Mutex
	read   time.Time
	latest []netip.Addr
}

// list returns the addresses of all interfaces. If the system returns an error, it returns the last
// list, or none.
func (o *ownAddresses) list() []netip.Addr {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.read.IsZero() && time.Since(o.read) < ownFor {
		return o.latest
	}
	o.read = time.Now()
	all, err := net.InterfaceAddrs()
	if err != nil {
		return o.latest
	}
	latest := make([]netip.Addr, 0, len(all))
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(n.IP); ok {
				latest = append(latest, addr.Unmap())
			}
		}
	}
	o.latest = latest
	return latest
}
