package cluster_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// inherit has a node adopt what the last one held, who is dead then. Whose shards
// they were does not ask for them.
func inherit(m *rig.Node) (shardIDs []recovery.ShardID) {
	m.T.Helper()
	gone := m.Fleet.Nodes[len(m.Fleet.Nodes)-1]
	for i := range rig.FleetShards {
		shardIDs = append(shardIDs, gone.ShardID(i))
	}
	gone.Crash()
	m.Member.AdoptFrom(gone.Member.Member)
	rig.Pass(time.Second)
	return shardIDs
}

// handOver has a shard of one node taken by another one.
func handOver(m *rig.Node, shardID recovery.ShardID, to *rig.Node) {
	m.T.Helper()
	if err := to.Cluster().Fetch(context.Background(), m.Name, shardID); err != nil {
		m.T.Errorf("handing over: %v", err)
	}
}

// A shard is on its way from b to c while a asks both, in either order. Nothing of it is
// missed, and nothing counts twice.
func TestShardMovesWhileAllAreAsked(t *testing.T) {
	for name, late := range map[string]int{"MissedByBoth": 1, "SeenByBoth": 2} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 4, func(t *testing.T, f *rig.Fleet) {
				a, b := f.Nodes[0], f.Nodes[1]
				shardID := inherit(b)[0]
				during := func(call func()) {
					t.Helper()
					// A late node gets no call before the shard has changed hands.
					f.Lose(func(from, to string, _ []byte) bool { return from == a.Name && to == f.Nodes[late].Name })
					done := make(chan struct{})
					go func() {
						defer close(done)
						call()
					}()
					synctest.Wait()
					handOver(b, shardID, f.Nodes[2])
					rig.Pass(10 * time.Millisecond) // it is in memory there
					f.Lose(nil)
					<-done
					handOver(f.Nodes[2], shardID, b)
					rig.Pass(time.Second)
				}
				there := b.Must(Request{ID: shardID.NewID(), Topic: "x", Group: "g", Delay: time.Hour}).ID
				out := shardID.NewID()
				deliver(b, Request{ID: out, Topic: "y", Group: "g"})
				during(func() {
					page, err := a.List(t.Context(), Query{Group: "g"})
					if err != nil || !slices.Equal(sorted(rig.IDsOf(page.Tasks)), sorted([]string{there, out})) {
						t.Errorf("List = %v, %v; want %s and %s", rig.IDsOf(page.Tasks), err, there, out)
					}
				})
				during(func() {
					rig.Want(t, "DeleteTopic", a.Admin().DeleteTopic(t.Context(), "x", -1), ErrInUse)
				})
				during(func() {
					got, err := a.CancelGroup(t.Context(), "g")
					if err != nil || got.Cancelled != 1 || !slices.Equal(got.Delivering, []string{out}) || got.More != 0 {
						t.Errorf("CancelGroup = %+v, %v; want 1 and %s", got, err, out)
					}
				})
				if left := a.Pages(Query{Group: "g"}); !slices.Equal(left, []string{out}) {
					t.Errorf("left: %v", left)
				}
				dead := shardID.NewID()
				bury(b, "x", dead)
				during(func() {
					page, err := a.Admin().DeadTasks(t.Context(), "x", 0, "")
					if err != nil || !slices.Equal(rig.IDsOf(page.Tasks), []string{dead}) {
						t.Errorf("DeadTasks = %v, %v", rig.IDsOf(page.Tasks), err)
					}
				})
				during(func() {
					q, err := a.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{dead}, Delay: time.Hour})
					if err != nil || q.Requeued != 1 || q.Unknown != nil {
						t.Errorf("Requeue = %+v, %v", q, err)
					}
				})
			})
		})
	}
}

// A node vouches only for what it holds all the time, in one term.
func TestSnapshot(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		own := []recovery.ShardID{a.ShardID(0), a.ShardID(1), a.ShardID(2)}
		moves := inherit(a)
		own = append(own, moves...)
		moved := moves[2]
		covered := func(do func()) []recovery.ShardID {
			t.Helper()
			var c cluster.Coverage
			_, err := a.Cluster().Covers(t.Context(), &c, func(context.Context) error { do(); return nil })
			rig.Want(t, "covers", err, nil)
			rig.Pass(time.Second)
			return c.Covered
		}
		if got := covered(func() {}); !slices.Equal(got, own) {
			t.Errorf("covered %v, want %v", got, own)
		}
		others := own[:len(own)-1]
		if got := covered(func() { handOver(a, moved, b) }); !slices.Equal(got, others) {
			t.Errorf("what has left is covered: %v", got)
		}
		if got := covered(func() { handOver(b, moved, a); rig.Pass(time.Second) }); !slices.Equal(got, others) {
			t.Errorf("what has come is covered: %v", got)
		}
		if got := covered(func() {}); !slices.Equal(got, own) {
			t.Errorf("covered %v, want %v", got, own)
		}
		if got := covered(func() {
			handOver(a, moved, b)
			rig.Pass(time.Second)
			handOver(b, moved, a)
			rig.Pass(time.Second)
		}); !slices.Equal(got, others) {
			t.Errorf("what has left and come back is covered: %v", got)
		}
		a.Member.Uncertain(true)
		var cov cluster.Coverage
		_, err := a.Cluster().Covers(t.Context(), &cov, func(context.Context) error { return nil })
		rig.Want(t, "covers of one that may have lost what it held", err, ErrUnavailable)
		a.Member.Uncertain(false)
		_, err = a.Cluster().Covers(t.Context(), &cov, func(context.Context) error { a.Member.Uncertain(true); return nil })
		rig.Want(t, "covers of one that may have lost it meanwhile", err, ErrUnavailable)
		a.Member.Uncertain(false)
	})
}

// While it is not known whether a spooled task has moved, its node does not vouch for what
// it has: the task is in no node's memory.
func TestSnapshotOfAMoveInDoubt(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, _, _ := suspendMove(t, f, "Apply", nil, nil)
		synctest.Wait()
		var c cluster.Coverage
		_, err := a.Cluster().Covers(t.Context(), &c, func(context.Context) error { return nil })
		rig.Want(t, "covers", err, engine.ErrInDoubt)
		rig.Pass(time.Second)
		_, err = a.Cluster().Covers(t.Context(), &c, func(context.Context) error { return nil })
		rig.Want(t, "covers, once it is known", err, nil)
		_, err = a.Cluster().Covers(t.Context(), &c, func(context.Context) error {
			rig.Mutex(a.Engine()).Lock()
			defer rig.Mutex(a.Engine()).Unlock()
			a.Engine().Spool.MovesInDoubt++
			return nil
		})
		rig.Want(t, "covers, with one in doubt meanwhile", err, engine.ErrInDoubt)
	})
}

// A shard comes, with its dead, while all dead of a topic are requeued. The node does not
// take those for the ones that it had, and leaves none of its own.
func TestRequeueOfAllWhileAShardComes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		coming := inherit(a)[0]
		handOver(a, coming, b)
		rig.Pass(time.Second)
		for range 3 {
			bury(b, "x", coming.NewID())
		}
		own := a.ShardID(0).NewID()
		bury(a, "x", own)
		x := a.Engine().NewRedrive(&query.Redrive{Topic: "x", All: true})
		count := a.Engine().DeadCount("x")
		handOver(b, coming, a)
		rig.Pass(time.Second)
		if _, _, more, err := x.RedriveTopic(t.Context(), recovery.Ref{}, a.Engine().Now(), count); more || err != nil {
			t.Errorf("all = %v, %v", more, err)
		}
		if got := a.MustGet(own); got.State == Dead {
			t.Errorf("left: %+v", got)
		}
	})
}

// What the ledger has lost is not vouched for, also before memory is told: it reads no dead
// there any more.
func TestSnapshotOfALossNotToldYet(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b, gone := f.Join("a", 2, Config{}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{})
		gone.Crash()
		release := a.Member.Hold("Acquired")
		if a.Member.AdoptFrom(gone.Member.Member) == 0 { // and a is told nothing more
			t.Fatal("nothing was adopted")
		}
		b.Keeps.Store(true)
		var c cluster.Coverage
		_, err := a.Cluster().Covers(t.Context(), &c, func(context.Context) error {
			b.Member.AdoptFrom(a.Member.Member)
			return nil
		})
		if err != nil || len(c.Covered) != 0 {
			t.Errorf("covered %v, %v", c.Covered, err)
		}
		release()
		rig.Pass(time.Second)
	})
}

// What is being parked, as its shard was to be handed over, is being delivered.
func TestPurgeCountsWhatIsParked(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{Topic: "x", Group: "g"})
		rig.Pass(10 * time.Millisecond)
		a.PullOwn("x", id)
		release := a.Member.Hold("Apply")
		done := make(chan error, 1)
		go func() { done <- a.HandTo(b) }()
		synctest.Wait()
		purge := a.Engine().NewPurge(&query.Purge{Group: "g", Keep: MaxGroupDelivering})
		if all, err := purge.Run(t.Context(), 0); !all || err != nil || !slices.Equal(purge.Part(nil).Left, []query.LeftTask{{ID: id}}) {
			t.Errorf("purge of a group: %t, %v, %+v", all, err, purge.Part(nil))
		}
		release()
		rig.Want(t, "hand-over", <-done, nil)
	})
}

// Who gives up while the ledger has not answered is told that the outcome is open.
func TestUnknownWhenTheCallerLeaves(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{})
		a.Create(Request{Topic: "x", Delay: time.Hour})
		release := a.Member.Hold("Applied")
		defer release()
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, leave)
		got, err := a.Cluster().PurgeLocal(ctx, query.Purge{Topic: "x"})
		if got.Cancelled != 0 {
			t.Errorf("PurgeLocal = %+v", got)
		}
		rig.Want(t, "PurgeLocal", err, ErrUnknown)
	})
}

// A node covers its shards under the names by which they are looked up.
func TestSnapshotAfterANewNumber(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 2, Config{})
		a.Member.Renumbered.Store(77)
		var c cluster.Coverage
		_, err := a.Cluster().Covers(t.Context(), &c, func(context.Context) error { return nil })
		a.Member.Renumbered.Store(0)
		if wanted := []recovery.ShardID{recovery.NewShardID(77, 0), recovery.NewShardID(77, 1)}; err != nil || !slices.Equal(c.Covered, wanted) {
			t.Errorf("covered %v, %v; want %v", c.Covered, err, wanted)
		}
	})
}
