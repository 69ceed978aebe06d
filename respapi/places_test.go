package respapi_test

import (
	"testing"

	"github.com/lapsehq/lapse/edge"
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
