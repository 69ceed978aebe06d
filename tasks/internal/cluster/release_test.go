package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A shard changes hands with its open deliveries: those that were pulled, and those that a
// handler is making, are settled at the new holder, and not made again.
func TestReleaseWithOpenDeliveries(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		f.Spies = true
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		end := make(chan struct{})
		rig.Want(t, "Handle", a.Handle("handled", func(context.Context, *Delivery) error { <-end; return nil }), nil)
		pulled, handled := a.Create(Request{ID: a.IDAt(0), Topic: "x"}), a.Create(Request{ID: a.IDAt(0), Topic: "handled"})
		a.Create(Request{ID: a.IDAt(0), Topic: "y", Delay: time.Minute})
		d := a.PullOwn("x", pulled)[0]
		b.Keeps.Store(true)
		rig.Pass(10 * time.Second)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(100 * time.Millisecond)
		if n := a.Stats(); n.ShardsYielded != 1 || n.ShardsLost != 0 || n.LostDeliveries != 0 || n.TasksDropped != 3 {
			t.Errorf("%d transferred, %d lost, %d deliveries lost, %d dropped", n.ShardsYielded, n.ShardsLost, n.LostDeliveries, n.TasksDropped)
		}
		if log := b.Log.All(); strings.Count(log, `level=INFO msg="a shard was taken over"`) != 1 {
			t.Errorf("the log does not tell of the hand-over:\n%s", log)
		}
		b.PullOwn("x")
		b.PullOwn("handled")
		if n := b.Stats().Total; n.Delivering != 2 || n.Pending != 1 {
			t.Errorf("%+v", n)
		}
		close(end)
		synctest.Wait()
		if told := a.Told.List(); len(told) != 1 || told[0] != fmt.Sprint(Ack, " ") {
			t.Errorf("told %q", told)
		}
		if s := b.Ack(d); s.Err != nil || !s.Recorded {
			t.Errorf("ack: %+v", s)
		}
		for _, id := range []string{pulled, handled} {
			_, err := b.Engine().Get(t.Context(), id)
			rig.Want(t, "Get", err, ErrNotFound)
		}
		a.WantEmpty()
		b.Check()
	})
}

// Who is asked for a shard that it does not hold looks whether it should: its giver could
// not tell it so, or the ledger has forgotten a hand-over.
func TestAskedForWhatItDoesNotHold(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, c := f.Join("a", 1, Config{}), f.Join("c", 1, Config{})
		f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		rig.Want(t, "release", a.Engine().ReleaseShard(t.Context(), shardID, "b"), nil)
		a.Crash()
		rig.Want(t, "take", c.Cluster().AcceptOffer(t.Context(), shardID, "b"), ErrUnavailable)
		rig.Pass(time.Second)
		rig.Want(t, "take again", c.Cluster().AcceptOffer(t.Context(), shardID, "b"), nil)
		rig.Pass(time.Second)
		if _, err := c.Engine().Get(t.Context(), id); err != nil {
			t.Error(err)
		}
		c.Check()
	})
}

// What is left of a lease goes over with the delivery.
func TestReleaseKeepsTheLease(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		d := a.PullOwn("x", id)[0]
		b.Keeps.Store(true)
		rig.Pass(20 * time.Second)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(9 * time.Second)
		b.PullOwn("x")
		rig.Pass(4 * time.Second) // the lease was 30 s, the backoff at most 2 s
		d2 := b.PullOwn("x", id)[0]
		if d2.Attempt != 2 {
			t.Errorf("attempt %d", d2.Attempt)
		}
		rig.Want(t, "ack of the first", b.Ack(d).Err, ErrStale)
		rig.Want(t, "ack of the second", b.Ack(d2).Err, nil)
	})
}

// While a shard is being handed over nothing new is begun with its tasks, and what is under
// way is finished before.
func TestNothingBeginsWhileAShardLeaves(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 2, Config{}), f.Join("b", 1, Config{})
		due := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		soon := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: 50 * time.Millisecond})
		later := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		other := a.Create(Request{ID: a.IDAt(1), Topic: "x"})
		open := a.Create(Request{ID: a.IDAt(0), Topic: "y"})
		d := a.PullOwn("y", open)[0]
		b.Keeps.Store(true)
		release := a.Member.Hold("Transfer")
		done := make(chan error, 1)
		go func() { done <- a.HandTo(b) }()
		rig.Pass(100 * time.Millisecond)
		a.PullOwn("x", other)
		rig.Pass(time.Second)
		a.PullOwn("x")
		for what, err := range map[string]error{
			"Cancel": a.Engine().CancelLocal(t.Context(), later),
			"Reschedule": func() error {
				_, err := a.Engine().Reschedule(t.Context(), later, Move{Delay: rig.Ptr(time.Second)})
				return err
			}(),
			"Schedule": a.CreateOwned(Request{ID: a.IDAt(0), Topic: "x"}),
			"Settle":   a.Ack(d).Err,
			"release":  a.Engine().ReleaseShard(t.Context(), a.ShardID(0), "c"),
		} {
			rig.Want(t, what, err, ErrUnavailable)
		}
		if n := a.Stats(); n.Rescued != 0 {
			t.Errorf("%d tasks were rescued", n.Rescued)
		}
		release()
		rig.Want(t, "hand-over", <-done, nil)
		rig.Pass(100 * time.Millisecond)
		b.PullOwn("x", due, soon)
		rig.Want(t, "ack", b.Ack(d).Err, nil)
		b.Check()
	})
}

// A hand-over that does not come off changes nothing: what was parked goes on, what was
// set aside is delivered, and what a handler has said meanwhile counts.
func TestReleaseFails(t *testing.T) {
	for name, fault := range map[string]func(a *rig.Node) (heal func()){
		"the ledger refuses": func(a *rig.Node) func() {
			no := errors.New("no")
			a.Member.Fail("Transfer", no, no, no)
			release := a.Member.Hold("Transfer")
			return func() { rig.Pass(time.Second); release() }
		},
		"it takes too long": func(a *rig.Node) func() {
			release := a.Member.Hold("Transfer")
			return func() { rig.Pass(5 * time.Second); release() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				f.Spies = true
				a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
				end := make(chan struct{})
				rig.Want(t, "Handle", a.Handle("handled", func(context.Context, *Delivery) error { <-end; return nil }), nil)
				due, pulled := a.Create(Request{ID: a.IDAt(0), Topic: "x"}), a.Create(Request{ID: a.IDAt(0), Topic: "y"})
				handled := a.Create(Request{ID: a.IDAt(0), Topic: "handled"})
				d := a.PullOwn("y", pulled)[0]
				heal := fault(a)
				done := make(chan error, 1)
				go func() { done <- a.HandTo(b) }()
				rig.Pass(50 * time.Millisecond)
				a.Keeps.Store(true) // another call would begin another hand-over
				a.PullOwn("x")
				close(end)
				synctest.Wait()
				heal()
				rig.Want(t, "hand-over", <-done, ErrUnavailable)
				rig.Pass(100 * time.Millisecond)
				a.Check()
				_, err := a.Engine().Get(t.Context(), handled)
				rig.Want(t, "Get of the handled one", err, ErrNotFound)
				rig.Want(t, "ack", a.Ack(d).Err, nil)
				rig.Want(t, "ack", a.Ack(a.PullOwn("x", due)[0]).Err, nil)
				if told := a.Told.List(); len(told) != 0 {
					t.Errorf("told %q", told)
				}
				b.Check()
				a.Keeps.Store(false)
				rig.Want(t, "the next hand-over", a.HandTo(b), nil)
			})
		})
	}
}

// While it is not known whether a shard has changed hands, its tasks rest: the node that has it
// now may be delivering them.
func TestReleaseWithoutAnswer(t *testing.T) {
	for name, done := range map[string]bool{"it has": true, "it has not": false} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
				id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Second})
				b.Keeps.Store(true)
				shardID, _ := recovery.ShardIDOf(id)
				loses := "Transfer"
				if done {
					loses = "Transferred"
				}
				a.Member.Fail(loses, slices.Repeat([]error{recovery.ErrUnanswered}, 20)...)
				release := b.Member.Hold("Accept")
				rig.Want(t, "hand-over", a.HandTo(b), ErrUnknown)
				rig.Want(t, "another one", a.HandTo(b), engine.ErrHandedOver)
				rig.Pass(2 * time.Second)
				a.PullOwn("x")
				_, err := a.Engine().Get(t.Context(), id)
				rig.Want(t, "Get", err, ErrUnavailable)
				rig.Pass(30 * time.Second)
				release()
				if ok, err := b.Member.Accept(t.Context(), shardID); !ok || err != nil {
					t.Fatalf("Accept: %v, %v", ok, err)
				}
				rig.Pass(time.Second)
				rig.Want(t, "ack", b.Ack(b.PullOwn("x", id)[0]).Err, nil)
				a.WantEmpty()
			})
		})
	}
	// And what was not done after all is taken back.
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Second})
		a.Member.Fail("Transfer", recovery.ErrUnanswered, recovery.ErrUnanswered, recovery.ErrUnanswered, errors.New("b has gone"))
		rig.Want(t, "hand-over", a.HandTo(b), ErrUnknown)
		rig.Pass(2 * time.Second)
		rig.Want(t, "ack", a.Ack(a.PullOwn("x", id)[0]).Err, nil)
	})
}

// lostWhileTransferring has a third node adopt the first shard while it is being handed over.
func lostWhileTransferring(n *rig.Node, to, adopter *rig.Node) {
	n.T.Helper()
	release := n.Member.Hold("Transfer")
	done := make(chan error, 1)
	go func() { done <- n.HandTo(to) }()
	rig.Pass(50 * time.Millisecond)
	adopter.Keeps.Store(true)
	adopter.Adopt(n)
	release()
	rig.Want(n.T, "hand-over", <-done, ErrUnavailable)
	rig.Pass(50 * time.Millisecond)
}

// A shard that is lost while it is being handed over is lost, and its open deliveries are
// settled where they are known.
func TestRevokedWhileReleasing(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Join("a", 1, Config{}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{})
		b.Keeps.Store(true)
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		d := a.PullOwn("x", id)[0]
		lostWhileTransferring(a, b, c)
		if n := a.Stats(); n.ShardsLost != 1 || n.ShardsYielded != 0 {
			t.Errorf("%d lost, %d transferred", n.ShardsLost, n.ShardsYielded)
		}
		a.WantEmpty()
		rig.Want(t, "ack", c.Ack(d).Err, nil)
		c.Check()
	})
}

// The same when the ledger has told so, and only fails to change the owner: no node would
// tell it again.
func TestRevokedWhileReleasingInVain(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Join("a", 1, Config{}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{})
		b.Keeps.Store(true)
		a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		no := errors.New("no")
		a.Member.Fail("Transfer", no, no, no)
		lostWhileTransferring(a, b, c)
		a.WantEmpty()
		c.Check()
	})
}

// Attempts that are being recorded when the hand-over begins are not made.
func TestReleaseWhileClaiming(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		b.Keeps.Store(true)
		if _, err := a.SetTopic(t.Context(), "x", TopicSettings{CountCrashes: true}, -1); err != nil {
			t.Fatal(err)
		}
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		release := a.Member.Hold("Apply")
		got := make(chan int, 1)
		go func() {
			ds, _ := a.Reserve(t.Context(), "x", 1, 0, 0)
			got <- len(ds)
		}()
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- a.HandTo(b) }()
		rig.Pass(50 * time.Millisecond)
		release()
		rig.Want(t, "hand-over", <-done, nil)
		if n := <-got; n != 0 {
			t.Errorf("%d were delivered", n)
		}
		rig.Pass(100 * time.Millisecond)
		if d := b.PullOwn("x", id)[0]; d.Attempt != 1 {
			t.Errorf("attempt %d", d.Attempt)
		}
		b.Check()
	})
}

// What is still being read is not handed over: neither at the start, nor after it was acquired.
func TestNoReleaseWhileReading(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		var release func()
		f.Before = func(m *rig.FaultyMember) { release = m.Hold("Scan") }
		a := f.Join("a", 1, Config{})
		f.Before = nil
		b := f.Join("b", 1, Config{})
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		rig.Want(t, "release at the start", a.Engine().ReleaseShard(t.Context(), shardID, "b"), ErrReplaying)
		release()
		rig.Pass(3 * time.Second) // its ids are registered by then
		c := f.Join("c", 1, Config{})
		a.Crash()
		release = b.Member.Hold("ScanShard")
		b.Adopt(a)
		rig.Want(t, "release of what was acquired", b.Engine().ReleaseShard(t.Context(), shardID, "c"), ErrReplaying)
		rig.Want(t, "offer of what was acquired", b.Cluster().AcceptOffer(t.Context(), shardID, "a"), engine.ErrHandingOver)
		release()
		synctest.Wait()
		rig.Want(t, "release", b.Engine().ReleaseShard(t.Context(), shardID, "c"), nil)
		rig.Pass(time.Second)
		c.Check()
	})
}

// A shard whose storage has lost writes stays until they were made good.
func TestNoReleaseWhileRestoring(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		release := a.Member.Hold("ScanShard")
		a.Engine().Rewound(a.Member, 0)
		synctest.Wait()
		rig.Want(t, "hand-over", a.HandTo(b), ErrUnavailable)
		release()
		rig.Pass(time.Second)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(50 * time.Millisecond)
		b.Check()
	})
}

// While a hand-over that did not come off is still being taken back, there is no other one:
// it would take deliveries for parked that are about to go on here.
func TestNoReleaseWhileOneIsTakenBack(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		seen := make(chan struct{})
		see := sync.OnceFunc(func() { close(seen) })
		defer see()
		a, b := f.Join("a", 1, Config{Observer: rig.ObserverFunc(func(e Event) {
			if e.Kind == EventDelivered {
				<-seen
			}
		})}), f.Join("b", 1, Config{})
		b.Keeps.Store(true)
		end := make(chan struct{})
		rig.Want(t, "Handle", a.Handle("handled", func(context.Context, *Delivery) error { <-end; return nil }), nil)
		a.Create(Request{ID: a.IDAt(0), Topic: "handled"}) // is met first
		ids := make([]string, 2*engine.AtOnce)
		for i := range ids {
			ids[i] = a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		}
		a.PullOwn("x", ids...)
		release := a.Member.Hold("Transfer")
		no := errors.New("no")
		a.Member.Fail("Transfer", no, no, no)
		first, shardID := make(chan error, 1), recovery.NewShardID(a.Engine().NodeNumber, 0)
		go func() { first <- a.Engine().ReleaseShard(t.Context(), shardID, "b") }()
		rig.Pass(50 * time.Millisecond)
		close(end) // what the handler says counts when the hand-over is taken back
		synctest.Wait()
		release()
		rig.Pass(time.Second)
		rig.Want(t, "another one meanwhile", a.Engine().ReleaseShard(t.Context(), shardID, "c"), engine.ErrHandedOver)
		see()
		synctest.Wait()
		rig.Want(t, "the first one", <-first, ErrUnavailable)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(100 * time.Millisecond)
		b.PullOwn("x")
		b.Check()
	})
}
