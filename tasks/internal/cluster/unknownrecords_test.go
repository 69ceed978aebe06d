package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// Redis has brought a finished task back while its id is being created again, and the creation
// comes to nothing. The record does not stay: another process would take it for a task.
func TestUnknownRecordOfAnIDBeingCreated(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.schedule("x", "t")
		var owner *redisNode
		var shard int
		key := ""
		for _, n := range g.nodes {
			for i := range 4 {
				if k := fmt.Sprintf("lapse:{%s/%d}:", n.name, i); server.Do("hexists", k+"tasks", "t") == int64(1) {
					owner, shard, key = n, i, k
				}
			}
		}
		record := server.Do("hget", key+"tasks", "t")
		g.settle(Ack, g.pull("t"))
		server.Do("hset", key+"tasks", "t", record)
		server.Do("sadd", key+"pending", "t")

		s := owner.Scheduler
		rig.Mutex(rig.Engine(s)).Lock()
		n, sl := rig.Engine(s).Store.Enter([]byte("t"), nil)
		sl.State = store.Creating
		h := rig.Engine(s).OwnedLocked(shard)
		rig.Mutex(rig.Engine(s)).Unlock()
		deleted := make(chan int)
		go func() {
			x := engine.Restoration{Engine: rig.Engine(s), Shard: shard, Term: h}
			count, err := x.DeleteUnknown(rig.Engine(s).Ledger.(recovery.Rewinder))
			if err != nil {
				t.Error(err)
			}
			deleted <- count
		}()
		select {
		case <-deleted:
			t.Error("it does not wait for what becomes of the creation")
		case <-time.After(200 * time.Millisecond):
		}
		rig.Mutex(rig.Engine(s)).Lock()
		rig.Engine(s).UncheckLocked(n)
		rig.Mutex(rig.Engine(s)).Unlock()
		if count := <-deleted; count != 1 {
			t.Errorf("%d strays were deleted", count)
		}
		owner.waitFor("it is gone", func() bool { return len(g.recorded(server)) == 0 })
	})
}
