package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Tasks with chosen ids in other shards than those of their ids are found, also when they are dead,
// and end.
func TestMisplacedOnRedis(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		a := g.nodes[0]
		for i := range 12 {
			id := fmt.Sprint("x-", i)
			a.schedule("x", id)
			if i%2 == 0 {
				a.settle(tasks.Bury, a.pull(id))
			}
		}
		a.waitFor("all is recorded", func() bool { return a.Stats().Ledger.Queued == 0 })
		rig.Want(t, "Close", a.Close(t.Context()), nil)
		for i := range 12 {
			id, from, to := fmt.Sprint("x-", i), -1, ""
			key := func(shard int, what string) string { return fmt.Sprintf("lapse:{a/%d}:%s", shard, what) }
			kind, set := "tasks", "pending"
			if i%2 == 0 {
				kind, set = "dead", "deadindex"
			}
			for shard := range 4 {
				if server.Do("hexists", key(shard, kind), id) == int64(1) {
					from, to = shard, key((shard+1)%4, kind)
				}
			}
			server.Do("hset", to, id, server.Do("hget", key(from, kind), id))
			server.Do("hdel", key(from, kind), id)
			if kind == "tasks" {
				server.Do("smove", key(from, set), key((from+1)%4, set), id)
				continue
			}
			for _, member := range server.Do("zrange", key(from, set), 0, -1).([]any) {
				if m := member.(string); len(m) > len(id) && m[len(m)-len(id):] == id && m[len(m)-len(id)-1] != '-' {
					server.Do("zrem", key(from, set), m)
					server.Do("zadd", key((from+1)%4, set), 0, m)
				}
			}
		}
		a.open()
		g.settled()
		for i := range 12 {
			id := fmt.Sprint("x-", i)
			for _, n := range g.nodes {
				task, err := n.Get(t.Context(), id)
				rig.Want(t, "Get "+id+" at "+n.name, err, nil)
				if dead := i%2 == 0; dead != (task.State == tasks.Dead) {
					t.Errorf("%s is %v", id, task.State)
				}
			}
			if i%4 == 0 {
				came, err := rig.Requeued(g.next().Admin().Requeue(t.Context(), "x", tasks.Requeue{IDs: []string{id}, Delay: time.Hour}))
				if err != nil || came != 1 {
					t.Errorf("requeued %d, %v", came, err)
				}
			}
			g.cancel(id)
		}
		g.wantGone("x-0", "x-1", "x-2", "x-3")
		a.waitFor("Redis has nothing left", func() bool { return len(g.recorded(server)) == 0 })
	})
}
