package dispatch

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// A groupModel is what Groups does, in plain lists.
type groupModel struct {
	limit   int
	waiting map[string][]Item // live ones
	busy    map[string]int
}

// takeable returns the groups that have a place and a task that waits.
func (m *groupModel) takeable() (names []string, free int) {
	for name, list := range m.waiting {
		may := len(list)
		if m.limit > 0 {
			may = max(0, min(may, m.limit-m.busy[name]))
		}
		if free += may; may > 0 {
			names = append(names, name)
		}
	}
	return names, free
}

func first(list []Item) Item {
	return slices.MinFunc(list, func(a, b Item) int { return cmp.Compare(a.Next, b.Next) })
}

// What may begin, and what comes next, is the same as with plain lists, whatever tasks come, become
// stale and end, and whatever becomes of the bound.
func TestGroupsAgainstLists(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	s, m := NewGroups(2), &groupModel{2, map[string][]Item{}, map[string]int{}}
	live := map[uint64]string{} // by value: the group
	stale := func(v uint64) bool { _, ok := live[v]; return !ok }
	clock := int64(2000)
	remove := func(v uint64) string {
		name := live[v]
		delete(live, v)
		m.waiting[name] = slices.DeleteFunc(m.waiting[name], func(it Item) bool { return it.Value == v })
		return name
	}
	for i := range uint64(60_000) {
		switch k := rng.IntN(100); {
		case k < 40:
			clock += rng.Int64N(2)
			it := Item{Next: clock, Value: i}
			if rng.IntN(10) == 0 {
				it.Next -= rng.Int64N(1000)
			}
			name := fmt.Sprint("g", rng.IntN(30))
			live[i] = name
			m.waiting[name] = append(m.waiting[name], it)
			s.Add([]byte(name), it)
		case k < 48: // one is cancelled
			for v := range live {
				s.Gone([]byte(remove(v)), 16, stale)
				break
			}
		case k < 70: // one begins
			names, _ := m.takeable()
			for len(s.open) > 0 {
				it := s.pop(stale)
				if stale(it.Value) {
					continue
				}
				var want int64 = 1 << 60
				for _, name := range names {
					want = min(want, first(m.waiting[name]).Next)
				}
				name := remove(it.Value)
				// A stale task in front of a group may let it come sooner than another.
				if !slices.Contains(names, name) || it.Next < want {
					t.Fatalf("step %d: %q comes with %d; want one of %q, from %d on", i, name, it.Next, names, want)
				}
				m.busy[name]++
				s.Begin([]byte(name))
				break
			}
		case k < 97: // one ends
			for name, n := range m.busy {
				if n > 0 {
					m.busy[name]--
					s.End([]byte(name))
					break
				}
			}
		case k == 99 && rng.IntN(20) == 0:
			m.limit = rng.IntN(4)
			s.SetLimit(m.limit)
			for s.Review(7) {
			}
		}
		if rng.IntN(10) > 0 {
			continue
		}
		_, free := m.takeable()
		waits := 0
		for _, list := range m.waiting {
			waits += len(list)
		}
		busy := 0
		for _, n := range m.busy {
			busy += n
		}
		gotLive, gotBusy := s.Check(func(v uint64) bool { return !stale(v) })
		if s.Free != free || s.Live != waits || gotLive != waits || gotBusy != busy {
			t.Fatalf("step %d: %d may begin, %d (%d) wait, %d are busy; want %d, %d, %d", i, s.Free, s.Live, gotLive, gotBusy, free, waits, busy)
		}
	}
	for v := range live {
		s.Gone([]byte(remove(v)), 16, stale)
	}
	for name, n := range m.busy {
		for range n {
			s.End([]byte(name))
		}
	}
	if !s.Empty() || s.Free != 0 || s.Live != 0 || len(s.open)+len(s.full) != 0 {
		t.Errorf("in the end %d groups are left", len(s.byName))
	}
}

// Tasks of a group leave in the order in which they came, and a full group keeps no other waiting.
func TestGroupsKeepOrder(t *testing.T) {
	s := NewGroups(1)
	fresh := func(uint64) bool { return false }
	for i := range uint64(3000) {
		s.Add([]byte("a"), Item{Next: 7, Value: i})
	}
	s.Add([]byte("b"), Item{Next: 8, Value: 9999})
	for i := range uint64(3000) {
		if it := s.pop(fresh); it.Value != i {
			t.Fatalf("popped %d; want %d", it.Value, i)
		}
		s.Begin([]byte("a"))
		if i == 0 {
			if it := s.pop(fresh); it.Value != 9999 || s.Free != 0 {
				t.Fatalf("behind the full group comes %d, and %d may begin", it.Value, s.Free)
			}
		}
		s.End([]byte("a"))
	}
}

// Figures of many groups are estimates, and cost little.
func TestGroupsFigures(t *testing.T) {
	l := Line{Groups: NewGroups(1)}
	fresh := func(uint64) bool { return false }
	for i := range uint64(10_000) {
		l.Groups.Add(fmt.Appendf(nil, "g%d", i%2000), Item{Next: int64(i), Value: i})
	}
	l.Queue.Push(Item{Next: 100})
	for range 100 {
		l.Groups.Begin(fmt.Appendf(nil, "g%d", 0))
	}
	if next, ok := l.OldestReady(16, fresh); !ok || next != 0 {
		t.Errorf("the oldest is of %d, %v", next, ok)
	}
	times, counts := []int64{9000, 5000, 0}, make([]int64, 3)
	if live := l.LiveBefore(times, counts); live != 10_001 || counts[0] < 8000 || counts[0] > 10_000 || counts[1] < 4000 || counts[1] > 6000 || counts[2] != 0 {
		t.Errorf("%d live, before %d: %d", live, times, counts)
	}
	if l.Takeable() != 2000 || l.Blocked() != 8001 {
		t.Errorf("%d may begin, %d wait", l.Takeable(), l.Blocked())
	}
}

// BenchmarkGroups is a task that comes, begins and ends, among many groups.
func BenchmarkGroups(b *testing.B) {
	for _, groups := range []int{10, 100_000} {
		b.Run(fmt.Sprint(groups), func(b *testing.B) {
			s := NewGroups(1)
			names := make([][]byte, groups)
			for i := range names {
				names[i] = fmt.Appendf(nil, "group-%d", i)
			}
			fresh := func(uint64) bool { return false }
			for i := range 100_000 {
				s.Add(names[i%groups], Item{Next: int64(i), Value: uint64(i % groups)})
			}
			next := int64(100_000)
			b.ReportAllocs()
			for b.Loop() {
				it := s.pop(fresh)
				name := names[it.Value]
				s.Begin(name)
				s.Add(name, Item{Next: next, Value: it.Value})
				s.End(name)
				next++
			}
		})
	}
}
