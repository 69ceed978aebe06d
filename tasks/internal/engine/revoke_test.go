package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A shard that others have adopted leaves memory, and nothing else does: the scheduler
// goes on with the others.
func TestShardsLost(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 3, Config{}), f.Join("b", 1, Config{})
		for i := range 900 {
			a.Create(Request{ID: a.IDAt(i % 3), Topic: "x", Group: fmt.Sprint(i % 7), Delay: time.Duration(i%2) * time.Minute})
		}
		dead := a.IDAt(0)
		a.Create(Request{ID: dead, Topic: "y"})
		if _, err := a.Settle(t.Context(), Verdict{Verb: Bury}, []string{a.PullOwn("y", dead)[0].Receipt()}); err != nil {
			t.Fatal(err)
		}
		b.Keeps.Store(true)
		b.Adopt(a)
		a.WantEmpty()
		if st := a.Stats(); st.ShardsLost != 3 || st.TasksDropped != 900 || st.Total.Dead != 0 || st.ShardsHeld != 0 {
			t.Errorf("%d lost, %d dropped, %d dead, %d held", st.ShardsLost, st.TasksDropped, st.Total.Dead, st.ShardsHeld)
		}
		select {
		case <-a.Done():
			t.Fatal("the scheduler has ended:", a.Err())
		default:
		}
		b.Check()
		if n := b.Stats().Total; n.Pending+n.Ready != 900 || n.Dead != 1 {
			t.Errorf("%+v", n)
		}
		rig.Pass(aFewSweeps)
		if lines := a.Log.Count("shards lost to other nodes"); lines != 1 || a.Log.Count("shards=3 ") != 1 {
			t.Errorf("%d lines about the lost shards", lines)
		}
		b.Keeps.Store(false)
		// Its own shards come home, under numbers that were used before.
		rig.Pass(5 * time.Second)
		a.Check()
		if n := a.Stats().Total; n.Pending+n.Ready != 900 || n.Dead != 1 {
			t.Errorf("%+v", n)
		}
		rig.Mutex(a.Engine()).Lock()
		defer rig.Mutex(a.Engine()).Unlock()
		if len(a.Engine().Shards.List) > 3 {
			t.Errorf("%d numbers for 3 shards", len(a.Engine().Shards.List))
		}
	})
}

// Giving up an adopted shard in which nothing was left is no loss: it is INFO, and not counted.
func TestRetiredShardIsNotLost(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		a.Crash()
		b.Adopt(a)
		if n := b.Stats().ShardsHeld; n != 2 {
			t.Fatalf("%d shards are held", n)
		}
		rig.Mutex(b.Engine()).Lock()
		adopted := slices.IndexFunc(b.Engine().Shards.List, func(h *engine.OwnedShard) bool {
			return h != nil && h.ShardID == recovery.NewShardID(a.Engine().NodeNumber, 0)
		})
		rig.Mutex(b.Engine()).Unlock()
		b.Engine().RevokeShard(adopted, fmt.Errorf("%w: shard %d", recovery.ErrRetired, adopted))
		rig.Pass(time.Second)
		if s := b.Stats(); s.ShardsLost != 0 || s.ShardsHeld != 1 {
			t.Errorf("%d shards lost, %d held", s.ShardsLost, s.ShardsHeld)
		}
		if !b.Log.Has(`level=INFO msg="empty adopted shard retired`) || b.Log.Has("level=ERROR") {
			t.Error(b.Log.All())
		}
	})
}

// What a handler says of a delivery whose shard was lost is told to the new holder, once,
// and counts there.
func TestLostWhileDelivering(t *testing.T) {
	for name, row := range map[string]struct {
		err  error
		told string
		gone bool
	}{
		"ack":     {nil, fmt.Sprint(Ack, " "), true},
		"release": {RetryAfter(errors.New("busy"), time.Hour), fmt.Sprint(Release, " busy"), false},
		"bury":    {Kill(errors.New("no use")), fmt.Sprint(Bury, " no use"), false},
	} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				f.Spies = true
				a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
				end := make(chan struct{})
				rig.Want(t, "Handle", a.Handle("x", func(context.Context, *Delivery) error { <-end; return row.err }), nil)
				id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
				synctest.Wait()
				b.Keeps.Store(true)
				b.Adopt(a)
				rig.Mutex(a.Engine()).Lock()
				used := a.Engine().Store.Len()
				rig.Mutex(a.Engine()).Unlock()
				if used != 0 {
					t.Errorf("%d tasks are left", used)
				}
				close(end)
				synctest.Wait()
				if told := a.Told.List(); len(told) != 1 || told[0] != row.told {
					t.Fatalf("told %q", told)
				}
				got, err := b.Engine().Get(t.Context(), id)
				if row.gone {
					rig.Want(t, "Get", err, ErrNotFound)
				} else if err != nil || got.Attempt != 1 || got.LastError == "" {
					t.Errorf("Get = %+v, %v", got, err)
				}
				if n := a.Stats().LostDeliveries; n != 1 {
					t.Errorf("%d deliveries were lost", n)
				}
				b.Check()
			})
		})
	}
}

// A verdict is told again until the new holder has an ear for it.
func TestVerdictIsRepeated(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		f.Spies = true
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		end := make(chan struct{})
		rig.Want(t, "Handle", a.Handle("x", func(context.Context, *Delivery) error { <-end; return nil }), nil)
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		synctest.Wait()
		b.Member.Uncertain(true)
		b.Adopt(a)
		close(end)
		rig.Pass(time.Second)
		b.Member.Uncertain(false)
		rig.Pass(5 * time.Second)
		if told := a.Told.List(); len(told) < 2 || len(told) > 10 {
			t.Errorf("told %d times", len(told))
		}
		holder := f.Node(f.Ledger.Holder(a.ShardID(0)))
		_, err := holder.Engine().Get(t.Context(), id)
		rig.Want(t, "Get", err, ErrNotFound)
	})
}

// Writes of a lost shard are answered: those that were sent may have landed, and the
// others have not. An acknowledgement among them counts at the new holder, also in a topic that
// keeps its finished tasks.
func TestLostWhileWriting(t *testing.T) {
	t.Run("deleted", func(t *testing.T) { lostWhileWriting(t, 0) })
	t.Run("kept", func(t *testing.T) { lostWhileWriting(t, time.Hour) })
}

func lostWhileWriting(t *testing.T, keep time.Duration) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		cfg := Config{Topics: map[string]TopicSettings{"y": {KeepFinished: keep}}}
		a, b := f.Join("a", 1, cfg), f.Join("b", 1, cfg)
		moved, acked := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Minute}), a.Create(Request{ID: a.IDAt(0), Topic: "y"})
		d := a.PullOwn("y", acked)[0]
		release := a.Member.Hold("Apply")
		answers := make(map[string]chan error)
		ask := func(what string, do func() error) {
			ch := make(chan error, 1)
			answers[what] = ch
			go func() { ch <- do() }()
			synctest.Wait()
		}
		ask("sent", func() error { return a.CreateOwned(Request{ID: a.IDAt(0), Topic: "x"}) })
		ask("unsent creation", func() error { return a.CreateOwned(Request{ID: a.IDAt(0), Topic: "x"}) })
		ask("unsent move", func() error {
			_, err := a.Engine().Reschedule(t.Context(), moved, Move{Delay: rig.Ptr(time.Hour)})
			return err
		})
		ask("behind it", func() error { return a.Engine().CancelLocal(t.Context(), moved) })
		ask("ack", func() error {
			s := a.Ack(d)
			if s.Recorded {
				return errors.New("recorded")
			}
			return s.Err
		})
		b.Keeps.Store(true)
		b.Member.AdoptFrom(a.Member.Member)
		synctest.Wait()
		release()
		rig.Pass(100 * time.Millisecond)
		for what, kind := range map[string]error{
			"sent": ErrUnknown, "unsent creation": ErrUnavailable, "unsent move": ErrUnavailable, "ack": nil,
		} {
			select {
			case err := <-answers[what]:
				rig.Want(t, what, err, kind)
			default:
				t.Errorf("%s was not answered", what)
			}
		}
		if err := <-answers["behind it"]; err == nil {
			t.Error("a task of a lost shard was cancelled")
		}
		got, err := b.Engine().Get(t.Context(), acked)
		if keep == 0 {
			rig.Want(t, "Get of the acknowledged one", err, ErrNotFound)
		} else if err != nil || got.Outcome != OutcomeDelivered || got.Attempt != 1 {
			t.Errorf("Get of the acknowledged one = %+v, %v", got, err)
		}
		if got, err := b.Engine().Get(t.Context(), moved); err != nil || got.Revision != 1 {
			t.Errorf("Get of the moved one = %+v, %v", got, err)
		}
		b.Check()
		b.Keeps.Store(false)
		rig.Pass(10 * time.Second)
		a.Check()
	})
}

// A node that has been cut off notices with the first batch that is refused.
func TestLossNoticedByABatch(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Minute})
		a.Member.Cut(true)
		b.Adopt(a)
		if n := a.Stats().ShardsLost; n != 0 {
			t.Fatalf("%d shards were lost by a node that is cut off", n)
		}
		_, err := a.Reschedule(t.Context(), id, Move{Delay: rig.Ptr(time.Hour)})
		rig.Want(t, "Reschedule", err, ErrUnknown)
		a.Member.Cut(false)
		rig.Pass(time.Second)
		if n := a.Stats().ShardsLost; n != 1 {
			t.Errorf("%d shards were lost", n)
		}
		rig.Pass(5 * time.Second)
		a.Check()
		if got, err := a.Engine().Get(t.Context(), id); err != nil || got.Revision != 1 {
			t.Errorf("Get = %+v, %v", got, err)
		}
	})
}

// The number of a shard that is lost while it is read stands for it until its reader has
// ended: what that brings would be taken for another shard's.
func TestLostWhileItIsRead(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b, c := f.Join("a", 1, Config{}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{})
		a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		a.Crash()
		release := b.Member.Hold("ScanShard")
		b.Adopt(a)
		c.Keeps.Store(true)
		c.Adopt(b)
		rig.Pass(time.Second)
		if _, _, draining := b.Engine().OwnedShards(); draining != 1 {
			t.Errorf("%d shards are leaving memory", draining)
		}
		release()
		rig.Pass(time.Second)
		b.WantEmpty()
		c.Check()
	})
}

// A shard that is lost while an id is being registered for it waits for that: the caller that has
// asked the directory comes back to the slot.
func TestLostWhileRegistering(t *testing.T) {
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		var register func()
		f.Before = func(m *rig.FaultyMember) { register = m.Hold("Update") }
		d := f.Start("d", 1, Config{})
		synctest.Wait()
		scheduled := make(chan error, 1)
		go func() {
			_, err := d.Schedule(t.Context(), Request{ID: "order-1", Topic: "x", Delay: time.Hour})
			scheduled <- err
		}()
		synctest.Wait()
		a.Member.AdoptFrom(d.Member.Member)
		rig.Pass(50 * time.Millisecond)
		if _, _, draining := d.Engine().OwnedShards(); draining != 1 {
			t.Errorf("%d shards are leaving memory", draining)
		}
		register()
		rig.Want(t, "Schedule", <-scheduled, nil)
		rig.Pass(10 * time.Second)
		a.MustGet("order-1")
	})
}

// Of a loss it is told by the ledger and by every batch that is refused. What comes after
// memory has forgotten the shard counts for nothing: its number may be another one's soon.
func TestLossIsToldLate(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		b.Keeps.Store(true)
		b.Adopt(a)
		a.WantEmpty()
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		rig.Want(t, "release", b.Engine().ReleaseShard(t.Context(), shardID, "a"), nil)
		a.Engine().RevokeShard(0, recovery.ErrLost)
		if taken, err := a.Engine().Fleet.Accept(t.Context(), shardID); !taken || err != nil {
			t.Fatalf("accept = %v, %v", taken, err)
		}
		rig.Pass(time.Second)
		if n := a.Stats(); n.ShardsLost != 1 || n.ShardsGained != 1 || n.ShardsHeld != 1 {
			t.Errorf("%d shards lost, %d gained, %d held", n.ShardsLost, n.ShardsGained, n.ShardsHeld)
		}
		a.PullOwn("x", id)
		a.Check()
	})
}

// Only the loss of its name ends a scheduler.
func TestEnded(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{})
		a.Engine().Revoke(recovery.ErrLost)
		<-a.Done()
		rig.Want(t, "Err", a.Err(), recovery.ErrLost)
	})
}
