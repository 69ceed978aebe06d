package respapi_test

import (
	"strings"
	"testing"

	. "github.com/lapsehq/lapse/respapi"
)

// A node that hands its keys over takes no new ones: nothing was done, and another node does it.
func TestDrainingIsTryAgain(t *testing.T) {
	nodes, _ := newFleet(t, 2, Config{})
	if err := nodes[0].scheduler.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := nodes[0].dial()
	for _, command := range []string{"SET k v", "SET k v EX 60 NX", "INCR n", "MSET k v l v", "SETNX k v"} {
		w.command(strings.Fields(command)...)
		if got := w.answer(); !strings.HasPrefix(got, "-TRYAGAIN ") {
			t.Errorf("%s: %s", command, got)
		}
	}
}
