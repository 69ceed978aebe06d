package cluster_test

import (
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A subscription to all nodes stays open while a node is cut off from Redis, or Redis is away: its
// own events come, the other nodes are missing, and they are covered again afterwards.
func TestFleetEventsOverRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxies := []*redistest.Proxy{redistest.NewProxy(t, server.Addr), redistest.NewProxy(t, server.Addr)}
	a := &redisNode{t: t, url: proxies[0].URL(), name: "a", failoverAfter: 30 * time.Second}
	b := &redisNode{t: t, url: proxies[1].URL(), name: "b", failoverAfter: 30 * time.Second}
	for _, n := range []*redisNode{a, b} {
		n.open()
		t.Cleanup(func() { _ = n.Close(t.Context()) })
	}
	a.waitFor("the nodes know each other, and need not ask each other for ids", func() bool {
		return !rig.Cluster(a.Scheduler).NoPeers() && rig.Cluster(a.Scheduler).IsIndexed() && rig.Cluster(b.Scheduler).IsIndexed()
	})
	u, err := a.Admin().FleetSubscribe(t.Context(), EventFilter{Kinds: []EventKind{EventScheduled, EventStarted}})
	rig.Want(t, "FleetSubscribe", err, nil)
	defer u.Close()
	r := &fleetReader{u, t}
	// wants reads until this is told.
	wants := func(wanted ...string) {
		t.Helper()
		for _, w := range wanted {
			for {
				n, err := next(r, 20*time.Second)
				rig.Want(t, "Next before "+w, err, nil)
				if slices.Contains(textOf(&n), w) {
					break
				}
			}
		}
	}
	wants("b: covered")
	b.schedule("x", "b1")
	wants("b: scheduled b1")
	proxies[1].Sever(redistest.Stall)
	wants("b: missing, no answer")
	a.schedule("x", "a1")
	wants("a: scheduled a1")
	proxies[1].Heal()
	wants("b: covered")
	b.schedule("x", "b2")
	wants("b: scheduled b2")
	// Redis stands still for all. What falls due is told nevertheless.
	_, err = a.Schedule(t.Context(), Request{ID: "a2", Topic: "x", Delay: 3 * time.Second})
	rig.Want(t, "Schedule", err, nil)
	for _, p := range proxies {
		p.Sever(redistest.Stall)
	}
	wants("b: missing, no answer")
	ds, err := a.Reserve(t.Context(), "x", 1, 20*time.Second, time.Minute)
	if rig.Want(t, "Reserve", err, nil); len(ds) != 1 {
		t.Fatalf("%d deliveries", len(ds))
	}
	wants("a: started a2")
	for _, p := range proxies {
		p.Heal()
	}
	for n := (NodeEvents{}); n.Change != NodeCovered; {
		n, err = next(r, 20*time.Second)
		rig.Want(t, "Next", err, nil)
	}
	b.schedule("x", "b3")
	wants("b: scheduled b3")
}
