package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Tests of a Redis that forgets what it has confirmed. Each runs for one node and for two.

// prepare schedules what a loss is about. What it returns is what was confirmed when it
// has changed, by id, see node.all.
func (g *redisFleet) prepare() {
	g.t.Helper()
	g.schedule("x", "kept", "acked", "retried", "moved", "buried", "cancelled", "in-flight")
	for i := range 200 {
		g.schedule("y", fmt.Sprint("old-", i))
	}
}

// change does to the tasks what Redis is going to forget, and returns what was confirmed,
// as node.all tells it.
func (g *redisFleet) change() map[string]string {
	g.t.Helper()
	for i := range 100 {
		g.cancel(fmt.Sprint("old-", i))
		g.schedule("y", fmt.Sprint("new-", i))
	}
	g.schedule("x", "new")
	g.cancel("cancelled")
	_, err := g.next().Reschedule(g.t.Context(), "moved", tasks.Move{Delay: rig.Ptr(3 * time.Hour), Payload: []byte(`"elsewhere"`)})
	rig.Want(g.t, "Reschedule", err, nil)
	g.settle(tasks.Ack, g.pull("acked"))
	g.settle(tasks.Release, g.pull("retried"))
	g.settle(tasks.Bury, g.pull("buried"))
	return g.nodes[0].all()
}

// wantGone wants tasks that were acknowledged or cancelled to stay so: no node knows them,
// and their ids are free.
func (g *redisFleet) wantGone(ids ...string) {
	g.t.Helper()
	for _, id := range ids {
		for _, n := range g.nodes {
			n.wantGet(id, tasks.ErrNotFound)
		}
	}
}

// wantAfterChange wants the tasks of change to be as they were confirmed, through to
// their deliveries.
func (g *redisFleet) wantAfterChange() {
	g.t.Helper()
	g.wantGone("acked", "cancelled", "in-flight", "old-0", "old-99")
	came, err := rig.Requeued(g.next().Admin().Requeue(g.t.Context(), "x", tasks.Requeue{IDs: []string{"buried"}}))
	if err != nil || came != 1 {
		g.t.Errorf("requeued %d, %v", came, err)
	}
	for _, id := range []string{"kept", "retried", "moved", "new"} {
		_, err := g.next().Fire(g.t.Context(), id)
		rig.Want(g.t, "Fire "+id, err, nil)
	}
	g.wantDelivered("x", "buried", "kept", "retried", "moved", "new")
}

// Redis is killed, and started with an older file: acknowledged tasks do not come back,
// newer ones are not lost, and what had changed has changed.
func TestOlderRedisFile(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t, "dbfilename dump.rdb")
		g := newRedisFleet(t, server.URL(), names...)
		g.prepare()
		server.Do("save")
		dump := filepath.Join(server.Dir, "dump.rdb")
		older, err := os.ReadFile(dump)
		rig.Want(t, "ReadFile", err, nil)
		wanted := g.change()
		delete(wanted, "in-flight")
		open := g.pull("in-flight")

		server.Kill()
		rig.Want(t, "WriteFile", os.WriteFile(dump, older, 0o600), nil)
		// What happens meanwhile is on top of the older state.
		go func() {
			_, _ = g.nodes[0].Settle(context.Background(), tasks.Verdict{Verb: tasks.Ack}, []string{open.Receipt()})
		}()
		server.Start()
		g.nodes[0].waitFor("the acknowledgement is recorded", func() bool {
			a, err := g.nodes[0].Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, []string{open.Receipt()})
			return err == nil && a[0].Err == nil && a[0].Recorded
		})
		g.wantEqual(server, 4, wanted)
		g.wantAfterChange()
	})
}

// A failover to a replica that was behind loses the last writes of everything: tasks,
// dead ones, the directory.
func TestFailoverLosesTheLastWrites(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		servers := redistest.StartSentinel(t)
		g := newRedisFleet(t, servers.URL(), names...)
		g.prepare()
		servers.Master.Do("wait", 1, 5000)
		servers.ShutReplicaOut()
		g.settle(tasks.Ack, g.pull("in-flight"))
		wanted := g.change()
		servers.FailOver()
		g.wantEqual(servers.Replica, 4, wanted)
		g.wantAfterChange()
	})
}

// Redis loses everything, more than once: flushed, and started without its files.
func TestEmptyRedis(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.schedule("x", "acked", "retried")
		for i := range 200 {
			g.schedule("y", fmt.Sprint("t", i))
		}
		g.settle(tasks.Ack, g.pull("acked"))
		g.settle(tasks.Release, g.pull("retried"))
		for i, lease := range []time.Duration{2 * time.Hour, time.Hour} {
			_, err := g.nodes[0].SetTopic(t.Context(), "x", tasks.TopicSettings{Lease: lease}, int64(i))
			rig.Want(t, "SetTopic", err, nil)
		}
		g.waitFor("it has heard of the lease", func(n *redisNode) bool {
			x, err := n.Topic("x")
			return err == nil && x.Settings.Lease == time.Hour
		})
		g.schedule("x", "open")
		wanted := g.nodes[0].all()
		open := g.pull("open")
		delete(wanted, "open")
		server.Do("flushall")
		g.waitFor("the shards are taken back", func(n *redisNode) bool { return n.Stats().Rewinds == 4 })
		g.nodes[0].waitFor("the settings are there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(4) })
		g.waitFor("everything is recorded", func(n *redisNode) bool { return n.Stats().Ledger.Queued == 0 })
		g.closeAll()
		g.begin()
		g.settle(tasks.Ack, open) // its receipt was signed before the loss
		if topic, err := g.nodes[0].Topic("x"); err != nil || topic.Settings.Lease != time.Hour || topic.Revision != 2 {
			t.Errorf("the topic's settings have become %+v, %v", topic, err)
		}

		server.Do("flushall")
		g.wantEqual(server, 4, wanted)

		server.Kill()
		server.Start()
		g.wantEqual(server, 4, wanted)
		_, err := g.next().SetTopic(t.Context(), "x", tasks.TopicSettings{Lease: time.Minute}, -1)
		rig.Want(t, "SetTopic", err, nil)
		g.wantGone("acked", "open")
	})
}

// One master of a cluster loses everything: some shards, and perhaps the directory or the
// list of nodes.
func TestEmptyMaster(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		cluster := redistest.StartCluster(t)
		g := newRedisFleet(t, cluster.URL(), names...)
		for i := range 300 {
			g.schedule("y", fmt.Sprint("t", i))
		}
		wanted := g.nodes[0].all()
		victim := cluster.Master("lapse:{a/0}:tasks")
		victim.Kill()
		victim.Start()
		g.nodes[0].waitFor("the loss is noticed", func() bool { return g.nodes[0].Stats().Rewinds > 0 })
		held := func() (count int) {
			for _, n := range g.nodes {
				for shard := range 4 {
					key := fmt.Sprintf("lapse:{%s/%d}:pending", n.name, shard)
					count += max(0, int(cluster.Master(key).Do("scard", key).(int64))-1)
				}
			}
			return count
		}
		g.nodes[0].waitFor("Redis holds what memory does", func() bool { return held() == len(wanted) })
		g.settled()
		g.wantTold(wanted)
		g.closeAll()
		g.begin()
		g.wantTold(wanted)
	})
}

// Redis loses the keys of one shard, and nothing else.
func TestLostShardKeys(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.prepare()
		g.settle(tasks.Ack, g.pull("in-flight"))
		wanted := g.change()
		for shard := range 4 {
			key := fmt.Sprintf("lapse:{%s/%d}:", names[len(names)-1], shard)
			if server.Do("hexists", key+"dead", "buried") == int64(1) {
				continue // the records of the dead are nowhere else
			}
			server.Do("del", key+"tasks", key+"pending", key+"dead", key+"deadindex")
			break
		}
		last := g.nodes[len(g.nodes)-1]
		last.waitFor("the loss is noticed", func() bool { return last.Stats().Rewinds == 1 && last.Stats().Ledger.Queued == 0 })
		g.wantTold(wanted)
		g.wantAfterChange()
	})
}

// Redis loses the directory of ids, and nothing else: no node finds out before the audit
// comes by, and no id has two tasks then.
func TestLostDirectory(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.prepare()
		g.settle(tasks.Ack, g.pull("in-flight"))
		wanted := g.change()
		for _, key := range server.Do("keys", "lapse:ids:*").([]any) {
			server.Do("del", key)
		}
		g.waitFor("the audit has come by", func(n *redisNode) bool {
			for id := range wanted {
				if _, err := n.Get(t.Context(), strings.TrimPrefix(id, "dead ")); err != nil {
					return false
				}
			}
			return true
		})
		g.wantTold(wanted)
		g.wantAfterChange()
	})
}
