package respapi_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A node does not answer that a key of another one is gone because Redis has lost who owns it. It
// answers TRYAGAIN, and soon the truth.
func TestKeysAfterALoss(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := []*rig{onRedisWith(t, server.URL(), "a", 20*time.Second), onRedisWith(t, server.URL(), "b", 20*time.Second)}
	t.Cleanup(nodes[1].close)
	t.Cleanup(nodes[0].close)
	for _, n := range nodes {
		waitFor(t, "the nodes know one another", func() bool {
			return len(n.scheduler.Admin().Peers()) == 1
		})
	}
	a, b := nodes[0].dial(), nodes[1].dial()
	const keys = 6
	for i := range keys {
		a.ask("+OK", "SET", fmt.Sprint("k", i), "v", "EX", "3600")
	}
	for _, lose := range [][]any{{"flushall"}, {"del", "lapse:nodes"}, {"flushall"}} {
		server.Do(lose...)
		told := func(want string, args ...string) {
			t.Helper()
			var got string
			waitFor(t, args[0]+" is answered", func() bool {
				b.command(args...)
				got = b.answer()
				return !strings.HasPrefix(got, "-TRYAGAIN")
			})
			if got != want {
				t.Errorf("after %v: %q: the answer is %q, want %q", lose, args, got, want)
			}
		}
		for i := range keys {
			key := fmt.Sprint("k", i)
			told(":1", "EXISTS", key)
			told("v", "GET", key)
			told(":1", "DEL", key)
			told(":0", "DEL", key)
			told("+OK", "SET", key, "v", "EX", "3600")
		}
	}
}
