package cluster_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// suspendMove has node b take over a shard of a into which a is moving a spooled task, and
// returns the task. Whether b has got it depends on what is held up. meanwhile runs before b takes
// over; it may be nil.
func suspendMove(t *testing.T, f *rig.Fleet, heldUp string, answer error, meanwhile func(a *rig.Node, id string)) (a, b *rig.Node, id string) {
	a = f.Join("a", 1, Config{Spool: memledger.New()})
	b = f.Join("b", 1, Config{})
	b.Keeps.Store(true)
	a.Member.Uncertain(true)
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
	release := a.Member.Hold(heldUp)
	a.Member.Fail("Applied", answer)
	a.Member.Uncertain(false)
	rig.Pass(time.Second)
	if meanwhile != nil {
		meanwhile(a, task.ID)
	}
	b.Adopt(a)
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
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				a, b, id := suspendMove(t, f, "Applied", answer, nil)
				rig.Pass(time.Minute)
				if d := b.PullOwn("x", id); !b.Ack(d[0]).Recorded {
					t.Error("not recorded")
				}
				a.PullOwn("x")
				if s := a.Stats().Spool; s.Tasks != 0 || s.Moved != 1 {
					t.Errorf("spool: %+v", s)
				}
			})
		})
	}
}

// The same, but the task was not moved: it is delivered by the node that has it.
func TestSpoolKeepsWhatALostShardDidNotGet(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b, id := suspendMove(t, f, "Apply", nil, nil)
		rig.Pass(time.Minute)
		if d := a.PullOwn("x", id); !a.Ack(d[0]).Recorded {
			t.Error("not recorded")
		}
		b.PullOwn("x")
		if s := a.Stats().Spool; s.Tasks != 0 || s.Moved != 0 {
			t.Errorf("spool: %+v", s)
		}
	})
}

// The same, and its receiver has acknowledged the task while it was not known whether it was moved:
// it does not come back.
func TestSpoolForgetsWhatEndedInDoubt(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b, _ := suspendMove(t, f, "Apply", nil, func(a *rig.Node, id string) {
			rig.Pass(10 * time.Second)
			if got := a.Ack(a.PullOwn("x", id)[0]); got.Err != nil || got.Recorded {
				t.Errorf("Ack: %+v", got)
			}
		})
		rig.Pass(time.Minute)
		a.PullOwn("x")
		b.PullOwn("x")
		if s := a.Stats().Spool; s.Tasks != 0 || s.Moved != 0 {
			t.Errorf("spool: %+v", s)
		}
	})
}

// A task that is being delivered comes from the spool into a shard that is being handed over:
// the delivery goes over with it, and is not made again.
func TestReleaseWaitsForTheSpool(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{Spool: memledger.New()})
		b := f.Join("b", 1, Config{})
		b.Keeps.Store(true)
		a.Member.Uncertain(true)
		task, err := a.Schedule(t.Context(), Request{Topic: "x"})
		if err != nil || !task.Spooled {
			t.Fatalf("Schedule: %+v, %v", task, err)
		}
		rig.Pass(10 * time.Millisecond)
		d := a.PullOwn("x", task.ID)[0]
		release := a.Member.Hold("Apply")
		a.Member.Uncertain(false)
		rig.Pass(time.Second)
		done := make(chan error, 1)
		go func() { done <- a.HandTo(b) }()
		rig.Pass(100 * time.Millisecond)
		release()
		rig.Want(t, "hand-over", <-done, nil)
		rig.Pass(time.Second)
		b.PullOwn("x")
		rig.Want(t, "ack", b.Ack(d).Err, nil)
		b.Check()
	})
}

// What is spooled for a shard that another node holds waits for that shard, and is
// moved when it comes back.
func TestSpoolWaitsForItsShard(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{Spool: memledger.New()})
		b := f.Join("b", 1, Config{})
		b.Keeps.Store(true)
		b.Adopt(a)
		a.Member.Uncertain(true)
		task, err := a.Schedule(t.Context(), Request{Topic: "x", Delay: time.Hour})
		rig.Want(t, "Schedule", err, nil)
		a.Member.Uncertain(false)
		rig.Pass(time.Minute)
		if s := a.Stats().Spool; s.Tasks != 1 {
			t.Errorf("spool: %+v", s)
		}
		b.Keeps.Store(false)
		rig.Pass(time.Minute)
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
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				a := f.Join("a", 2, Config{Spool: memledger.New()})
				b := f.Join("b", 1, Config{})
				a.Member.Uncertain(true)
				task, err := a.Schedule(t.Context(), Request{Topic: "x", Delay: 20 * time.Second})
				if err != nil || !task.Spooled {
					t.Fatalf("Schedule: %+v, %v", task, err)
				}
				done := make(chan error, 1)
				go func() { done <- a.Drain(t.Context()) }()
				rig.Pass(10 * time.Second)
				if len(done) != 0 || a.Stats().ShardsHeld != 2 {
					t.Fatalf("it did not wait; %d shards are held", a.Stats().ShardsHeld)
				}
				a.Member.Uncertain(!back)
				rig.Pass(10 * time.Second)
				if !back {
					rig.Want(t, "Drain", <-done, ErrUnavailable)
					a.PullOwn("x", task.ID)
					return
				}
				rig.Want(t, "Drain", <-done, nil)
				a.WantEmpty()
				b.PullOwn("x", task.ID)
				b.Check()
			})
		})
	}
}

// A spooled task that is replaced under the id which Lapse made for it is in no directory,
// and ends like any other.
func TestReplaceOfSpooled(t *testing.T) {
	for name, moved := range map[string]bool{"in the spool": false, "in the ledger": true} {
		t.Run(name, func(t *testing.T) {
			spooling(t, func(t *testing.T, _ *rig.Fleet, a, b *rig.Node) {
				b.Member.Uncertain(true)
				task := b.Must(Request{Topic: "x", Delay: time.Hour})
				rig.Mutex(b.Engine()).Lock()
				b.Engine().Spool.LineLocked(b.Engine().LineOf([]byte(task.ID))).Blocked = !moved
				rig.Mutex(b.Engine()).Unlock()
				b.Member.Uncertain(false)
				_, err := b.Replace(t.Context(), Request{ID: task.ID, Topic: "y", Delay: 2 * time.Hour})
				rig.Want(t, "Replace", err, nil)
				rig.Pass(time.Second)
				if left := b.Stats().Spool.Tasks == 0; left != moved {
					t.Errorf("moved: %v", left)
				}
				rig.Want(t, "Cancel", a.Cancel(t.Context(), task.ID), nil)
				rig.Pass(cluster.RemoveAfter + 2*time.Second)
			})
		})
	}
}
