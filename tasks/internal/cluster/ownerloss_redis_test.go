package cluster_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// lossyPair starts two nodes that notice losses late.
func lossyPair(t *testing.T, server *redistest.Server) (a, b *redisNode) {
	t.Helper()
	a = &redisNode{Scheduler: lossyNode(t, server.URL(), "a"), t: t, name: "a"}
	b = &redisNode{Scheduler: lossyNode(t, server.URL(), "b"), t: t, name: "b"}
	for _, n := range []*redisNode{a, b} {
		n.waitFor("the nodes know each other", func() bool {
			return !rig.Cluster(n.Scheduler).NoPeers() && !rig.Cluster(n.Scheduler).NeverHadPeers() && rig.Cluster(n.Scheduler).IsIndexed()
		})
	}
	return a, b
}

// While Redis has lost who owns what, no node says that a task of another one does not exist. That
// ends by itself, and what really does not exist is told again.
func TestNoFalseNotFoundAfterALoss(t *testing.T) {
	t.Parallel()
	del := func(patterns ...string) func(server *redistest.Server) {
		return func(server *redistest.Server) {
			for _, pattern := range patterns {
				for _, key := range server.Do("keys", pattern).([]any) {
					server.Do("del", key)
				}
			}
		}
	}
	for what, lose := range map[string]func(server *redistest.Server){
		"everything":         func(server *redistest.Server) { server.Do("flushall") },
		"registry":           del("lapse:nodes"),
		"directory":          del("lapse:ids:*"),
		"registry directory": del("lapse:ids:*", "lapse:nodes", "lapse:numbers:*"),
		"tokens": func(server *redistest.Server) {
			for shard := range 4 {
				server.Do("hdel", fmt.Sprintf("lapse:{a/%d}:tasks", shard), "!o")
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			a, b := lossyPair(t, server)
			_, err := a.SetTopic(t.Context(), "kept", TopicSettings{KeepFinished: time.Hour}, -1)
			rig.Want(t, "SetTopic", err, nil)
			var made []string
			for i := range 16 {
				task, err := a.Schedule(t.Context(), Request{Topic: "x", Delay: time.Hour})
				rig.Want(t, "Schedule", err, nil)
				made = append(made, task.ID)
				a.schedule("x", fmt.Sprint("chosen-", i))
			}
			a.schedule("x", "dead", "cancelled")
			a.schedule("kept", "kept")
			a.settle(Bury, a.pull("dead"))
			_, err = a.Fire(t.Context(), "kept")
			rig.Want(t, "Fire", err, nil)
			ds, err := a.Reserve(t.Context(), "kept", 1, 10*time.Second, 0)
			rig.Want(t, "Reserve", err, nil)
			a.settle(Ack, ds[0])
			rig.Want(t, "Cancel", a.Cancel(t.Context(), "cancelled"), nil)

			lose(server)
			known := func(call string, f func() error) {
				t.Helper()
				var err error
				b.waitFor(call+" is answered", func() bool {
					err = f()
					return !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnknown)
				})
				rig.Want(t, call, err, nil)
			}
			for i, id := range made {
				known("Cancel of a made id", func() error { return b.Admin().CancelOnce(t.Context(), id) })
				id = fmt.Sprint("chosen-", i)
				switch i % 4 {
				case 0:
					known("Get", func() error { _, err := b.Get(t.Context(), id); return err })
				case 1:
					known("Reschedule", func() error {
						_, err := b.Reschedule(t.Context(), id, Move{Delay: rig.Ptr(2 * time.Hour)})
						return err
					})
				case 2:
					known("Hold", func() error { _, err := b.Hold(t.Context(), id); return err })
				case 3:
					known("Schedule", func() error {
						task, err := b.Schedule(t.Context(), Request{Topic: "x", ID: id, Delay: time.Hour, Payload: []byte(`"` + id + `"`)})
						if err == nil && (task.Node != "a" || !task.Repeated) {
							t.Errorf("%s was created again: %+v", id, task)
						}
						return err
					})
				}
				known("Cancel of a chosen id", func() error { return b.Admin().CancelOnce(t.Context(), id) })
			}
			known("Cancel again", func() error { return b.Cancel(t.Context(), "cancelled") })
			if !strings.Contains(what, "everything") { // Redis had the only copies
				known("Get of a dead task", func() error { _, err := b.Get(t.Context(), "dead"); return err })
				known("Get of a finished task", func() error { _, err := b.Get(t.Context(), "kept"); return err })
			}
			for _, id := range []string{made[0], "chosen-0", "unknown"} {
				b.waitFor("it is known again what does not exist", func() bool { return errors.Is(b.Admin().CancelOnce(t.Context(), id), ErrNotFound) })
			}
		})
	}
}

// What was at a node that has ended in order, and what never was, is told as ever.
func TestNotFoundAfterAnOrderlyEnd(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newRedisFleet(t, server.URL(), "a", "b")
	task, err := g.nodes[1].Schedule(t.Context(), Request{Topic: "x", Delay: time.Hour})
	rig.Want(t, "Schedule", err, nil)
	g.nodes[1].schedule("x", "chosen")
	for _, id := range []string{task.ID, "chosen"} {
		rig.Want(t, "CancelOnce", g.nodes[1].Admin().CancelOnce(t.Context(), id), nil)
	}
	rig.Want(t, "Close", g.nodes[1].Close(t.Context()), nil)
	for _, id := range []string{task.ID, "chosen", "unknown"} {
		g.nodes[0].waitFor("it is known that "+id+" does not exist", func() bool {
			_, err := g.nodes[0].Get(t.Context(), id)
			return errors.Is(err, ErrNotFound)
		})
	}
}
