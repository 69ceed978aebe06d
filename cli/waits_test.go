package cli

import (
	"testing"

	"github.com/lapsehq/lapse/edge"
)

// TestWaitsLeaveConnections has a token wait with as many calls as it may. They have half of the
// connections at most, so that callers of other tokens come in.
func TestWaitsLeaveConnections(t *testing.T) {
	greedy, other := &edge.Caller{Token: edge.Token{Name: "greedy"}}, &edge.Caller{Token: edge.Token{Name: "other"}}
	for _, c := range []struct{ perToken, connections, want int }{
		{5000, 10_000, 5000}, {5000, 1000, 500}, {3, 1000, 3}, {5000, 1, 1},
	} {
		var s settings
		s.MaxWaiting, s.MaxWaitingPerToken, s.MaxConnections = 10_000, c.perToken, c.connections
		waits, n := s.waits(), 0
		for waits.Begin(greedy) == "" {
			n++
		}
		if n != c.want {
			t.Errorf("with %d connections, and %d waits of a token, it has %d", c.connections, c.perToken, n)
		}
		if full := waits.Begin(other); full != "" {
			t.Errorf("another token: %s", full)
		}
	}
}
