package tasks_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// suspendMove has node b take over a shard of a into which a is moving a spooled task, and
// returns the task. Whether b has got it depends on what is held up. meanwhile runs before b takes
// over; it may be nil.
func suspendMove(t *testing.T, f *fleet, heldUp string, answer error, meanwhile func(a *node, id string)) (a, b *node, id string) {
	a = f.join("a", 1, Config{Spool: memledger.New()})
	b = f.join("b", 1, Config{})
	b.keeps.Store(true)
	a.member.Uncertain(true)
	task, err := a.Schedule(t.Context(), Request{Topic: "x", Delay: 10 * time.Second})
	if err != nil || !task.Spooled {
		t.Fatalf("Schedule: %+v, %v", task, err)
	}
	if shardID, ok := recovery.ShardIDOf(task.ID); !ok || shardID != a.Engine().Fleet.ShardID(0) {
		t.Errorf("%s does not tell its shard", task.ID)
	}
	if _, err := a.Get(t.Context(), task.ID); err != nil {
		t.Errorf("Get of a spooled task at its node: %v", err)
	}
	release := a.member.hold(heldUp)
	a.member.fail("Applied", answer)
	a.member.Uncertain(false)
	pass(time.Second)
	if meanwhile != nil {
		meanwhile(a, task.ID)
	}
	b.adopt(a)
	release()
	return a, b, task.ID
}

// Another node has taken over a shard, and with it a task that was moved there just
// before: the node whose spool it came from does not deliver it as well.
func TestSpoolOfLostShard(t *testing.T) {
	for name, answer := range map[string]error{
		"the answer comes late": nil,
		"the answer is lost":    errors.New("lost"),
	} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 0, func(t *testing.T, f *fleet) {
				a, b, id := suspendMove(t, f, "Applied", answer, nil)
				pass(time.Minute)
				if d := b.pullOwn("x", id); !b.ack(d[0]).Recorded {
					t.Error("not recorded")
				}
				a.pullOwn("x")
				if s := a.Stats().Spool; s.Tasks != 0 || s.Moved != 1 {
					t.Errorf("spool: %+v", s)
				}
			})
		})
	}
}

// The same, but the task was not moved: it is delivered by the node that has it.
func TestSpoolKeepsWhatALostShardDidNotGet(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b, id := suspendMove(t, f, "Apply", nil, nil)
		pass(time.Minute)
		if d := a.pullOwn("x", id); !a.ack(d[0]).Recorded {
			t.Error("not recorded")
		}
		b.pullOwn("x")
		if s := a.Stats().Spool; s.Tasks != 0 || s.Moved != 0 {
			t.Errorf("spool: %+v", s)
		}
	})
}

// The same, and its receiver has acknowledged the task while it was not known whether it was moved:
// it does not come back.
func TestSpoolForgetsWhatEndedInDoubt(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b, _ := suspendMove(t, f, "Apply", nil, func(a *node, id string) {
			pass(10 * time.Second)
			if got := a.ack(a.pullOwn("x", id)[0]); got.Err != nil || got.Recorded {
				t.Errorf("Ack: %+v", got)
			}
		})
		pass(time.Minute)
		a.pullOwn("x")
		b.pullOwn("x")
		if s := a.Stats().Spool; s.Tasks != 0 || s.Moved != 0 {
			t.Errorf("spool: %+v", s)
		}
	})
}

// A task that is being delivered comes from the spool into a shard that is being handed over:
// the delivery goes over with it, and is not made again.
func TestReleaseWaitsForTheSpool(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 1, Config{Spool: memledger.New()})
		b := f.join("b", 1, Config{})
		b.keeps.Store(true)
		a.member.Uncertain(true)
		task, err := a.Schedule(t.Context(), Request{Topic: "x"})
		if err != nil || !task.Spooled {
			t.Fatalf("Schedule: %+v, %v", task, err)
		}
		pass(10 * time.Millisecond)
		d := a.pullOwn("x", task.ID)[0]
		release := a.member.hold("Apply")
		a.member.Uncertain(false)
		pass(time.Second)
		done := make(chan error, 1)
		go func() { done <- a.handTo(b) }()
		pass(100 * time.Millisecond)
		release()
		want(t, "hand-over", <-done, nil)
		pass(time.Second)
		b.pullOwn("x")
		want(t, "ack", b.ack(d).Err, nil)
		b.check()
	})
}

// What is spooled for a shard that another node holds waits for that shard, and is
// moved when it comes back.
func TestSpoolWaitsForItsShard(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 1, Config{Spool: memledger.New()})
		b := f.join("b", 1, Config{})
		b.keeps.Store(true)
		b.adopt(a)
		a.member.Uncertain(true)
		task, err := a.Schedule(t.Context(), Request{Topic: "x", Delay: time.Hour})
		want(t, "Schedule", err, nil)
		a.member.Uncertain(false)
		pass(time.Minute)
		if s := a.Stats().Spool; s.Tasks != 1 {
			t.Errorf("spool: %+v", s)
		}
		b.keeps.Store(false)
		pass(time.Minute)
		synctest.Wait()
		if s := a.Stats().Spool; s.Tasks != 0 || s.Moved != 1 {
			t.Errorf("spool: %+v", s)
		}
		if err := a.Cancel(t.Context(), task.ID); err != nil {
			t.Error(err)
		}
	})
}

// What only this node's spool has, no other node could deliver: a drain waits until the ledger
// has it, and otherwise leaves everything where it is, and delivered.
func TestDrainEmptiesTheSpool(t *testing.T) {
	for name, back := range map[string]bool{"the ledger comes back": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 0, func(t *testing.T, f *fleet) {
				a := f.join("a", 2, Config{Spool: memledger.New()})
				b := f.join("b", 1, Config{})
				a.member.Uncertain(true)
				task, err := a.Schedule(t.Context(), Request{Topic: "x", Delay: 20 * time.Second})
				if err != nil || !task.Spooled {
					t.Fatalf("Schedule: %+v, %v", task, err)
				}
				done := make(chan error, 1)
				go func() { done <- a.Drain(t.Context()) }()
				pass(10 * time.Second)
				if len(done) != 0 || a.Stats().ShardsHeld != 2 {
					t.Fatalf("it did not wait; %d shards are held", a.Stats().ShardsHeld)
				}
				a.member.Uncertain(!back)
				pass(10 * time.Second)
				if !back {
					want(t, "Drain", <-done, ErrUnavailable)
					a.pullOwn("x", task.ID)
					return
				}
				want(t, "Drain", <-done, nil)
				a.wantEmpty()
				b.pullOwn("x", task.ID)
				b.check()
			})
		})
	}
}

// A spooled task that is replaced under the id which Lapse made for it is in no directory,
// and ends like any other.
func TestReplaceOfSpooled(t *testing.T) {
	for name, moved := range map[string]bool{"in the spool": false, "in the ledger": true} {
		t.Run(name, func(t *testing.T) {
			spooling(t, func(t *testing.T, _ *fleet, a, b *node) {
				b.member.Uncertain(true)
				task := b.must(Request{Topic: "x", Delay: time.Hour})
				Mutex(b.Engine()).Lock()
				b.Engine().Spool.LineLocked(b.Engine().LineOf([]byte(task.ID))).Blocked = !moved
				Mutex(b.Engine()).Unlock()
				b.member.Uncertain(false)
				_, err := b.Replace(t.Context(), Request{ID: task.ID, Topic: "y", Delay: 2 * time.Hour})
				want(t, "Replace", err, nil)
				pass(time.Second)
				if left := b.Stats().Spool.Tasks == 0; left != moved {
					t.Errorf("moved: %v", left)
				}
				want(t, "Cancel", a.Cancel(t.Context(), task.ID), nil)
				pass(cluster.RemoveAfter + 2*time.Second)
			})
		})
	}
}
