package webhook

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// names is a DNS server on loopback, for names that resolve to the addresses that a test sets.
type names struct {
	conn net.PacketConn

	mu     sync.Mutex              // guards the rest
	known  map[string][]netip.Addr // by name with its last dot
	silent bool
	asked  []net.Conn // that a resolver has opened
}

func newNames(t *testing.T, known map[string][]string) *names {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &names{conn: conn, known: map[string][]netip.Addr{}}
	for name, addrs := range known {
		n.set(name, addrs...)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := n.answer(buf[:size]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, c := range n.asked { // a resolver waits for an answer whatever happens
			c.Close()
		}
	})
	return n
}

// set lets a name resolve to addresses from now on.
func (n *names) set(name string, addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[name+"."] = nil
	for _, a := range addrs {
		n.known[name+"."] = append(n.known[name+"."], netip.MustParseAddr(a))
	}
}

// resolver asks this server alone.
func (n *names) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "udp", n.conn.LocalAddr().String())
		n.mu.Lock()
		defer n.mu.Unlock()
		if err == nil {
			n.asked = append(n.asked, conn)
		}
		return conn, err
	}}
}

func (n *names) answer(query []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(query) != nil || len(m.Questions) != 1 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.silent {
		return nil
	}
	q := m.Questions[0]
	answer := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true}, Questions: m.Questions}
	addrs, known := n.known[q.Name.String()]
	if !known {
		answer.RCode = dnsmessage.RCodeNameError
	}
	for _, a := range addrs {
		head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
		case q.Type == dnsmessage.TypeAAAA && !a.Is4():
			answer.Answers = append(answer.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	packed, _ := answer.Pack()
	return packed
}
