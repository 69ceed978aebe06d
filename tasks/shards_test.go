package tasks_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
)

// What a dead node has held is delivered by who adopts it, and so are its dead tasks kept.
func TestAdopted(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 3, Config{}), f.join("b", 2, Config{})
		due, later, buried := a.idAt(0), a.idAt(1), a.idAt(2)
		a.create(Request{ID: due, Topic: "x"})
		a.create(Request{ID: later, Topic: "x", Delay: time.Minute})
		a.create(Request{ID: buried, Topic: "y"})
		d := a.pullOwn("y", buried)[0]
		if _, err := a.Settle(t.Context(), Verdict{Verb: Bury}, []string{d.Receipt()}); err != nil {
			t.Fatal(err)
		}
		b.create(Request{Topic: "x", Delay: time.Hour})
		a.crash()
		b.adopt(a)
		b.ack(b.pullOwn("x", due)[0])
		if got, err := b.Engine().Get(t.Context(), later); err != nil || got.State != Pending {
			t.Errorf("Get = %+v, %v", got, err)
		}
		if got, err := b.Engine().Get(t.Context(), buried); err != nil || got.State != Dead {
			t.Errorf("Get of the dead = %+v, %v", got, err)
		}
		_, err := b.Schedule(t.Context(), Request{ID: buried, Topic: "y"})
		want(t, "Schedule of an id that is dead", err, ErrDead)
		if st := b.Stats(); st.Total.Dead != 1 || st.ShardsGained != 3 || st.ShardsHeld != 5 || st.ShardsLost != 0 {
			t.Errorf("%d dead, %d gained, %d held, %d lost", st.Total.Dead, st.ShardsGained, st.ShardsHeld, st.ShardsLost)
		}
		pass(time.Minute)
		b.ack(b.pullOwn("x", later)[0])
		if n, err := b.DeleteDead(t.Context(), "y", nil); n != 1 || err != nil {
			t.Errorf("DeleteDead = %d, %v", n, err)
		}
		b.check()
	})
}

// While a acquired shard is being read, what is due is delivered, what has not been read yet
// is asked for, and memory does not claim to know everything.
func TestBusyWhileAShardIsRead(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour})
		mine := b.create(Request{ID: b.idAt(0), Topic: "x", Delay: time.Second})
		a.crash()
		release := b.member.hold("ScanShard")
		b.adopt(a)
		if b.Engine().IsReplayed() {
			t.Error("memory claims to know everything")
		}
		if !b.Readiness().Ready {
			t.Error("it is not ready because of a shard that it has adopted")
		}
		if _, err := b.Engine().Get(t.Context(), id); err != nil {
			t.Errorf("Get = %v", err)
		}
		pass(2 * time.Second)
		b.pullOwn("x", mine)
		release()
		pass(time.Second)
		if !b.Engine().IsReplayed() {
			t.Error("the shard was not read")
		}
		b.check()
	})
}

// An id is not free while no node knows which tasks are dead in a shard that was acquired.
func TestNothingIsCreatedBeforeTheDeadAreKnown(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x"})
		if _, err := a.Settle(t.Context(), Verdict{Verb: Bury}, []string{a.pullOwn("x", id)[0].Receipt()}); err != nil {
			t.Fatal(err)
		}
		a.crash()
		release := b.member.hold("ScanDead")
		b.adopt(a)
		_, err := b.Schedule(t.Context(), Request{ID: id, Topic: "x"})
		if !errors.Is(err, ErrReplaying) && !errors.Is(err, ErrUnavailable) {
			t.Errorf("Schedule = %v", err)
		}
		_, err = b.Engine().Get(t.Context(), id)
		want(t, "Get", err, ErrReplaying)
		release()
		pass(time.Second)
		_, err = b.Schedule(t.Context(), Request{ID: id, Topic: "x"})
		want(t, "Schedule", err, ErrDead)
		b.check()
	})
}

// A shard that was acquired twice is read once.
func TestAcquiredTwice(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x"})
		a.crash()
		b.adopt(a)
		b.Engine().AcquireShard(1, false)
		pass(time.Second)
		if n := b.Stats().ShardsGained; n != 1 {
			t.Errorf("%d shards were acquired", n)
		}
		b.pullOwn("x", id)
		b.check()
	})
}

// A shard that comes back before memory has evicted it waits for that: the tasks of the
// two terms have the same ids.
func TestReacquireWaitsForEviction(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{AnswerWithin: 20 * time.Millisecond}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Minute})
		release := a.member.hold("Apply")
		_, err := a.Reschedule(t.Context(), id, Move{Delay: ptr(2 * time.Minute)})
		want(t, "Reschedule", err, ErrUnknown)
		b.adopt(a)
		a.adopt(b)
		if n := a.Stats().ShardsHeld; n != 1 {
			t.Fatalf("%d shards are held", n)
		}
		if a.Engine().IsReplayed() {
			t.Fatal("the shard was read before its former tenure was gone")
		}
		release()
		pass(time.Second)
		a.check()
		pass(time.Minute)
		a.pullOwn("x", id)
	})
}

// A task that was finished here, and whose id was used again while another node held its
// shard, is not finished a second time when the shard comes back.
func TestIDUsedAgainElsewhere(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Minute})
		want(t, "Cancel", a.Cancel(t.Context(), id), nil)
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		want(t, "take", b.Cluster().AcceptOffer(t.Context(), shardID, "a"), nil)
		synctest.Wait() // before the shard is asked for again
		b.create(Request{ID: id, Topic: "x", Delay: time.Minute})
		pass(10 * time.Second)
		if f.ledger.Holder(shardID) != "a" {
			t.Fatal("the shard has not come home")
		}
		a.check()
		pass(time.Minute)
		a.pullOwn("x", id)
	})
}

// Of misfired tasks of a group only the newest is delivered, also when they come with
// several shards of a node that has died.
func TestCoalescedAfterAdoption(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireCoalesce}}
		a, b := f.join("a", 4, Config{Topics: topics}), f.join("b", 1, Config{Topics: topics})
		var newest string
		for i := range 8 {
			newest = a.create(Request{ID: a.idAt(i % 4), Topic: "x", Group: "g", Delay: time.Second + time.Duration(i)*time.Millisecond})
		}
		held := b.create(Request{ID: b.idAt(0), Topic: "x", Group: "g", Delay: time.Second})
		a.crash()
		pass(2 * time.Second)
		b.adopt(a)
		pass(2 * time.Second)
		b.pullOwn("x", held, newest)
		if n := b.Stats().Total.Skipped; n != 7 {
			t.Errorf("%d were skipped", n)
		}
		b.check()
	})
}

// Misfired tasks are not decided about while a shard is being read; also when that ends
// because the shard is lost.
func TestCoalescedOnceNothingIsRead(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireCoalesce}}
		a, b, c := f.join("a", 1, Config{Topics: topics}), f.join("b", 1, Config{}), f.join("c", 1, Config{Topics: topics})
		a.create(Request{ID: a.idAt(0), Topic: "x", Group: "g", Delay: time.Second})
		newest := a.create(Request{ID: a.idAt(0), Topic: "x", Group: "g", Delay: 2 * time.Second})
		b.create(Request{ID: b.idAt(0), Topic: "y", Delay: time.Hour})
		a.crash()
		b.crash()
		pass(3 * time.Second)
		release := c.member.hold("ScanShard")
		c.adopt(b)
		release()
		release = c.member.hold("Apply") // skipping is held up, not choosing
		c.adopt(a)
		pass(time.Second)
		release()
		pass(time.Second)
		c.pullOwn("x", newest)
		if n := c.Stats().Total.Skipped; n != 1 {
			t.Errorf("%d were skipped", n)
		}
		c.check()
	})
}

func TestDecidedWhenTheLastShardIsLostUnread(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		topics := map[string]TopicSettings{"x": {Misfire: MisfireCoalesce}}
		a, b, c := f.join("a", 1, Config{Topics: topics}), f.join("b", 1, Config{}), f.join("c", 1, Config{Topics: topics})
		a.create(Request{ID: a.idAt(0), Topic: "x", Group: "g", Delay: time.Second})
		newest := a.create(Request{ID: a.idAt(0), Topic: "x", Group: "g", Delay: 2 * time.Second})
		lost := b.create(Request{ID: b.idAt(0), Topic: "y", Delay: time.Hour})
		a.crash()
		b.crash()
		pass(3 * time.Second)
		c.adopt(a)
		release := c.member.hold("ScanShard")
		c.adopt(b)
		Mutex(c.Engine()).Lock()
		c.Engine().TopicTable.ByName["x"].Undecided = true // as if it had come with that shard
		Mutex(c.Engine()).Unlock()
		d := f.join("d", 1, Config{})
		d.adopt(c)
		release()
		pass(time.Second)
		Mutex(c.Engine()).Lock()
		undecided := c.Engine().TopicTable.ByName["x"].Undecided
		Mutex(c.Engine()).Unlock()
		if undecided || !c.Engine().IsReplayed() {
			t.Errorf("undecided %v, replayed %v", undecided, c.Engine().IsReplayed())
		}
		d.pullOwn("x", newest)
		if _, err := d.Get(t.Context(), lost); err != nil {
			t.Error(err)
		}
		c.check()
	})
}

// The first replay and adoption together: what the former owner has left is read once.
func TestAdoptedDuringTheFirstReplay(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 2, Config{})
		var ids []string
		for i := range 200 {
			ids = append(ids, a.create(Request{ID: a.idAt(i % 2), Topic: "x"}))
		}
		b := f.join("b", 2, Config{})
		for range 100 {
			b.create(Request{Topic: "y", Delay: time.Hour})
		}
		b.crash()
		a.crash()
		b = f.join("b", 2, Config{})
		b.adopt(a)
		pass(time.Second)
		b.pullOwn("x", ids...)
		b.check()
	})
}
