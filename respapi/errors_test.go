package respapi_test

import (
	"strings"
	"testing"

	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
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

// Several nodes are asked for what a client acknowledges. TRYAGAIN says that nothing was done, so
// it is no answer while one of them may have done it, whichever fails last.
func TestOpenOutcomeWeighsMost(t *testing.T) {
	away, open := tasks.ErrNodeAway, tasks.ErrUnknown
	const none, acked, failed = 0, 1, 3
	for name, test := range map[string]struct {
		answer          []byte
		earlier, failed error
		want            string
		state           byte
	}{
		"not sent":                 {failed: away, want: "TRYAGAIN", state: failed},
		"not answered":             {failed: open, want: "UNKNOWN", state: failed},
		"not answered, not sent":   {earlier: open, failed: away, want: "UNKNOWN", state: failed},
		"not sent, not answered":   {earlier: away, failed: open, want: "UNKNOWN", state: failed},
		"not sent, then in doubt":  {answer: []byte{failed}, earlier: away, want: "UNKNOWN", state: failed},
		"garbage":                  {answer: []byte{1, 1}, earlier: away, want: "UNKNOWN", state: failed},
		"not sent, done elsewhere": {answer: []byte{acked}, earlier: away, want: "TRYAGAIN", state: acked},
		"not there":                {answer: []byte{none}},
		"no such port":             {failed: tasks.ErrUnavailable},
	} {
		states := []byte{none}
		code, _, _ := strings.Cut(MergeAcks(states, test.answer, test.earlier, test.failed), " ")
		if code != test.want || states[0] != test.state {
			t.Errorf("%s: %q and %d, want %q and %d", name, code, states[0], test.want, test.state)
		}
	}
}
