package tasks_test

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// A node that comes back gets its shards from who has adopted them, and is ready once it
// has read them.
func TestReclaim(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 3, Config{}), f.join("b", 1, Config{})
		var ids []string
		for i := range 300 {
			ids = append(ids, a.create(Request{ID: a.idAt(i % 3), Topic: "x", Delay: time.Hour}))
		}
		a.crash()
		b.adopt(a)
		b.keeps.Store(true)
		a = f.start("a", 3, Config{})
		pass(time.Second)
		if r := a.Readiness(); r.Ready || r.Away != 3 {
			t.Errorf("%+v", r)
		}
		want(t, "creation in a shard that is away", a.createOwned(Request{ID: a.idAt(0), Topic: "x"}), ErrUnavailable)
		b.keeps.Store(false)
		pass(5 * time.Second)
		if r := a.Readiness(); !r.Ready || r.Away != 0 {
			t.Errorf("%+v", r)
		}
		a.check()
		b.check()
		for _, id := range ids {
			if _, err := a.Engine().Get(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
		if n := b.Stats(); n.ShardsHeld != 1 || n.Total.Pending != 0 {
			t.Errorf("b holds %d shards, %d tasks", n.ShardsHeld, n.Total.Pending)
		}
	})
}

// A holder that keeps what it has adopted does not keep its owner from work for ever.
func TestReadyWithoutOwnShards(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		a.crash()
		b.adopt(a)
		b.keeps.Store(true)
		a = f.start("a", 1, Config{})
		pass(cluster.ReclaimReady - time.Second)
		if r := a.Readiness(); r.Ready {
			t.Error("it is ready")
		}
		pass(2 * time.Second)
		if r := a.Readiness(); !r.Ready || r.Away != 1 || !a.log.has("ready without own shards") {
			t.Errorf("%+v", r)
		}
		b.keeps.Store(false)
		pass(5 * time.Second)
		if r := a.Readiness(); !r.Ready || r.Away != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// A shard that was released, and whose answer was lost, is accepted the next time.
func TestAcceptedWithoutAnAnswer(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour})
		a.crash()
		b.adopt(a)
		b.keeps.Store(true)
		a = f.join("a", 1, Config{})
		want(t, "release", b.Engine().ReleaseShard(t.Context(), recovery.NewShardID(a.Engine().NodeNumber, 0), "a"), nil)
		pass(5 * time.Second)
		if _, err := a.Engine().Get(t.Context(), id); err != nil {
			t.Error(err)
		}
		a.check()
	})
}

// A shard that was given up because nothing was left in it, just as its node came back, is
// not waited for.
func TestRetiredWhileComingHome(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		a.crash()
		b.adopt(a)
		b.keeps.Store(true)
		a = f.join("a", 1, Config{})
		a.member.retired.Store(true)
		pass(time.Second)
		if r := a.Readiness(); !r.Ready || r.Away != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// No node is asked while this node may have lost what it has, or is being drained.
func TestNothingIsReclaimed(t *testing.T) {
	for name, idle := range map[string]func(a *node){
		"unsure":   func(a *node) { a.member.Uncertain(true) },
		"draining": func(a *node) { Mutex(a.Engine()).Lock(); a.Engine().Draining = true; Mutex(a.Engine()).Unlock() },
	} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 0, func(t *testing.T, f *fleet) {
				a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
				a.crash()
				b.adopt(a)
				b.keeps.Store(true)
				a = f.join("a", 1, Config{})
				idle(a)
				b.keeps.Store(false)
				pass(time.Minute)
				if n := a.Stats().ShardsHeld; n != 0 {
					t.Errorf("%d shards are held", n)
				}
			})
		})
	}
}
