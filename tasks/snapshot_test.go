package tasks_test

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
)

// inherit has a node adopt what the last one held, who is dead then. Whose shards
// they were does not ask for them.
func (m *node) inherit() (shardIDs []recovery.ShardID) {
	m.t.Helper()
	gone := m.fleet.nodes[len(m.fleet.nodes)-1]
	for i := range fleetShards {
		shardIDs = append(shardIDs, gone.shardID(i))
	}
	gone.crash()
	m.member.AdoptFrom(gone.member.Member)
	pass(time.Second)
	return shardIDs
}

// handOver has a shard of one node taken by another one.
func (m *node) handOver(shardID recovery.ShardID, to *node) {
	m.t.Helper()
	if err := to.Cluster().Fetch(context.Background(), m.name, shardID); err != nil {
		m.t.Errorf("handing over: %v", err)
	}
}

// A shard is on its way from b to c while a asks both, in either order. Nothing of it is
// missed, and nothing counts twice.
func TestShardMovesWhileAllAreAsked(t *testing.T) {
	for name, late := range map[string]int{"MissedByBoth": 1, "SeenByBoth": 2} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 4, func(t *testing.T, f *fleet) {
				a, b := f.nodes[0], f.nodes[1]
				shardID := b.inherit()[0]
				during := func(call func()) {
					t.Helper()
					// A late node gets no call before the shard has changed hands.
					f.lose(func(from, to string, _ []byte) bool { return from == a.name && to == f.nodes[late].name })
					done := make(chan struct{})
					go func() {
						defer close(done)
						call()
					}()
					synctest.Wait()
					b.handOver(shardID, f.nodes[2])
					pass(10 * time.Millisecond) // it is in memory there
					f.lose(nil)
					<-done
					f.nodes[2].handOver(shardID, b)
					pass(time.Second)
				}
				there := b.must(Request{ID: shardID.NewID(), Topic: "x", Group: "g", Delay: time.Hour}).ID
				out := shardID.NewID()
				b.deliver(Request{ID: out, Topic: "y", Group: "g"})
				during(func() {
					page, err := a.List(t.Context(), Query{Group: "g"})
					if err != nil || !slices.Equal(sorted(idsOf(page.Tasks)), sorted([]string{there, out})) {
						t.Errorf("List = %v, %v; want %s and %s", idsOf(page.Tasks), err, there, out)
					}
				})
				during(func() {
					want(t, "DeleteTopic", a.DeleteTopic(t.Context(), "x", -1), ErrInUse)
				})
				during(func() {
					got, err := a.CancelGroup(t.Context(), "g")
					if err != nil || got.Cancelled != 1 || !slices.Equal(got.Delivering, []string{out}) || got.More != 0 {
						t.Errorf("CancelGroup = %+v, %v; want 1 and %s", got, err, out)
					}
				})
				if left := a.pages(Query{Group: "g"}); !slices.Equal(left, []string{out}) {
					t.Errorf("left: %v", left)
				}
				dead := shardID.NewID()
				b.bury("x", dead)
				during(func() {
					page, err := a.DeadTasks(t.Context(), "x", 0, "")
					if err != nil || !slices.Equal(idsOf(page.Tasks), []string{dead}) {
						t.Errorf("DeadTasks = %v, %v", idsOf(page.Tasks), err)
					}
				})
				during(func() {
					q, err := a.Requeue(t.Context(), "x", Requeue{IDs: []string{dead}, Delay: time.Hour})
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
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		own := []recovery.ShardID{a.shardID(0), a.shardID(1), a.shardID(2)}
		moves := a.inherit()
		own = append(own, moves...)
		moved := moves[2]
		covered := func(do func()) []recovery.ShardID {
			t.Helper()
			var c cluster.Coverage
			_, err := a.Cluster().Covers(t.Context(), &c, func(context.Context) error { do(); return nil })
			want(t, "covers", err, nil)
			pass(time.Second)
			return c.Covered
		}
		if got := covered(func() {}); !slices.Equal(got, own) {
			t.Errorf("covered %v, want %v", got, own)
		}
		others := own[:len(own)-1]
		if got := covered(func() { a.handOver(moved, b) }); !slices.Equal(got, others) {
			t.Errorf("what has left is covered: %v", got)
		}
		if got := covered(func() { b.handOver(moved, a); pass(time.Second) }); !slices.Equal(got, others) {
			t.Errorf("what has come is covered: %v", got)
		}
		if got := covered(func() {}); !slices.Equal(got, own) {
			t.Errorf("covered %v, want %v", got, own)
		}
		if got := covered(func() {
			a.handOver(moved, b)
			pass(time.Second)
			b.handOver(moved, a)
			pass(time.Second)
		}); !slices.Equal(got, others) {
			t.Errorf("what has left and come back is covered: %v", got)
		}
		a.member.Uncertain(true)
		var cov cluster.Coverage
		_, err := a.Cluster().Covers(t.Context(), &cov, func(context.Context) error { return nil })
		want(t, "covers of one that may have lost what it held", err, ErrUnavailable)
		a.member.Uncertain(false)
		_, err = a.Cluster().Covers(t.Context(), &cov, func(context.Context) error { a.member.Uncertain(true); return nil })
		want(t, "covers of one that may have lost it meanwhile", err, ErrUnavailable)
		a.member.Uncertain(false)
	})
}

// While it is not known whether a spooled task has moved, its node does not vouch for what
// it has: the task is in no node's memory.
func TestSnapshotOfAMoveInDoubt(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, _, _ := suspendMove(t, f, "Apply", nil, nil)
		synctest.Wait()
		var c cluster.Coverage
		_, err := a.Cluster().Covers(t.Context(), &c, func(context.Context) error { return nil })
		want(t, "covers", err, engine.ErrInDoubt)
		pass(time.Second)
		_, err = a.Cluster().Covers(t.Context(), &c, func(context.Context) error { return nil })
		want(t, "covers, once it is known", err, nil)
		_, err = a.Cluster().Covers(t.Context(), &c, func(context.Context) error {
			Mutex(a.Engine()).Lock()
			defer Mutex(a.Engine()).Unlock()
			a.Engine().Spool.MovesInDoubt++
			return nil
		})
		want(t, "covers, with one in doubt meanwhile", err, engine.ErrInDoubt)
	})
}

// A shard comes, with its dead, while all dead of a topic are requeued. The node does not
// take those for the ones that it had, and leaves none of its own.
func TestRequeueOfAllWhileAShardComes(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		coming := a.inherit()[0]
		a.handOver(coming, b)
		pass(time.Second)
		for range 3 {
			b.bury("x", coming.NewID())
		}
		own := a.shardID(0).NewID()
		a.bury("x", own)
		x := a.Engine().NewRedrive(&query.Redrive{Topic: "x", All: true})
		count := a.Engine().DeadCount("x")
		b.handOver(coming, a)
		pass(time.Second)
		if _, _, more, err := x.RedriveTopic(t.Context(), recovery.Ref{}, a.Engine().Now(), count); more || err != nil {
			t.Errorf("all = %v, %v", more, err)
		}
		if got := a.get(own); got.State == Dead {
			t.Errorf("left: %+v", got)
		}
	})
}

// What the ledger has lost is not vouched for, also before memory is told: it reads no dead
// there any more.
func TestSnapshotOfALossNotToldYet(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b, gone := f.join("a", 2, Config{}), f.join("b", 1, Config{}), f.join("c", 1, Config{})
		gone.crash()
		release := a.member.hold("Acquired")
		if a.member.AdoptFrom(gone.member.Member) == 0 { // and a is told nothing more
			t.Fatal("nothing was adopted")
		}
		b.keeps.Store(true)
		var c cluster.Coverage
		_, err := a.Cluster().Covers(t.Context(), &c, func(context.Context) error {
			b.member.AdoptFrom(a.member.Member)
			return nil
		})
		if err != nil || len(c.Covered) != 0 {
			t.Errorf("covered %v, %v", c.Covered, err)
		}
		release()
		pass(time.Second)
	})
}

// What is being parked, as its shard was to be handed over, is being delivered.
func TestPurgeCountsWhatIsParked(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{Topic: "x", Group: "g"})
		pass(10 * time.Millisecond)
		a.pullOwn("x", id)
		release := a.member.hold("Apply")
		done := make(chan error, 1)
		go func() { done <- a.handTo(b) }()
		synctest.Wait()
		purge := a.Engine().NewPurge(&query.Purge{Group: "g", Keep: MaxGroupDelivering})
		if all, err := purge.Run(t.Context(), 0); !all || err != nil || !slices.Equal(purge.Part(nil).Left, []query.LeftTask{{ID: id}}) {
			t.Errorf("purge of a group: %t, %v, %+v", all, err, purge.Part(nil))
		}
		release()
		want(t, "hand-over", <-done, nil)
	})
}

// Who gives up while the ledger has not answered is told that the outcome is open.
func TestUnknownWhenTheCallerLeaves(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 1, Config{})
		a.create(Request{Topic: "x", Delay: time.Hour})
		release := a.member.hold("Applied")
		defer release()
		ctx, leave := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, leave)
		got, err := a.Cluster().PurgeLocal(ctx, query.Purge{Topic: "x"})
		if got.Cancelled != 0 {
			t.Errorf("PurgeLocal = %+v", got)
		}
		want(t, "PurgeLocal", err, ErrUnknown)
	})
}

// A node covers its shards under the names by which they are looked up.
func TestSnapshotAfterANewNumber(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 2, Config{})
		a.member.renumbered.Store(77)
		var c cluster.Coverage
		_, err := a.Cluster().Covers(t.Context(), &c, func(context.Context) error { return nil })
		a.member.renumbered.Store(0)
		if wanted := []recovery.ShardID{recovery.NewShardID(77, 0), recovery.NewShardID(77, 1)}; err != nil || !slices.Equal(c.Covered, wanted) {
			t.Errorf("covered %v, %v; want %v", c.Covered, err, wanted)
		}
	})
}
