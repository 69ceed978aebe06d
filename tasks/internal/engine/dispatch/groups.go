package dispatch

import (
	"container/heap"
)

// Groups are the ready tasks of a line that are in groups, where the line bounds how many
// deliveries of one group are under way at once. Each group has a queue of its own, so that a task
// whose group has no place is never met on the way to another. The groups that have a place stand
// in a heap by the time of their first task, and the others in a second one, for OldestReady. All
// steps take O(log groups), and none looks at more than one group. Guarded by Engine.mu.
//
// Example: a bound of 1, and tasks of the groups a, a, b, a. The first of a and that of b are
// taken; a is full. The end of the first delivery opens a again, and its second task is next.
type Groups struct {
	// Live is how many tasks wait that are not stale, and Free how many of them may begin now.
	Live, Free int
	// Counted is for the caller: of Free, what it has counted elsewhere.
	Counted int

	limit  int               // deliveries of one group; 0: no bound any more
	byName map[string]*group // those that have waiting tasks or deliveries
	open   groupHeap         // that have waiting tasks, and places
	full   groupHeap         // that have waiting tasks, and no place
	epoch  int               // of the limit
	review []*group          // of earlier epochs, see SetLimit
}

// A group is one group of a line.
type group struct {
	name    string
	busy    int   // deliveries under way
	waiting Queue // its ready tasks

	// Valid in this epoch:
	epoch int
	free  int        // its part of Groups.Free
	in    *groupHeap // where it stands; nil: nowhere
	at    int
}

// firstOfGroup is how many tasks the first block of a group's queue holds: most groups have few.
const firstOfGroup = 2

// NewGroups returns those of a line with a bound.
func NewGroups(limit int) *Groups {
	return &Groups{limit: limit, byName: make(map[string]*group)}
}

// Bounds reports whether there is a bound: otherwise tasks are not added any more.
func (s *Groups) Bounds() bool { return s.limit > 0 }

// Empty reports whether no group has a task that waits or a delivery.
func (s *Groups) Empty() bool { return len(s.byName) == 0 }

// SetLimit sets another bound. Deliveries under way go on. From then on no group has a place until
// Review has seen it, which the caller calls until it reports that it is done.
func (s *Groups) SetLimit(limit int) (review bool) {
	if limit == s.limit {
		return false
	}
	s.limit = limit
	s.epoch++
	s.review = append(append(s.review, s.open...), s.full...)
	s.open, s.full, s.Free = nil, nil, 0
	return len(s.review) > 0
}

// Review gives some groups their places by the new bound. It reports false when it has seen all.
func (s *Groups) Review(n int) (more bool) {
	for ; n > 0 && len(s.review) > 0; n-- {
		last := len(s.review) - 1
		g := s.review[last]
		s.review[last], s.review = nil, s.review[:last]
		s.place(g)
	}
	if len(s.review) == 0 {
		s.review = nil
	}
	return s.review != nil
}

// Add queues a ready task of a group.
func (s *Groups) Add(name []byte, it Item) { s.queue(name, it, (*Queue).Push) }

// Return queues a task of a group again, as Queue.Return does.
func (s *Groups) Return(name []byte, it Item) { s.queue(name, it, (*Queue).Return) }

func (s *Groups) queue(name []byte, it Item, add func(*Queue, Item)) {
	g := s.get(name)
	add(&g.waiting, it)
	s.Live++
	s.place(g)
}

// Gone notes that a waiting task of a group has become stale.
func (s *Groups) Gone(name []byte, limit int, stale func(value uint64) bool) {
	g := s.byName[string(name)]
	if g == nil {
		return // it has been emptied since
	}
	g.waiting.Gone()
	s.Live--
	g.waiting.Trim(limit, stale)
	if g.waiting.Crowded() {
		g.waiting.Clean(stale)
	}
	s.place(g)
}

// Begin counts a delivery of a group.
func (s *Groups) Begin(name []byte) {
	g := s.get(name)
	g.busy++
	s.place(g)
}

// End ends a delivery of a group.
func (s *Groups) End(name []byte) {
	if g := s.byName[string(name)]; g != nil && g.busy > 0 {
		g.busy--
		s.place(g)
	}
}

func (s *Groups) get(name []byte) *group {
	g := s.byName[string(name)]
	if g == nil {
		g = &group{name: string(name)}
		g.waiting.Run.initial = firstOfGroup
		s.byName[g.name] = g
	}
	return g
}

// front returns the time of the first task that may begin.
func (s *Groups) front() (next int64, ok bool) {
	if len(s.open) == 0 {
		return 0, false
	}
	return s.open[0].next(), true
}

// pop returns the first task that may begin, stale or not. One that is not stale waits no longer.
func (s *Groups) pop(stale func(value uint64) bool) Item {
	g := s.open[0]
	it, _ := g.waiting.Pop()
	if !stale(it.Value) {
		g.waiting.Gone()
		s.Live--
	}
	s.place(g)
	return it
}

// place puts a group where it belongs.
func (s *Groups) place(g *group) {
	if g.epoch != s.epoch {
		g.epoch, g.free, g.in = s.epoch, 0, nil
	}
	free := g.waiting.Live
	if s.limit > 0 {
		free = max(0, min(free, s.limit-g.busy))
	}
	s.Free += free - g.free
	g.free = free
	var to *groupHeap
	switch {
	case free > 0:
		to = &s.open
	case g.waiting.Live > 0:
		to = &s.full
	default:
		g.waiting = Queue{Run: ring{initial: firstOfGroup}} // with what is stale
	}
	switch {
	case g.in == to && to != nil:
		heap.Fix(to, g.at)
		return
	case g.in != nil:
		heap.Remove(g.in, g.at)
	}
	if g.in = to; to != nil {
		heap.Push(to, g)
	} else if g.busy == 0 && s.byName[g.name] == g {
		delete(s.byName, g.name)
	}
}

// oldest returns the time of the task that has waited longest, as Queue.Oldest does.
func (s *Groups) oldest(limit int, stale func(value uint64) bool) (next int64, ok bool) {
	for _, h := range []*groupHeap{&s.open, &s.full} {
		if len(*h) == 0 {
			continue
		}
		g := (*h)[0]
		at, live := g.waiting.Oldest(limit, stale)
		s.place(g)
		if live && (!ok || at < next) {
			next, ok = at, true
		}
	}
	return next, ok
}

// groupSample is about how many groups liveBefore looks at.
const groupSample = 64

// liveBefore adds to counts as Queue.LiveBefore does. Of many groups it is an estimate.
func (s *Groups) liveBefore(times, counts []int64) {
	all := len(s.open) + len(s.full)
	if all == 0 {
		return
	}
	sum, seen := make([]int64, len(times)), 0
	one := make([]int64, len(times))
	for i := 0; i < all; i += 1 + all/groupSample {
		g := s.full
		k := i - len(s.open)
		if k < 0 {
			g, k = s.open, i
		}
		g[k].waiting.LiveBefore(times, one)
		for j, n := range one {
			sum[j] += n
		}
		seen += g[k].waiting.Live
	}
	for j, n := range sum {
		counts[j] += n * int64(s.Live) / int64(max(seen, 1))
	}
}

func (g *group) next() int64 {
	it, _ := g.waiting.front()
	return it.Next
}

// A groupHeap has groups by the time of their first task.
type groupHeap []*group

func (h groupHeap) Len() int           { return len(h) }
func (h groupHeap) Less(i, j int) bool { return h[i].next() < h[j].next() }
func (h groupHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}
func (h *groupHeap) Push(x any) {
	g := x.(*group)
	g.at = len(*h)
	*h = append(*h, g)
}
func (h *groupHeap) Pop() any {
	old := *h
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return g
}

// Check returns how many tasks wait that are live, and how many deliveries are counted. It panics
// if the groups contradict themselves. It is meant for tests.
func (s *Groups) Check(isLive func(value uint64) bool) (live, busy int) {
	free := 0
	for name, g := range s.byName {
		n := 0
		g.waiting.Each(func(it Item) {
			if isLive(it.Value) {
				n++
			}
		})
		live, busy, free = live+n, busy+g.busy, free+g.free
		switch may := max(0, s.limit-g.busy); {
		case name != g.name || n != g.waiting.Live:
			panic("dispatch: group " + name + " counts others than it has")
		case g.epoch != s.epoch && n > 0:
			panic("dispatch: group " + name + " was not reviewed")
		case s.limit > 0 && g.free != min(n, may), s.limit == 0 && g.free != n:
			panic("dispatch: group " + name + " has other places")
		case g.free > 0 && (*g.in)[g.at] != g, g.free > 0 != (g.in == &s.open), n > 0 && g.in == nil:
			panic("dispatch: group " + name + " is not where it belongs")
		}
	}
	if free != s.Free {
		panic("dispatch: other places of groups are counted")
	}
	return live, busy
}
