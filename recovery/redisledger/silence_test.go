package redisledger

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A dead node stays dead in the node table, also when Redis was away for a while, until it sends a
// heartbeat.
func TestDeadStaysDeadAfterAGap(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	seen := func() recovery.Node {
		t.Helper()
		if err := b.member.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		nodes, err := b.Nodes(t.Context())
		if err != nil || len(nodes) != 2 {
			t.Fatalf("%+v: %v", nodes, err)
		}
		return nodes[0]
	}
	want := func(when string, quiet, gone, status bool) {
		t.Helper()
		if n := seen(); n.Quiet != quiet || n.Gone != gone || (n.Status != nil) != status {
			t.Errorf("%s: quiet %v, gone %v, status %q", when, n.Quiet, n.Gone, n.Status)
		}
	}
	server.Do("hset", b.keys.Status(), "a", "what it had")
	failover := b.opts.FailoverAfter
	want("at first", false, false, true)
	b.age(t, failover*6/10, "a")
	want("after some missed signs", true, false, true)
	b.member.Probe().BeginAnew()
	want("after a gap", true, false, true)
	if err := a.member.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("after a heartbeat", false, false, true)
	b.age(t, failover+time.Hour, "a")
	want("when it is dead", true, true, false)
	b.member.Probe().BeginAnew()
	want("when it is dead, after a gap", true, true, false)
	server.Do("del", b.keys.Heartbeat("a"))
	want("when Redis has lost its counter", true, true, false)
	if err := a.member.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("when it is back", false, false, true)
}
