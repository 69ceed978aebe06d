package memfleet_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
)

type fleetHarness struct{ fleet *memfleet.Fleet }

func (h fleetHarness) Join(_ *testing.T, node string, shards int) recovery.Fleet {
	return h.fleet.Join(node, shards)
}

func (h fleetHarness) Crash(_ *testing.T, node recovery.Fleet) { node.(*memfleet.Member).Crash() }

func (h fleetHarness) Adopt(t *testing.T, by, dead recovery.Fleet) {
	if by.(*memfleet.Member).AdoptFrom(dead.(*memfleet.Member)) == 0 {
		t.Fatal("nothing was adopted")
	}
}

func TestFleetConformance(t *testing.T) {
	ledgertest.RunFleet(t, func(*testing.T) ledgertest.FleetHarness { return fleetHarness{memfleet.New()} })
}

// member joins a fleet, with this watcher.
func member(t *testing.T, f *memfleet.Fleet, name string, w recovery.Watcher) *memfleet.Member {
	t.Helper()
	m := f.Join(name, 1)
	m.Watch(w)
	if _, err := m.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func put(t *testing.T, m *memfleet.Member, shard int, id string) error {
	t.Helper()
	var b recovery.Batch
	b.Add(recovery.Change{ID: []byte(id), To: recovery.Spot{Place: recovery.Pending, At: 1}, Data: []byte("x")})
	return m.Apply(t.Context(), shard, &b)
}

// A member that is cut off reaches nothing, and learns what it has lost when that is over.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfleet.New()
		var lost []int
		a := member(t, f, "a", recovery.Watcher{Lost: func(n int, _ error) { lost = append(lost, n) }})
		b := member(t, f, "b", recovery.Watcher{})
		a.Cut(true)
		if err := put(t, a, 0, "x"); err == nil || errors.Is(err, recovery.ErrLost) {
			t.Errorf("Apply = %v", err)
		}
		if n := b.AdoptFrom(a); n != 1 {
			t.Errorf("adopted %d", n)
		}
		synctest.Wait()
		if len(lost) != 0 {
			t.Errorf("lost %v while it was cut off", lost)
		}
		a.Cut(false)
		synctest.Wait()
		if !slices.Equal(lost, []int{0}) {
			t.Errorf("lost %v", lost)
		}
		if err := put(t, a, 0, "x"); !errors.Is(err, recovery.ErrLost) {
			t.Errorf("Apply = %v", err)
		}
	})
}

// Adoption goes as far as there is room.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfleet.New()
		a := member(t, f, "a", recovery.Watcher{})
		b := member(t, f, "b", recovery.Watcher{Room: func() int { return 1 }})
		for _, id := range []string{"x", "y"} {
			if err := put(t, a, 0, id); err != nil {
				t.Fatal(err)
			}
		}
		a.Crash()
		if n := b.AdoptFrom(a); n != 0 || f.Holder(a.ShardID(0)) != "a" {
			t.Errorf("adopted %d; the holder is %s", n, f.Holder(a.ShardID(0)))
		}
	})
}

// A process whose name another one has taken has ended.
func TestJoinAgain(t *testing.T) {
	f := memfleet.New()
	a := member(t, f, "a", recovery.Watcher{})
	again := member(t, f, "a", recovery.Watcher{})
	if err := put(t, a, 0, "x"); !errors.Is(err, recovery.ErrClosed) {
		t.Errorf("Apply by the former one = %v", err)
	}
	if err := put(t, again, 0, "x"); err != nil {
		t.Error(err)
	}
	if s := again.Standing(); !s.Alone || !s.Certain {
		t.Errorf("Standing = %+v", s)
	}
}

// Messages reach the members that listen, in no more copies than were sent.
func TestBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := memfleet.New()
		a, b := member(t, f, "a", recovery.Watcher{}), member(t, f, "b", recovery.Watcher{})
		var heard []string
		if err := b.Listen(func(m []byte) { heard = append(heard, string(m)) }); err != nil {
			t.Fatal(err)
		}
		for to, want := range map[string]bool{"b": true, "": true, "absent": false} {
			if err := a.Send(t.Context(), to, []byte("to "+to)); (err == nil) != want {
				t.Errorf("Send to %q = %v", to, err)
			}
		}
		f.Drop(func(from, to string, _ []byte) bool { return from == "a" && to == "b" })
		if err := a.Send(t.Context(), "b", []byte("lost")); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		slices.Sort(heard)
		if !slices.Equal(heard, []string{"to ", "to b"}) {
			t.Errorf("heard %q", heard)
		}
	})
}
