package webhook

import (
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"testing"

	"github.com/hashicorp/go-multierror"
)

// lenient reads a URL as net/url does; nil if that fails.
func lenient(text string) *url.URL {
	u, err := url.Parse(text)
	if err != nil {
		return nil
	}
	return u
}

func TestPolicy(t *testing.T) {
	for _, c := range []struct {
		allow    []string
		yes, not []string
	}{
		{nil,
			[]string{"93.184.215.14", "1.1.1.1", "2606:2800:21f:cb07::1", "::ffff:1.1.1.1"},
			[]string{"127.0.0.1", "::1", "10.1.2.3", "fd00::1", "169.254.169.254", "168.63.129.16", "64:ff9b::101:101", "::"}},
		{[]string{"loopback"}, []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "1.1.1.1"}, []string{"10.1.2.3", "0.0.0.0", "::", "fe80::1"}},
		{[]string{"private"},
			[]string{"10.1.2.3", "172.16.0.1", "192.168.3.4", "fd12::1", "::ffff:10.1.2.3"},
			[]string{"127.0.0.1", "192.0.2.1", "100.64.0.1", "fd00:ec2::254", "fd20:ce::254", "169.254.169.254",
				"fd00:c1::a9fe:a9fe", "fd00:42::42"}},
		{[]string{"10.1.0.0/16", "fd12::/32", "192.168.1.7", "fe80::/10"},
			[]string{"10.1.255.255", "fd12::99", "192.168.1.7", "fe80::1%eth0"}, []string{"10.2.0.0", "192.168.1.8", "fd13::1"}},
		{[]string{"0.0.0.0/0", "::/0"}, []string{"127.0.0.1", "10.0.0.1", "fe80::1"}, []string{"169.254.169.254", "fd00:ec2::254", "168.63.129.16", "64:ff9b::a9fe:a9fe"}},
		{[]string{"169.254.169.254", "168.63.129.16/32"}, []string{"169.254.169.254", "168.63.129.16", "::ffff:169.254.169.254"}, []string{"169.254.169.253"}},
		{[]string{"64:ff9b::/96"}, []string{"64:ff9b::101:101"}, []string{"64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe"}},
	} {
		p, err := newPolicy(c.allow)
		if err != nil {
			t.Fatal(c.allow, err)
		}
		for _, a := range c.yes {
			if err := p.check(netip.MustParseAddr(a)); err != nil {
				t.Errorf("allow %v: %s: %v", c.allow, a, err)
			}
		}
		for _, a := range c.not {
			if err := p.check(netip.MustParseAddr(a)); !errors.Is(err, errRefused) {
				t.Errorf("allow %v: %s: %v", c.allow, a, err)
			}
		}
	}
}

// A public address of this machine leads to this machine, whatever a firewall says.
func TestOwnPublicAddresses(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("93.184.215.14"), netip.MustParseAddr("2606:2800:21f:cb07::1"), netip.MustParseAddr("10.0.0.7")}
	for _, c := range []struct {
		allow []string
		ok    []bool // for each of own
	}{
		{nil, []bool{false, false, false}},
		{[]string{"private"}, []bool{false, false, true}},
		{[]string{"loopback"}, []bool{true, true, false}},
		{[]string{"93.184.215.14"}, []bool{true, false, false}},
		{[]string{"93.184.0.0/16", "2606:2800::/32"}, []bool{true, true, false}},
		{[]string{"64:ff9b::/96"}, []bool{false, false, false}},
	} {
		p, err := newPolicy(c.allow)
		if err != nil {
			t.Fatal(err)
		}
		p.own = func() []netip.Addr { return own }
		for i, addr := range own {
			if err := p.check(addr); (err == nil) != c.ok[i] || err != nil && !errors.Is(err, errRefused) {
				t.Errorf("allow %v: %s: %v", c.allow, addr, err)
			}
		}
		if err := p.check(netip.MustParseAddr("64:ff9b::5db8:d70e")); !errors.Is(err, errRefused) {
			t.Errorf("allow %v: an own address behind NAT64: %v", c.allow, err)
		}
	}
	if !slices.Contains(new(ownAddresses).list(), netip.MustParseAddr("127.0.0.1")) {
		t.Error("this machine does not know 127.0.0.1")
	}
}

func TestBadAllow(t *testing.T) {
	bad := []string{"", "local", "10.0.0.1/8", "10.0.0.0/33", "::ffff:10.0.0.0/104", "fe80::1%eth0", "shop.example", "10.0.0.1:80", "127.1"}
	_, err := New(Config{Allow: append([]string{"loopback"}, bad...), Secrets: map[string][]string{"a": nil}})
	var all *multierror.Error
	if !errors.As(err, &all) || len(all.Errors) != len(bad)+1 {
		t.Errorf("%v", err)
	}
}
