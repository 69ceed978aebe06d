package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// know waits until every node knows the lease of topic x.
func (g *redisFleet) know(lease time.Duration) {
	g.t.Helper()
	g.waitFor("it knows the lease", func(n *redisNode) bool {
		x, err := n.Topic("x")
		return err == nil && x.Settings.Lease == lease
	})
}

// setLease sets the lease of topic x at one node, and waits until every node knows it.
func (g *redisFleet) setLease(lease time.Duration, ifRevision int64) task.Topic {
	g.t.Helper()
	set, err := g.next().SetTopic(g.t.Context(), "x", TopicSettings{Lease: lease}, ifRevision)
	rig.Want(g.t, "SetTopic", err, nil)
	if set.Settings.Lease != lease {
		g.t.Fatalf("set to %v: %+v", lease, set)
	}
	g.know(lease)
	return set
}

// Settings that were written again, because Redis had lost them, are what was set: a
// concurrency that was not set stays unset, and their revision stays what it was, so that
// what is set next is newer for every node.
func TestSettingsAfterALoss(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		for lease := time.Second; lease <= 5*time.Second; lease += time.Second {
			g.setLease(lease, -1)
		}
		server.Do("flushall")
		g.nodes[0].waitFor("the settings are there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(4) })
		g.waitFor("the shards are taken back", func(n *redisNode) bool { return n.Stats().Rewinds == 4 })
		if set := g.setLease(time.Minute, 5); set.Revision != 6 {
			t.Errorf("set to a minute: %+v", set)
		}
		server.Do("flushall")
		g.nodes[0].waitFor("the settings are there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(4) })
		g.closeAll()
		g.begin()
		for _, n := range g.nodes {
			if topic, err := n.Topic("x"); err != nil || topic.Settings.Lease != time.Minute || topic.ConcurrencySet {
				t.Errorf("after a restart, %s: %+v, %v", n.name, topic, err)
			}
		}
	})
}

// A change that comes before the loss was noticed changes what was set, not the
// defaults.
func TestPauseAfterALoss(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.setLease(time.Minute, -1)
		_, err := g.next().SetTopic(t.Context(), "x", TopicSettings{Lease: time.Hour, Concurrency: 3}, -1)
		rig.Want(t, "SetTopic", err, nil)
		g.know(time.Hour)
		for _, loss := range []string{"everything", "the last change"} {
			if loss == "everything" {
				server.Do("flushall")
			} else {
				server.Do("hset", "lapse:topics", "topic/x", `1:{"Lease":60000000000}`)
			}
			for _, paused := range []bool{true, false} {
				n := g.next()
				rig.Want(t, "PauseTopic", n.Admin().PauseTopic(t.Context(), "x", paused), nil)
				g.waitFor("it knows of the pause", func(n *redisNode) bool {
					x, err := n.Topic("x")
					return err == nil && x.Settings.Paused == paused
				})
				for _, n := range g.nodes {
					topic, err := n.Topic("x")
					if err != nil || topic.Settings.Lease != time.Hour || topic.Settings.Concurrency != 3 {
						t.Errorf("%s lost, at %s: %+v, %v", loss, n.name, topic.Settings, err)
					}
				}
			}
		}
	})
}

// Settings that are newer than memory's are not lost: a call of SetTopic has them
// written, and has not told memory yet.
func TestNewerSettingsAreNotOverwritten(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Lease: time.Second})
		newer, err := json.Marshal(TopicSettings{Lease: time.Minute}.Stored())
		rig.Want(t, "Marshal", err, nil)
		_, err = r.Faulty.PutSetting(t.Context(), "topic/x", 1, newer)
		rig.Want(t, "PutSetting", err, nil)
		restored, err := r.Engine().RestoreOnce(t.Context(), r.Faulty)
		if restored != 0 || err != nil {
			t.Errorf("%d restored, %v", restored, err)
		}
		held, revision, err := r.Faulty.Setting(t.Context(), "topic/x")
		if err != nil || !bytes.Equal(held, newer) || revision != 2 {
			t.Errorf("the ledger holds %s, revision %d, %v", held, revision, err)
		}
	})
}

// Revisions begin anew after a loss, also that of a topic whose settings were deleted
// before: what is set then holds, on every node.
func TestDeletedTopicAfterALoss(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		for lease := time.Minute; lease <= 5*time.Minute; lease += time.Minute {
			g.setLease(lease, -1)
		}
		rig.Want(t, "DeleteTopic", g.nodes[0].Admin().DeleteTopic(t.Context(), "x", -1), nil)
		g.waitFor("it has forgotten the lease", func(n *redisNode) bool {
			x, err := n.Topic("x")
			return errors.Is(err, ErrNoTopic) || err == nil && x.Revision == 0
		})
		server.Do("flushall")
		g.nodes[0].waitFor("the key of receipts is there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(3) })
		for lease := time.Hour; lease <= 3*time.Hour; lease += time.Hour {
			if set := g.setLease(lease, -1); set.Revision != int64(lease/time.Hour) {
				t.Fatalf("set to %v: revision %d", lease, set.Revision)
			}
		}
	})
}

// A failover may lose nothing but the last change of settings: what a node knows to have
// been confirmed it writes again, and does not take for a caller's deletion. The other of two
// nodes is closed by then: it would write the settings again as well.
func TestOnlySettingsAreLost(t *testing.T) {
	server := redistest.Start(t)
	n, b := newRedisNode(t, server.URL()), newNamedRedisNode(t, server.URL(), "b")
	_, err := b.SetTopic(t.Context(), "kept", TopicSettings{Lease: time.Minute}, -1)
	rig.Want(t, "SetTopic", err, nil)
	n.waitFor("it knows what the other one has set", func() bool {
		x, err := n.Topic("kept")
		return err == nil && x.Settings.Lease == time.Minute
	})
	rig.Want(t, "Close", b.Close(context.Background()), nil)
	client, shared := server.Client(), rig.Engine(n.Scheduler).Ledger.(recovery.SharedSettings)
	before := client.HGetAll(t.Context(), "lapse:topics").Val()
	_, err = n.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Hour}, -1)
	rig.Want(t, "SetTopic", err, nil)
	seen := rig.Engine(n.Scheduler).RefreshOnce(shared, nil)

	lose := client.TxPipeline()
	lose.Del(t.Context(), "lapse:topics")
	lose.HSet(t.Context(), "lapse:topics", before)
	_, err = lose.Exec(t.Context())
	rig.Want(t, "losing the last change", err, nil)
	rig.Engine(n.Scheduler).RefreshOnce(shared, seen)
	if x, err := n.Topic("x"); err != nil || x.Settings.Lease != time.Hour {
		t.Errorf("the node has %+v, %v", x.Settings, err)
	}
	if kept := client.HGet(t.Context(), "lapse:topics", task.SettingPrefix+"x").Val(); kept == "" {
		t.Error("it was not written again")
	}
}
