package cluster_test

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A node that comes back gets its shards from who has adopted them, and is ready once it
// has read them.
func TestReclaim(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 3, Config{}), f.Join("b", 1, Config{})
		var ids []string
		for i := range 300 {
			ids = append(ids, a.Create(Request{ID: a.IDAt(i % 3), Topic: "x", Delay: time.Hour}))
		}
		a.Crash()
		b.Adopt(a)
		b.Keeps.Store(true)
		a = f.Start("a", 3, Config{})
		rig.Pass(time.Second)
		if r := a.Readiness(); r.Ready || r.Away != 3 {
			t.Errorf("%+v", r)
		}
		rig.Want(t, "creation in a shard that is away", a.CreateOwned(Request{ID: a.IDAt(0), Topic: "x"}), ErrUnavailable)
		b.Keeps.Store(false)
		rig.Pass(5 * time.Second)
		if r := a.Readiness(); !r.Ready || r.Away != 0 {
			t.Errorf("%+v", r)
		}
		a.Check()
		b.Check()
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
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		a.Crash()
		b.Adopt(a)
		b.Keeps.Store(true)
		a = f.Start("a", 1, Config{})
		rig.Pass(cluster.ReclaimReady - time.Second)
		if r := a.Readiness(); r.Ready {
			t.Error("it is ready")
		}
		rig.Pass(2 * time.Second)
		if r := a.Readiness(); !r.Ready || r.Away != 1 || !a.Log.Has("ready without own shards") {
			t.Errorf("%+v", r)
		}
		b.Keeps.Store(false)
		rig.Pass(5 * time.Second)
		if r := a.Readiness(); !r.Ready || r.Away != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// A shard that was released, and whose answer was lost, is accepted the next time.
func TestAcceptedWithoutAnAnswer(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		a.Crash()
		b.Adopt(a)
		b.Keeps.Store(true)
		a = f.Join("a", 1, Config{})
		rig.Want(t, "release", b.Engine().ReleaseShard(t.Context(), recovery.NewShardID(a.Engine().NodeNumber, 0), "a"), nil)
		rig.Pass(5 * time.Second)
		if _, err := a.Engine().Get(t.Context(), id); err != nil {
			t.Error(err)
		}
		a.Check()
	})
}

// A shard that was given up because nothing was left in it, just as its node came back, is
// not waited for.
func TestRetiredWhileComingHome(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		a.Crash()
		b.Adopt(a)
		b.Keeps.Store(true)
		a = f.Join("a", 1, Config{})
		a.Member.Retired.Store(true)
		rig.Pass(time.Second)
		if r := a.Readiness(); !r.Ready || r.Away != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// No node is asked while this node may have lost what it has, or is being drained.
func TestNothingIsReclaimed(t *testing.T) {
	for name, idle := range map[string]func(a *rig.Node){
		"unsure": func(a *rig.Node) { a.Member.Uncertain(true) },
		"draining": func(a *rig.Node) {
			rig.Mutex(a.Engine()).Lock()
			a.Engine().Draining = true
			rig.Mutex(a.Engine()).Unlock()
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
				a.Crash()
				b.Adopt(a)
				b.Keeps.Store(true)
				a = f.Join("a", 1, Config{})
				idle(a)
				b.Keeps.Store(false)
				rig.Pass(time.Minute)
				if n := a.Stats().ShardsHeld; n != 0 {
					t.Errorf("%d shards are held", n)
				}
			})
		})
	}
}
