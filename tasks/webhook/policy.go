package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"code.dny.dev/ssrf"
	"github.com/hashicorp/go-multierror"
)

// errRefused is the error of a connection to an address that is neither public nor listed.
var errRefused = errors.New("the address is not allowed")

// A policy says to which addresses connections may be made. The list of networks that are not
// public is that of package ssrf, after the registries of IANA. Ports are not restricted.
type policy struct {
	guard    *ssrf.Guardian
	listed   []netip.Addr   // single addresses
	networks []netip.Prefix // all entries of the list
	own      func() []netip.Addr
}

var (
	loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	private  = []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("fc00::/7"),
	}
	// metadata are addresses where a machine in a cloud gets its credentials. Some lie in networks
	// that an operator may have a reason to list, and one is among the public addresses.
	metadata = []netip.Addr{
		netip.MustParseAddr("169.254.169.254"), // AWS, Azure, Google Cloud and others
		netip.MustParseAddr("169.254.170.2"),   // AWS, containers
		netip.MustParseAddr("169.254.170.23"),  // AWS, pods
		netip.MustParseAddr("fd00:ec2::254"),   // AWS
		netip.MustParseAddr("fd00:ec2::23"),    // AWS, pods
		netip.MustParseAddr("fd20:ce::254"),    // Google Cloud
		netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
		netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud
		netip.MustParseAddr("168.63.129.16"),   // Azure, among the public addresses

		netip.MustParseAddr("fd00:c1::a9fe:a9fe"), // Oracle Cloud
		netip.MustParseAddr("fd00:42::42"),        // Scaleway
	}
)

// newPolicy reads the allowed addresses. The error lists every entry that is wrong.
func newPolicy(allow []string) (*policy, error) {
	p := &policy{own: new(ownAddresses).list}
	var v4, v6 []netip.Prefix
	var all *multierror.Error
	for i, entry := range allow {
		nets, err := parseAllowed(entry)
		if err != nil {
			all = multierror.Append(all, fmt.Errorf("allow[%d]: %w", i, err))
		}
		p.networks = append(p.networks, nets...)
		for _, n := range nets {
			if n.IsSingleIP() {
				p.listed = append(p.listed, n.Addr())
			}
			if n.Addr().Is4() {
				v4 = append(v4, n)
			} else {
				v6 = append(v6, n)
			}
		}
	}
	p.guard = ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...))
	return p, all.ErrorOrNil()
}

var errAllowed = errors.New("must be loopback, private, an address, or a network such as 10.0.0.0/8")

func parseAllowed(entry string) ([]netip.Prefix, error) {
	switch entry {
	case "loopback":
		return loopback, nil
	case "private":
		return private, nil
	}
	n, err := netip.ParsePrefix(entry)
	if addr, bad := netip.ParseAddr(entry); bad == nil && addr.Zone() == "" {
		n, err = netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	switch {
	case err != nil:
		return nil, errAllowed
	case n.Addr().Is4In6():
		return nil, errors.New("must be written as IPv4")
	case n != n.Masked():
		return nil, errors.New("must be a network, with no bits set beyond its length")
	}
	return []netip.Prefix{n}, nil
}

// check returns an error unless a connection may be made to an address.
func (p *policy) check(addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	if slices.Contains(metadata, addr) && !slices.Contains(p.listed, addr) {
		return fmt.Errorf("%w: %s is that of a metadata service, and webhook.allow does not list it by itself", errRefused, addr)
	}
	if p.guard.SafeAddr(addr) != nil {
		return fmt.Errorf("%w: %s is not public, and webhook.allow does not list it", errRefused, addr)
	}
	if slices.Contains(p.own(), addr) && !p.lists(addr) {
		return fmt.Errorf("%w: %s is this machine's own, and webhook.allow lists neither it nor loopback", errRefused, addr)
	}
	if ssrf.IPv6NAT64Prefix.Contains(addr) { // listed, so the address within counts
		b := addr.As16()
		return p.check(netip.AddrFrom4([4]byte(b[12:])))
	}
	return nil
}

// lists reports whether an address of this machine is allowed: it is in a network that is listed,
// or all of the machine is, as loopback.
func (p *policy) lists(addr netip.Addr) bool {
	return slices.ContainsFunc(p.networks, func(n netip.Prefix) bool { return n.Contains(addr) || slices.Contains(loopback, n) })
}

// checkHost checks a host that is an address. The addresses of a name are checked when they are
// dialled.
func (p *policy) checkHost(host string) error {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return p.check(addr)
}

// control is a net.Dialer.ControlContext: it is called with each address before the connection,
// whatever name it was resolved from.
func (p *policy) control(ctx context.Context, network, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("%w: not a TCP address", errRefused)
	}
	if err := p.check(to.Addr()); err != nil {
		return err
	}
	enter(ctx, connecting)
	return nil
}
