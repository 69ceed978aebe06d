package httpapi

import (
	"log/slog"
	"net"
	"testing"
)

// offered is a listener of connections that are handed to it.
type offered chan net.Conn

func (o offered) Accept() (net.Conn, error) {
	if c, ok := <-o; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (o offered) Close() error   { return nil }
func (o offered) Addr() net.Addr { return &net.TCPAddr{} }

// A comer is a connection that says where it comes from, and whether it was closed.
type comer struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (c *comer) RemoteAddr() net.Addr { return c.from }
func (c *comer) Close() error         { c.closed = true; return nil }

// acceptedFrom returns how many of some connections from one address a listener accepts.
func acceptedFrom(inner offered, l net.Listener) (n int) {
	for range cap(inner) {
		inner <- &comer{from: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}
	}
	close(inner)
	for {
		if _, err := l.Accept(); err != nil {
			return n
		}
		n++
	}
}

// One address has as many connections as Config says, or half of all. Those that are closed count.
func TestConnectionsOfOneAddress(t *testing.T) {
	for _, c := range []struct{ perAddress, limit, want int }{{2, 100, 2}, {0, 20, 10}} {
		api, err := newServer(Config{Log: slog.New(slog.DiscardHandler), MaxConnectionsPerAddress: c.perAddress})
		if err != nil {
			t.Fatal(err)
		}
		inner := make(offered, 15)
		if n := acceptedFrom(inner, api.LimitConnections(api.HTTPServer(), inner, c.limit)); n != c.want {
			t.Errorf("%+v: %d were accepted", c, n)
		}
		if n := api.Refusals()["address"]; n != int64(15-c.want) {
			t.Errorf("%+v: %d were refused", c, n)
		}
	}
}
