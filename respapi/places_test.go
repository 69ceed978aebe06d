package respapi_test

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/edge/edgetest"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// Connections whose clients do not say who they are leave room for those that do. A client that has
// said it keeps its place, also while it does nothing.
func TestStrangersGiveWay(t *testing.T) {
	const limit = 4
	callers := tokens(map[string]edge.Token{"a": scopes(edge.ScopeReceive), "b": scopes(edge.ScopeReceive)})
	r := newRig(t, Config{Callers: callers, MaxConnections: limit}, tasks.Config{})
	for range limit {
		r.dial().command("PING") // which is refused
	}
	var known []*wire
	for i := range limit {
		w := r.as([]string{"a", "b"}[i%2])
		w.ask("+PONG", "PING")
		known = append(known, w)
	}
	for _, w := range known {
		w.ask("+PONG", "PING")
	}
	if got := r.dial().line(); got != "-ERR max number of clients reached" {
		t.Errorf("beyond the limit: %q", got)
	}
	_, total := r.server.Connections()
	if total["unfinished"] == 0 || total["refused"] == 0 {
		t.Errorf("counted: %v", total)
	}
}

// Without tokens, a connection that has sent nothing gives way to one that does.
func TestSilentConnectionsGiveWay(t *testing.T) {
	const limit = 3
	r := newRig(t, Config{MaxConnections: limit}, tasks.Config{})
	good := r.dial()
	good.ask("+PONG", "PING")
	for range limit - 1 {
		r.dial()
	}
	for range limit - 1 {
		r.dial().ask("+PONG", "PING")
	}
	good.ask("+PONG", "PING")
	if got := r.dial().line(); got != "-ERR max number of clients reached" {
		t.Errorf("beyond the limit: %q", got)
	}
}

// One token has half of the connections, so that others have the rest. One that ends, or becomes
// that of another token, leaves room.
func TestConnectionsOfOneToken(t *testing.T) {
	callers := tokens(map[string]edge.Token{"a": scopes(edge.ScopeReceive), "b": scopes(edge.ScopeReceive)})
	r := newRig(t, Config{Callers: callers, MaxConnections: 6}, tasks.Config{})
	const refused = "-ERR max number of clients reached: this token has half of resp_max_connections"
	one, two := r.as("a"), r.as("a")
	r.as("a").ask("+OK", "AUTH", "a")
	late := r.dial()
	late.ask(refused, "AUTH", "a")
	late.ask("-NOAUTH Authentication required.", "PING")
	r.as("b").ask("+PONG", "PING")
	one.ask("+OK", "AUTH", "b")
	late.ask("+OK", "AUTH", "a")
	one.ask(refused, "AUTH", "a")
	one.ask("+PONG", "PING") // as b still
	two.ask("+RESET", "RESET")
	one.ask("+OK", "AUTH", "a")
	late.nc.Close()
	waitFor(t, "the connection that has ended leaves room", func() bool {
		two.command("AUTH", "a")
		return two.answer() == "+OK"
	})
}

// A comer is a connection that seems to come from another machine.
type comer struct{ net.Conn }

func (comer) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

// One address has as many connections as Config says, or half of all. Those that are closed count.
func TestConnectionsOfOneAddress(t *testing.T) {
	for _, c := range []struct{ perAddress, limit, want int }{{2, 100, 2}, {0, 6, 3}} {
		server, err := New(Config{Log: slog.New(slog.DiscardHandler), MaxConnections: c.limit, MaxConnectionsPerAddress: c.perAddress})
		if err != nil {
			t.Fatal(err)
		}
		offered, served := make(edgetest.Offered), make(chan error)
		go func() { served <- server.Serve(offered) }()
		for i := range c.want + 2 {
			client, conn := net.Pipe()
			defer client.Close()
			_ = client.SetDeadline(time.Now().Add(10 * time.Second))
			offered <- comer{conn}
			w := &wire{t, client, bufio.NewReader(client)}
			if i < c.want {
				w.ask("+PONG", "PING")
			} else if _, err := w.in.ReadByte(); !errors.Is(err, io.EOF) {
				t.Errorf("%+v: connection %d was not closed: %v", c, i, err)
			}
		}
		if _, total := server.Connections(); total["address"] != 2 || total["accepted"] != int64(c.want) {
			t.Errorf("%+v: counted %v", c, total)
		}
		close(offered)
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		_ = server.Close(t.Context())
	}
}

// A wrong token is counted, and noted with its address by package edge, which slows further ones.
func TestWrongTokensAreNoted(t *testing.T) {
	for _, command := range [][]string{{"AUTH", "wrong"}, {"HELLO", "3", "AUTH", "default", "wrong"}} {
		var log strings.Builder
		callers := tokens(map[string]edge.Token{"a": scopes(edge.ScopeRead)})
		callers.Log = slog.New(slog.NewTextHandler(&log, nil))
		r := newRig(t, Config{Callers: callers}, tasks.Config{})
		r.dial().ask("-WRONGPASS invalid username-password pair or user is disabled.", command...)
		if !strings.Contains(log.String(), "address=127.0.0.1/32") {
			t.Errorf("%q: the log has %q", command, log.String())
		}
		w := r.as("a")
		w.command("INFO", "stats")
		if text := w.answer(); r.server.WrongTokens() != 1 || !strings.Contains(text, "\r\nacl_access_denied_auth:1\r\n") {
			t.Errorf("%q: %d are counted, and INFO has %s", command, r.server.WrongTokens(), text)
		}
	}
}
