package redisledger

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// waitingFor makes ledgers of one shard that wait for one replica.
func waitingFor(url string) *lives {
	v := oneShard(url)
	v.opts.WaitReplicas, v.opts.WaitTimeout = 1, 50*time.Millisecond
	return v
}

// A replica hangs: a batch that it lacks is not confirmed, however often it is repeated and on
// whichever connection, and is written once.
func TestReplicaHangs(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "appendonly yes")
	replica := redistest.StartReplica(t, master)
	l := waitingFor(master.URL()).open(t)
	adopt(t, l)
	persist(t, l, put("a", "1")) // the master may not know yet that the replica has caught up

	replica.Pause()
	defer replica.Resume()
	b := batchOf(put("a", "2"), put("b", "2"))
	writes := hashWrites(master)
	for range 5 {
		if err := l.Apply(t.Context(), 0, b); err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") {
			t.Fatalf("Apply: %v", err)
		}
		// WAIT does not wait for writes of another connection.
		master.Do("client", "kill", "type", "normal", "skipme", "yes")
	}
	if got := hashWrites(master) - writes; got < 5 {
		t.Errorf("a batch that was sent 5 times has written %d times", got)
	}
	eventually(t, "it is warned of", func() bool {
		w := l.Health().Warnings
		return len(w) == 1 && strings.HasPrefix(w[0], conn.ReplicaSetting)
	})

	replica.Resume()
	persist(t, l, put("a", "2"), put("b", "2"))
	if got := l.member.Term(0).Sequence; got != 2 {
		t.Errorf("2 batches were counted as %d", got)
	}
	wantHeld(t, replica.Client(), l, content{"a": "2", "b": "2"})
	eventually(t, "all is well again", func() bool { return len(l.Health().Warnings) == 0 })
}

// hashWrites counts HSET at a server. In some versions of Redis, WAIT counts only writes of its own
// connection, so that each repeat must write something.
func hashWrites(server *redistest.Server) (calls int) {
	_, stats, _ := strings.Cut(server.Do("info", "commandstats").(string), "cmdstat_hset:calls=")
	_, _ = fmt.Sscan(strings.ReplaceAll(stats, ",", " "), &calls)
	return calls
}

// There is a warning at the start about a server without replicas.
func TestNoReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "appendonly yes")
	l := waitingFor(server.URL()).open(t)
	adopt(t, l)
	if w := l.Health().Warnings; len(w) != 1 || !strings.Contains(w[0], "only 0 are connected") {
		t.Errorf("Warnings: %q", w)
	}
	if err := l.Apply(t.Context(), 0, batchOf(put("a", "1"))); err == nil {
		t.Error("what no replica has is called written")
	}
}

// A batch that fails because of another owner's token is refused, whatever replicas there are.
func TestLostBeforeReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := waitingFor(server.URL()).open(t)
	adopt(t, l)
	server.Do("hset", l.member.Term(0).Keys.Tasks(), layout.OwnerField, layout.NewToken("b", "other", 9).String())
	if err := l.Apply(t.Context(), 0, batchOf(put("a", "1"))); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply: %v", err)
	}
}

// A master is killed amid batches: its replica has all that were confirmed.
func TestPromotedReplicaHasAllConfirmed(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinel(t)
	v := waitingFor(servers.URL())
	v.opts.WaitTimeout = 200 * time.Millisecond
	l := v.open(t)
	adopt(t, l)
	persist(t, l, put("first", "1"))
	want := content{"first": "1"}
	confirmed := make(chan struct{})
	ended := make(chan error)
	go func() {
		for n := 0; ; n++ {
			id := fmt.Sprint("t", n)
			if err := l.Apply(t.Context(), 0, batchOf(put(id, "1"))); err != nil {
				ended <- err
				return
			}
			want[id] = "1"
			if n == 200 {
				close(confirmed)
			}
		}
	}()
	select {
	case <-confirmed:
		servers.FailOver()
		if err := <-ended; err == nil {
			t.Fatal("a dead master has confirmed a batch")
		}
	case err := <-ended:
		t.Fatal(err)
	}
	c := servers.Replica.Client()
	defer c.Close()
	got := held(t, c, l.member.Term(0).Keys)
	for id := range want {
		if got[id] != "1" {
			t.Errorf("%s was confirmed and is lost", id)
		}
	}
}

// In a cluster a batch waits for the replicas of its shard's master, also when it has
// to follow its keys.
func TestReplicasOfCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	l := waitingFor(cluster.URL()).open(t)
	adopt(t, l)
	keys := l.member.Term(0).Keys
	from := cluster.Master(keys.Tasks())
	cluster.AddReplica(from)
	persist(t, l, put("a", "1"))
	wantHeld(t, from.Client(), l, content{"a": "1"})

	move := cluster.BeginMove(keys.Tasks())
	move.Key(keys.Tasks())
	move.Key(keys.Pending())
	if err := l.Apply(t.Context(), 0, batchOf(put("a", "2"))); err == nil || !strings.Contains(err.Error(), "0 of 1 replicas") {
		t.Errorf("the other master has no replica, and Apply answers %v", err)
	}
	cluster.AddReplica(move.To)
	persist(t, l, put("a", "2"))
	move.End()
	persist(t, l, put("b", "3"))
	wantHeld(t, move.To.Client(), l, content{"a": "2", "b": "3"})
}

func BenchmarkWaitReplicas(b *testing.B) {
	for _, replicas := range []int{0, 1} {
		for _, size := range []int{1, 64, 1024} {
			b.Run(fmt.Sprintf("replicas=%d/batch=%d", replicas, size), func(b *testing.B) {
				master := redistest.Start(b)
				redistest.StartReplica(b, master)
				v := oneShard(master.URL())
				v.opts.WaitReplicas = replicas
				l := v.open(b)
				adopt(b, l)
				persist(b, l, put("first", "1"))
				batch := new(recovery.Batch)
				for i := range size {
					batch.Add(put(benchID(i), strings.Repeat("x", benchRecord)))
				}
				for b.Loop() {
					if err := l.Apply(b.Context(), 0, batch); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
