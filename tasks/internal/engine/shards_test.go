package engine_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// What a dead node has held is delivered by who adopts it, and so are its dead tasks kept.
func TestAdopted(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 3, Config{}), f.Join("b", 2, Config{})
		due, later, buried := a.IDAt(0), a.IDAt(1), a.IDAt(2)
		a.Create(Request{ID: due, Topic: "x"})
		a.Create(Request{ID: later, Topic: "x", Delay: time.Minute})
		a.Create(Request{ID: buried, Topic: "y"})
		d := a.PullOwn("y", buried)[0]
		if _, err := a.Settle(t.Context(), Verdict{Verb: Bury}, []string{d.Receipt()}); err != nil {
			t.Fatal(err)
		}
		b.Create(Request{Topic: "x", Delay: time.Hour})
		a.Crash()
		b.Adopt(a)
		b.Ack(b.PullOwn("x", due)[0])
		if got, err := b.Engine().Get(t.Context(), later); err != nil || got.State != Pending {
			t.Errorf("Get = %+v, %v", got, err)
		}
		if got, err := b.Engine().Get(t.Context(), buried); err != nil || got.State != Dead {
			t.Errorf("Get of the dead = %+v, %v", got, err)
		}
		_, err := b.Schedule(t.Context(), Request{ID: buried, Topic: "y"})
		rig.Want(t, "Schedule of an id that is dead", err, ErrDead)
		if st := b.Stats(); st.Total.Dead != 1 || st.ShardsGained != 3 || st.ShardsHeld != 5 || st.ShardsLost != 0 {
			t.Errorf("%d dead, %d gained, %d held, %d lost", st.Total.Dead, st.ShardsGained, st.ShardsHeld, st.ShardsLost)
		}
		rig.Pass(time.Minute)
		b.Ack(b.PullOwn("x", later)[0])
		if n, err := b.Admin().DeleteDead(t.Context(), "y", nil); n != 1 || err != nil {
			t.Errorf("DeleteDead = %d, %v", n, err)
		}
		b.Check()
	})
}

// While a acquired shard is being read, what is due is delivered, what has not been read yet
// is asked for, and memory does not claim to know everything.
func TestBusyWhileAShardIsRead(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		mine := b.Create(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Second})
		a.Crash()
		release := b.Member.Hold("ScanShard")
		b.Adopt(a)
		if b.Engine().IsReplayed() {
			t.Error("memory claims to know everything")
		}
		if !b.Readiness().Ready {
			t.Error("it is not ready because of a shard that it has adopted")
		}
		if _, err := b.Engine().Get(t.Context(), id); err != nil {
			t.Errorf("Get = %v", err)
		}
		rig.Pass(2 * time.Second)
		b.PullOwn("x", mine)
		release()
		rig.Pass(time.Second)
		if !b.Engine().IsReplayed() {
			t.Error("the shard was not read")
		}
		b.Check()
	})
}

// An id is not free while no node knows which tasks are dead in a shard that was acquired.
func TestNothingIsCreatedBeforeTheDeadAreKnown(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		if _, err := a.Settle(t.Context(), Verdict{Verb: Bury}, []string{a.PullOwn("x", id)[0].Receipt()}); err != nil {
			t.Fatal(err)
		}
		a.Crash()
		release := b.Member.Hold("ScanDead")
		b.Adopt(a)
		_, err := b.Schedule(t.Context(), Request{ID: id, Topic: "x"})
		if !errors.Is(err, ErrReplaying) && !errors.Is(err, ErrUnavailable) {
			t.Errorf("Schedule = %v", err)
		}
		_, err = b.Engine().Get(t.Context(), id)
		rig.Want(t, "Get", err, ErrReplaying)
		release()
		rig.Pass(time.Second)
		_, err = b.Schedule(t.Context(), Request{ID: id, Topic: "x"})
		rig.Want(t, "Schedule", err, ErrDead)
		b.Check()
	})
}

// A shard that was acquired twice is read once.
func TestAcquiredTwice(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		a.Crash()
		b.Adopt(a)
		b.Engine().AcquireShard(1, false)
		rig.Pass(time.Second)
		if n := b.Stats().ShardsGained; n != 1 {
			t.Errorf("%d shards were acquired", n)
		}
		b.PullOwn("x", id)
		b.Check()
	})
}

// A shard that comes back before memory has evicted it waits for that: the tasks of the
// two terms have the same ids.
func TestReacquireWaitsForEviction(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{AnswerWithin: 20 * time.Millisecond}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Minute})
		release := a.Member.Hold("Apply")
		_, err := a.Reschedule(t.Context(), id, Move{Delay: rig.Ptr(2 * time.Minute)})
		rig.Want(t, "Reschedule", err, ErrUnknown)
		b.Adopt(a)
		a.Adopt(b)
		if n := a.Stats().ShardsHeld; n != 1 {
			t.Fatalf("%d shards are held", n)
		}
		if a.Engine().IsReplayed() {
			t.Fatal("the shard was read before its former tenure was gone")
		}
		release()
		rig.Pass(time.Second)
		a.Check()
		rig.Pass(time.Minute)
		a.PullOwn("x", id)
	})
}

// A task that was finished here, and whose id was used again while another node held its
// shard, is not finished a second time when the shard comes back.
func TestIDUsedAgainElsewhere(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Minute})
		rig.Want(t, "Cancel", a.Cancel(t.Context(), id), nil)
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		rig.Want(t, "take", b.Cluster().AcceptOffer(t.Context(), shardID, "a"), nil)
		synctest.Wait() // before the shard is asked for again
		b.Create(Request{ID: id, Topic: "x", Delay: time.Minute})
		rig.Pass(10 * time.Second)
		if f.Ledger.Holder(shardID) != "a" {
			t.Fatal("the shard has not come home")
		}
		a.Check()
		rig.Pass(time.Minute)
		a.PullOwn("x", id)
	})
}

// Of misfired tasks of a group only the newest is delivered, also when they come with
// several shards of a node that has died.
func TestCoalescedAfterAdoption(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireCoalesce}}
		a, b := f.Join("a", 4, Config{Topics: topics}), f.Join("b", 1, Config{Topics: topics})
		var newest string
		for i := range 8 {
			newest = a.Create(Request{ID: a.IDAt(i % 4), Topic: "x", Group: "g", Delay: time.Second + time.Duration(i)*time.Millisecond})
		}
		held := b.Create(Request{ID: b.IDAt(0), Topic: "x", Group: "g", Delay: time.Second})
		a.Crash()
		rig.Pass(2 * time.Second)
		b.Adopt(a)
		rig.Pass(2 * time.Second)
		b.PullOwn("x", held, newest)
		if n := b.Stats().Total.Skipped; n != 7 {
			t.Errorf("%d were skipped", n)
		}
		b.Check()
	})
}

// Misfired tasks are not decided about while a shard is being read; also when that ends
// because the shard is lost.
func TestCoalescedOnceNothingIsRead(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireCoalesce}}
		a, b, c := f.Join("a", 1, Config{Topics: topics}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{Topics: topics})
		a.Create(Request{ID: a.IDAt(0), Topic: "x", Group: "g", Delay: time.Second})
		newest := a.Create(Request{ID: a.IDAt(0), Topic: "x", Group: "g", Delay: 2 * time.Second})
		b.Create(Request{ID: b.IDAt(0), Topic: "y", Delay: time.Hour})
		a.Crash()
		b.Crash()
		rig.Pass(3 * time.Second)
		release := c.Member.Hold("ScanShard")
		c.Adopt(b)
		release()
		release = c.Member.Hold("Apply") // skipping is held up, not choosing
		c.Adopt(a)
		rig.Pass(time.Second)
		release()
		rig.Pass(time.Second)
		c.PullOwn("x", newest)
		if n := c.Stats().Total.Skipped; n != 1 {
			t.Errorf("%d were skipped", n)
		}
		c.Check()
	})
}

func TestDecidedWhenTheLastShardIsLostUnread(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireCoalesce}}
		a, b, c := f.Join("a", 1, Config{Topics: topics}), f.Join("b", 1, Config{}), f.Join("c", 1, Config{Topics: topics})
		a.Create(Request{ID: a.IDAt(0), Topic: "x", Group: "g", Delay: time.Second})
		newest := a.Create(Request{ID: a.IDAt(0), Topic: "x", Group: "g", Delay: 2 * time.Second})
		lost := b.Create(Request{ID: b.IDAt(0), Topic: "y", Delay: time.Hour})
		a.Crash()
		b.Crash()
		rig.Pass(3 * time.Second)
		c.Adopt(a)
		release := c.Member.Hold("ScanShard")
		c.Adopt(b)
		rig.Mutex(c.Engine()).Lock()
		c.Engine().TopicTable.ByName["x"].Undecided = true // as if it had come with that shard
		rig.Mutex(c.Engine()).Unlock()
		d := f.Join("d", 1, Config{})
		d.Adopt(c)
		release()
		rig.Pass(time.Second)
		rig.Mutex(c.Engine()).Lock()
		undecided := c.Engine().TopicTable.ByName["x"].Undecided
		rig.Mutex(c.Engine()).Unlock()
		if undecided || !c.Engine().IsReplayed() {
			t.Errorf("undecided %v, replayed %v", undecided, c.Engine().IsReplayed())
		}
		d.PullOwn("x", newest)
		if _, err := d.Get(t.Context(), lost); err != nil {
			t.Error(err)
		}
		c.Check()
	})
}

// The first replay and adoption together: what the former owner has left is read once.
func TestAdoptedDuringTheFirstReplay(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 2, Config{})
		var ids []string
		for i := range 200 {
			ids = append(ids, a.Create(Request{ID: a.IDAt(i % 2), Topic: "x"}))
		}
		b := f.Join("b", 2, Config{})
		for range 100 {
			b.Create(Request{Topic: "y", Delay: time.Hour})
		}
		b.Crash()
		a.Crash()
		b = f.Join("b", 2, Config{})
		b.Adopt(a)
		rig.Pass(time.Second)
		b.PullOwn("x", ids...)
		b.Check()
	})
}
