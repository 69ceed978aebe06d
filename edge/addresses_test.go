package edge

import (
	"errors"
	"log/slog"
	"net"
	"testing"

	"github.com/lapsehq/lapse/edge/edgetest"
)

// One address has a bounded number of connections. An address that closes one may have another.
func TestConnectionsOfOneAddress(t *testing.T) {
	var counts Closed
	connections := NewConnections(ConnectionLimits{Most: 100, PerAddress: 2, Log: slog.New(slog.DiscardHandler), Closed: &counts})
	inner := make(edgetest.Offered, 2)
	l := connections.Listener(inner)
	from := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }
	known := from("::1")
	var last net.Conn
	var err error
	for _, c := range []struct {
		from   net.Addr
		closed bool
	}{
		{from("192.0.2.1"), false}, {from("192.0.2.1"), false}, {from("192.0.2.1"), true}, {from("::ffff:192.0.2.1"), true},
		{from("192.0.2.2"), false},
		{from("2001:db8::1"), false}, {from("2001:db8::2"), false}, {from("2001:db8::ffff:3"), true}, {from("2001:db8:0:1::1"), false},
		{from("127.0.0.1"), false}, {from("127.0.0.1"), false}, {from("127.0.0.1"), false}, {known, false}, {known, false}, {known, false},
		{&net.UnixAddr{}, false}, {&net.UnixAddr{}, false}, {&net.UnixAddr{}, false},
		{from("192.0.2.3"), false},
	} {
		conn := &edgetest.Comer{From: c.from}
		inner <- conn
		if c.closed {
			next := &edgetest.Comer{From: known}
			inner <- next // taken once the other one is refused
			if got, err := l.Accept(); err != nil || got.(*Conn).Conn != next {
				t.Fatal(got, err)
			}
		} else if last, err = l.Accept(); err != nil || last.(*Conn).Conn != conn {
			t.Fatal(last, err)
		}
		if conn.Closed != c.closed {
			t.Errorf("from %v: closed %v", c.from, conn.Closed)
		}
	}
	if n := counts.Address.Load(); n != 3 {
		t.Errorf("%d were refused", n)
	}
	last.Close()
	last.Close()
	if n := len(connections.addresses.open); n != 4 {
		t.Errorf("%d addresses have connections", n)
	}
	close(inner)
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
