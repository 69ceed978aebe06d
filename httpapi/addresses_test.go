package httpapi

import (
	"log/slog"
	"net"
	"testing"

	"github.com/lapsehq/lapse/edge/edgetest"
)

// acceptedFrom returns how many of some connections from one address a listener accepts.
func acceptedFrom(inner edgetest.Offered, l net.Listener) (n int) {
	for range cap(inner) {
		inner <- &edgetest.Comer{From: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}
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
		inner := make(edgetest.Offered, 15)
		if n := acceptedFrom(inner, api.LimitConnections(api.HTTPServer(), inner, c.limit)); n != c.want {
			t.Errorf("%+v: %d were accepted", c, n)
		}
		if n := api.Refusals()["address"]; n != int64(15-c.want) {
			t.Errorf("%+v: %d were refused", c, n)
		}
	}
}
