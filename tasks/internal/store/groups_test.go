package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lapsehq/lapse/tasks/internal/record"
)

// An groupRig is a book with what it should hold: the group of each id, "" for none.
type groupRig struct {
	*Store
	t   *testing.T
	rng *rand.Rand
	of  map[string]string
}

func newAlbum(t *testing.T) *groupRig {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return &groupRig{Store: New(), t: t, rng: rand.New(rand.NewPCG(seed, 0)), of: map[string]string{}}
}

// record is one of random size, of a group.
func (a *groupRig) record(group string) []byte {
	f := record.Fields{Topic: []byte("topic"), Group: []byte(group), Payload: make([]byte, a.rng.IntN(300))}
	if a.rng.IntN(2) == 0 {
		f.Headers = record.AppendHeader(nil, "tenant", "eu")
	}
	return f.Append(nil)
}

func (a *groupRig) enter(id, group string) {
	_, sl := a.Store.Enter([]byte(id), a.record(group))
	sl.State, a.of[id] = Pending, group
}

func (a *groupRig) rewrite(id, group string) {
	n, _ := a.Find([]byte(id))
	a.Store.Rewrite(n, a.record(group))
	a.of[id] = group
}

func (a *groupRig) leave(id string) {
	n, _ := a.Find([]byte(id))
	a.Slot(n).State = Vacant
	a.Store.Leave(n)
	delete(a.of, id)
}

// members goes over a group.
func (a *groupRig) members(group string) (ids []string) {
	t := a.OpenGroup(group)
	defer a.CloseGroup(t)
	for n := a.Advance(t); n != 0; n = a.Advance(t) {
		ids = append(ids, string(a.ID(a.Slot(n))))
	}
	slices.Sort(ids)
	return ids
}

func (a *groupRig) check() {
	a.t.Helper()
	if err := a.checkGroups(); err != nil {
		a.t.Fatal(err)
	}
	want := map[string][]string{}
	for id, group := range a.of {
		want[group] = append(want[group], id)
	}
	delete(want, "")
	for group, ids := range want {
		slices.Sort(ids)
		if got := a.members(group); !slices.Equal(got, ids) {
			a.t.Fatalf("the group %s has %q; want %q", group, got, ids)
		}
	}
	if got := a.members("unknown"); got != nil {
		a.t.Fatalf("an unknown group has %q", got)
	}
}

// Whatever tasks do, each group has just those that belong to it: many small groups and
// one that is large, few hash tables, records that move about in the arena.
func TestGroupsAgainstMap(t *testing.T) {
	a := newAlbum(t)
	group := func() string {
		switch a.rng.IntN(4) {
		case 0:
			return ""
		case 1:
			return "large"
		}
		return fmt.Sprint("g", a.rng.IntN(3000))
	}
	var from uint32
	for i := range 40_000 {
		id := fmt.Sprint("t", a.rng.IntN(6000))
		_, known := a.of[id]
		switch {
		case !known:
			a.enter(id, group())
		case a.rng.IntN(3) == 0:
			a.rewrite(id, a.of[id])
		case a.rng.IntN(2) == 0:
			a.rewrite(id, group())
		default:
			a.leave(id)
		}
		if i%100 == 0 {
			from = a.Tidy(from, 4)
		}
		if i%10_000 == 0 {
			a.check()
		}
	}
	a.check()
	for id := range a.of {
		a.leave(id)
	}
	a.check()
	for i := range a.groups.tables {
		if n := len(a.groups.tables[i].firsts); n > 64 {
			t.Fatalf("a table without groups has %d entries", n)
		}
	}
}

// Groups whose names collide in half of the hash are kept apart all the same.
func TestGroupsThatCollide(t *testing.T) {
	a := newAlbum(t)
	// Half of a hash that is the same for all: what positionOf compares, but for the names.
	table := &groupTable{firsts: make([]uint64, 16)}
	for i := range uint32(8) {
		name := fmt.Sprint("g", i)
		a.enter("t"+name, name)
		n, _ := a.Find([]byte("t" + name))
		table.firsts[table.positionOf(a.Store, 15, []byte(name))] = firstOf(15, n)
		table.used++
	}
	find := func(i int) uint32 {
		return uint32(table.firsts[table.positionOf(a.Store, 15, fmt.Append(nil, "g", i))])
	}
	for out := range 8 {
		for i := range 8 {
			n, _ := a.Find(fmt.Append(nil, "tg", i))
			if i < out {
				n = 0
			}
			if got := find(i); got != n {
				t.Fatalf("with %d of 8 gone, g%d is in slot %d; want %d", out, i, got, n)
			}
		}
		table.empty(table.positionOf(a.Store, 15, fmt.Append(nil, "g", out)))
	}
}

// A cursor meets each task once that is there from its begin to its end, whichever task leaves,
// changes its record or its group, or joins meanwhile.
func TestCursorWhileTasksComeAndGo(t *testing.T) {
	for range 200 {
		a := newAlbum(t)
		const n = 60
		for i := range n {
			a.enter(fmt.Sprint("t", i), "g")
		}
		stays := map[string]bool{}
		for id := range a.of {
			stays[id] = true
		}
		met := map[string]int{}
		tour := a.OpenGroup("g")
		fresh := 0
		for k := a.Advance(tour); k != 0; k = a.Advance(tour) {
			met[string(a.ID(a.Slot(k)))]++
			for range a.rng.IntN(4) {
				id := fmt.Sprint("t", a.rng.IntN(n))
				_, known := a.of[id]
				switch a.rng.IntN(4) {
				case 0:
					fresh++
					// Perhaps in the slot of a task that has left.
					a.enter(fmt.Sprint("fresh", fresh), "g")
				case 1:
					if known {
						a.leave(id)
						delete(stays, id)
					}
				case 2:
					if known {
						a.rewrite(id, "other")
						delete(stays, id)
					}
				case 3:
					if known {
						a.rewrite(id, a.of[id])
					}
				}
			}
		}
		a.CloseGroup(tour)
		for id := range stays {
			if met[id] != 1 {
				t.Fatalf("%s was there all the time and came by %d times", id, met[id])
			}
		}
		for id, times := range met {
			if times != 1 {
				t.Fatalf("%s came by %d times", id, times)
			}
		}
		a.check()
	}
}
