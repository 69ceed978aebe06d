package tasks_test

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
)

// handTo hands the first of a node's own shards over, with as many calls as that takes.
func (n *node) handTo(to *node) error {
	for {
		err := to.Cluster().AcceptOffer(n.t.Context(), n.shardID(0), n.Engine().Config.Node)
		if !errors.Is(err, engine.ErrHandingOver) {
			return err
		}
	}
}

// A shard changes hands with its open deliveries: those that were pulled, and those that a
// handler is making, are settled at the new holder, and not made again.
func TestReleaseWithOpenDeliveries(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		f.spies = true
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		end := make(chan struct{})
		want(t, "Handle", a.Handle("handled", func(context.Context, *Delivery) error { <-end; return nil }), nil)
		pulled, handled := a.create(Request{ID: a.idAt(0), Topic: "x"}), a.create(Request{ID: a.idAt(0), Topic: "handled"})
		a.create(Request{ID: a.idAt(0), Topic: "y", Delay: time.Minute})
		d := a.pullOwn("x", pulled)[0]
		b.keeps.Store(true)
		pass(10 * time.Second)
		want(t, "hand-over", a.handTo(b), nil)
		pass(100 * time.Millisecond)
		if n := a.Stats(); n.ShardsYielded != 1 || n.ShardsLost != 0 || n.LostDeliveries != 0 || n.TasksDropped != 3 {
			t.Errorf("%d transferred, %d lost, %d deliveries lost, %d dropped", n.ShardsYielded, n.ShardsLost, n.LostDeliveries, n.TasksDropped)
		}
		if log := b.log.all(); strings.Count(log, `level=INFO msg="a shard was taken over"`) != 1 {
			t.Errorf("the log does not tell of the hand-over:\n%s", log)
		}
		b.pullOwn("x")
		b.pullOwn("handled")
		if n := b.Stats().Total; n.Delivering != 2 || n.Pending != 1 {
			t.Errorf("%+v", n)
		}
		close(end)
		synctest.Wait()
		if told := a.told.list(); len(told) != 1 || told[0] != fmt.Sprint(Ack, " ") {
			t.Errorf("told %q", told)
		}
		if s := b.ack(d); s.Err != nil || !s.Recorded {
			t.Errorf("ack: %+v", s)
		}
		for _, id := range []string{pulled, handled} {
			_, err := b.Engine().Get(t.Context(), id)
			want(t, "Get", err, ErrNotFound)
		}
		a.wantEmpty()
		b.check()
	})
}

// Who is asked for a shard that it does not hold looks whether it should: its giver could
// not tell it so, or the ledger has forgotten a hand-over.
func TestAskedForWhatItDoesNotHold(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, c := f.join("a", 1, Config{}), f.join("c", 1, Config{})
		f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour})
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		want(t, "release", a.Engine().ReleaseShard(t.Context(), shardID, "b"), nil)
		a.crash()
		want(t, "take", c.Cluster().AcceptOffer(t.Context(), shardID, "b"), ErrUnavailable)
		pass(time.Second)
		want(t, "take again", c.Cluster().AcceptOffer(t.Context(), shardID, "b"), nil)
		pass(time.Second)
		if _, err := c.Engine().Get(t.Context(), id); err != nil {
			t.Error(err)
		}
		c.check()
	})
}

// What is left of a lease goes over with the delivery.
func TestReleaseKeepsTheLease(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x"})
		d := a.pullOwn("x", id)[0]
		b.keeps.Store(true)
		pass(20 * time.Second)
		want(t, "hand-over", a.handTo(b), nil)
		pass(9 * time.Second)
		b.pullOwn("x")
		pass(4 * time.Second) // the lease was 30 s, the backoff at most 2 s
		d2 := b.pullOwn("x", id)[0]
		if d2.Attempt != 2 {
			t.Errorf("attempt %d", d2.Attempt)
		}
		want(t, "ack of the first", b.ack(d).Err, ErrStale)
		want(t, "ack of the second", b.ack(d2).Err, nil)
	})
}

// While a shard is being handed over nothing new is begun with its tasks, and what is under
// way is finished before.
func TestNothingBeginsWhileAShardLeaves(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 2, Config{}), f.join("b", 1, Config{})
		due := a.create(Request{ID: a.idAt(0), Topic: "x"})
		soon := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: 50 * time.Millisecond})
		later := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour})
		other := a.create(Request{ID: a.idAt(1), Topic: "x"})
		open := a.create(Request{ID: a.idAt(0), Topic: "y"})
		d := a.pullOwn("y", open)[0]
		b.keeps.Store(true)
		release := a.member.hold("Transfer")
		done := make(chan error, 1)
		go func() { done <- a.handTo(b) }()
		pass(100 * time.Millisecond)
		a.pullOwn("x", other)
		pass(time.Second)
		a.pullOwn("x")
		for what, err := range map[string]error{
			"Cancel": a.Engine().CancelLocal(t.Context(), later),
			"Reschedule": func() error {
				_, err := a.Engine().Reschedule(t.Context(), later, Move{Delay: ptr(time.Second)})
				return err
			}(),
			"Schedule": a.createOwned(Request{ID: a.idAt(0), Topic: "x"}),
			"Settle":   a.ack(d).Err,
			"release":  a.Engine().ReleaseShard(t.Context(), a.shardID(0), "c"),
		} {
			want(t, what, err, ErrUnavailable)
		}
		if n := a.Stats(); n.Rescued != 0 {
			t.Errorf("%d tasks were rescued", n.Rescued)
		}
		release()
		want(t, "hand-over", <-done, nil)
		pass(100 * time.Millisecond)
		b.pullOwn("x", due, soon)
		want(t, "ack", b.ack(d).Err, nil)
		b.check()
	})
}

// A hand-over that does not come off changes nothing: what was parked goes on, what was
// set aside is delivered, and what a handler has said meanwhile counts.
func TestReleaseFails(t *testing.T) {
	for name, fault := range map[string]func(a *node) (heal func()){
		"the ledger refuses": func(a *node) func() {
			no := errors.New("no")
			a.member.fail("Transfer", no, no, no)
			release := a.member.hold("Transfer")
			return func() { pass(time.Second); release() }
		},
		"it takes too long": func(a *node) func() {
			release := a.member.hold("Transfer")
			return func() { pass(5 * time.Second); release() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 0, func(t *testing.T, f *fleet) {
				f.spies = true
				a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
				end := make(chan struct{})
				want(t, "Handle", a.Handle("handled", func(context.Context, *Delivery) error { <-end; return nil }), nil)
				due, pulled := a.create(Request{ID: a.idAt(0), Topic: "x"}), a.create(Request{ID: a.idAt(0), Topic: "y"})
				handled := a.create(Request{ID: a.idAt(0), Topic: "handled"})
				d := a.pullOwn("y", pulled)[0]
				heal := fault(a)
				done := make(chan error, 1)
				go func() { done <- a.handTo(b) }()
				pass(50 * time.Millisecond)
				a.keeps.Store(true) // another call would begin another hand-over
				a.pullOwn("x")
				close(end)
				synctest.Wait()
				heal()
				want(t, "hand-over", <-done, ErrUnavailable)
				pass(100 * time.Millisecond)
				a.check()
				_, err := a.Engine().Get(t.Context(), handled)
				want(t, "Get of the handled one", err, ErrNotFound)
				want(t, "ack", a.ack(d).Err, nil)
				want(t, "ack", a.ack(a.pullOwn("x", due)[0]).Err, nil)
				if told := a.told.list(); len(told) != 0 {
					t.Errorf("told %q", told)
				}
				b.check()
				a.keeps.Store(false)
				want(t, "the next hand-over", a.handTo(b), nil)
			})
		})
	}
}

// While it is not known whether a shard has changed hands, its tasks rest: the node that has it
// now may be delivering them.
func TestReleaseWithoutAnswer(t *testing.T) {
	for name, done := range map[string]bool{"it has": true, "it has not": false} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 0, func(t *testing.T, f *fleet) {
				a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
				id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Second})
				b.keeps.Store(true)
				shardID, _ := recovery.ShardIDOf(id)
				loses := "Transfer"
				if done {
					loses = "Transferred"
				}
				a.member.fail(loses, slices.Repeat([]error{recovery.ErrUnanswered}, 20)...)
				release := b.member.hold("Accept")
				want(t, "hand-over", a.handTo(b), ErrUnknown)
				want(t, "another one", a.handTo(b), engine.ErrHandedOver)
				pass(2 * time.Second)
				a.pullOwn("x")
				_, err := a.Engine().Get(t.Context(), id)
				want(t, "Get", err, ErrUnavailable)
				pass(30 * time.Second)
				release()
				if ok, err := b.member.Accept(t.Context(), shardID); !ok || err != nil {
					t.Fatalf("Accept: %v, %v", ok, err)
				}
				pass(time.Second)
				want(t, "ack", b.ack(b.pullOwn("x", id)[0]).Err, nil)
				a.wantEmpty()
			})
		})
	}
	// And what was not done after all is taken back.
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Second})
		a.member.fail("Transfer", recovery.ErrUnanswered, recovery.ErrUnanswered, recovery.ErrUnanswered, errors.New("b has gone"))
		want(t, "hand-over", a.handTo(b), ErrUnknown)
		pass(2 * time.Second)
		want(t, "ack", a.ack(a.pullOwn("x", id)[0]).Err, nil)
	})
}

// lostWhileTransferring has a third node adopt the first shard while it is being handed over.
func (n *node) lostWhileTransferring(to, adopter *node) {
	n.t.Helper()
	release := n.member.hold("Transfer")
	done := make(chan error, 1)
	go func() { done <- n.handTo(to) }()
	pass(50 * time.Millisecond)
	adopter.keeps.Store(true)
	adopter.adopt(n)
	release()
	want(n.t, "hand-over", <-done, ErrUnavailable)
	pass(50 * time.Millisecond)
}

// A shard that is lost while it is being handed over is lost, and its open deliveries are
// settled where they are known.
func TestRevokedWhileReleasing(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b, c := f.join("a", 1, Config{}), f.join("b", 1, Config{}), f.join("c", 1, Config{})
		b.keeps.Store(true)
		id := a.create(Request{ID: a.idAt(0), Topic: "x"})
		d := a.pullOwn("x", id)[0]
		a.lostWhileTransferring(b, c)
		if n := a.Stats(); n.ShardsLost != 1 || n.ShardsYielded != 0 {
			t.Errorf("%d lost, %d transferred", n.ShardsLost, n.ShardsYielded)
		}
		a.wantEmpty()
		want(t, "ack", c.ack(d).Err, nil)
		c.check()
	})
}

// The same when the ledger has told so, and only fails to change the owner: no node would
// tell it again.
func TestRevokedWhileReleasingInVain(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b, c := f.join("a", 1, Config{}), f.join("b", 1, Config{}), f.join("c", 1, Config{})
		b.keeps.Store(true)
		a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour})
		no := errors.New("no")
		a.member.fail("Transfer", no, no, no)
		a.lostWhileTransferring(b, c)
		a.wantEmpty()
		c.check()
	})
}

// Attempts that are being recorded when the hand-over begins are not made.
func TestReleaseWhileClaiming(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		b.keeps.Store(true)
		if _, err := a.SetTopic(t.Context(), "x", TopicSettings{CountCrashes: true}, -1); err != nil {
			t.Fatal(err)
		}
		id := a.create(Request{ID: a.idAt(0), Topic: "x"})
		release := a.member.hold("Apply")
		got := make(chan int, 1)
		go func() {
			ds, _ := a.Reserve(t.Context(), "x", 1, 0, 0)
			got <- len(ds)
		}()
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- a.handTo(b) }()
		pass(50 * time.Millisecond)
		release()
		want(t, "hand-over", <-done, nil)
		if n := <-got; n != 0 {
			t.Errorf("%d were delivered", n)
		}
		pass(100 * time.Millisecond)
		if d := b.pullOwn("x", id)[0]; d.Attempt != 1 {
			t.Errorf("attempt %d", d.Attempt)
		}
		b.check()
	})
}

// What is still being read is not handed over: neither at the start, nor after it was acquired.
func TestNoReleaseWhileReading(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		var release func()
		f.before = func(m *faultyMember) { release = m.hold("Scan") }
		a := f.join("a", 1, Config{})
		f.before = nil
		b := f.join("b", 1, Config{})
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		want(t, "release at the start", a.Engine().ReleaseShard(t.Context(), shardID, "b"), ErrReplaying)
		release()
		pass(3 * time.Second) // its ids are registered by then
		c := f.join("c", 1, Config{})
		a.crash()
		release = b.member.hold("ScanShard")
		b.adopt(a)
		want(t, "release of what was acquired", b.Engine().ReleaseShard(t.Context(), shardID, "c"), ErrReplaying)
		want(t, "offer of what was acquired", b.Cluster().AcceptOffer(t.Context(), shardID, "a"), engine.ErrHandingOver)
		release()
		synctest.Wait()
		want(t, "release", b.Engine().ReleaseShard(t.Context(), shardID, "c"), nil)
		pass(time.Second)
		c.check()
	})
}

// A shard whose storage has lost writes stays until they were made good.
func TestNoReleaseWhileRestoring(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour})
		release := a.member.hold("ScanShard")
		a.Engine().Rewound(a.member, 0)
		synctest.Wait()
		want(t, "hand-over", a.handTo(b), ErrUnavailable)
		release()
		pass(time.Second)
		want(t, "hand-over", a.handTo(b), nil)
		pass(50 * time.Millisecond)
		b.check()
	})
}

// While a hand-over that did not come off is still being taken back, there is no other one:
// it would take deliveries for parked that are about to go on here.
func TestNoReleaseWhileOneIsTakenBack(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		seen := make(chan struct{})
		see := sync.OnceFunc(func() { close(seen) })
		defer see()
		a, b := f.join("a", 1, Config{Observer: observerFunc(func(e Event) {
			if e.Kind == EventDelivered {
				<-seen
			}
		})}), f.join("b", 1, Config{})
		b.keeps.Store(true)
		end := make(chan struct{})
		want(t, "Handle", a.Handle("handled", func(context.Context, *Delivery) error { <-end; return nil }), nil)
		a.create(Request{ID: a.idAt(0), Topic: "handled"}) // is met first
		ids := make([]string, 2*engine.AtOnce)
		for i := range ids {
			ids[i] = a.create(Request{ID: a.idAt(0), Topic: "x"})
		}
		a.pullOwn("x", ids...)
		release := a.member.hold("Transfer")
		no := errors.New("no")
		a.member.fail("Transfer", no, no, no)
		first, shardID := make(chan error, 1), recovery.NewShardID(a.Engine().NodeNumber, 0)
		go func() { first <- a.Engine().ReleaseShard(t.Context(), shardID, "b") }()
		pass(50 * time.Millisecond)
		close(end) // what the handler says counts when the hand-over is taken back
		synctest.Wait()
		release()
		pass(time.Second)
		want(t, "another one meanwhile", a.Engine().ReleaseShard(t.Context(), shardID, "c"), engine.ErrHandedOver)
		see()
		synctest.Wait()
		want(t, "the first one", <-first, ErrUnavailable)
		want(t, "hand-over", a.handTo(b), nil)
		pass(100 * time.Millisecond)
		b.pullOwn("x")
		b.check()
	})
}
