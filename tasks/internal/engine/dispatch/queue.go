package dispatch

import (
	"cmp"
	"container/heap"
	"math"
	"sort"
)

// A Queue holds a topic's ready tasks, those that became due first in front.
//
// The wheel fires in order, so almost every push belongs at the end: those go
// into a run, a plain ring in order of time. What comes too late for that (a
// replayed task behind fresh ones) goes into a small heap beside it, and pop takes
// the earlier of the two fronts. Pushing and popping cost O(1) for a herd of a
// million that falls due at one instant.
//
// Tasks of one instant leave in the order in which they came. A returned one has
// been in front before, and is again: it goes into the heap, before the others of
// its instant.
//
// A task that leaves the queue otherwise (cancelled, moved) stays in it as a
// stale item, recognised by its generation. When most items are stale, they are
// swept out.
type Queue struct {
	Run   ring
	late  lateHeap
	Live  int // items that are not stale
	Count int
	order int64 // of the item that came last into the heap
}

// An Item is a ready task in its topic's queue.
type Item struct {
	Next  int64
	Value uint64 // generation and slot
}

// Push appends a ready task.
func (q *Queue) Push(it Item) {
	q.Live++
	q.Count++
	if last, ok := q.Run.last(); !ok || last.Next <= it.Next {
		q.Run.push(it)
		return
	}
	q.order++
	heap.Push(&q.late, lateItem{it, q.order})
}

// Return queues a task again that has left the queue and was not delivered.
func (q *Queue) Return(it Item) {
	q.Live++
	q.Count++
	q.order++
	heap.Push(&q.late, lateItem{it, q.order + math.MinInt64})
}

// Pop returns the front item, stale or not; the caller calls took if it was live.
func (q *Queue) Pop() (Item, bool) {
	if q.Count == 0 {
		return Item{}, false
	}
	it, fromLate := q.front()
	q.drop(fromLate)
	return it, true
}

// Oldest returns the time of the front item, or false if no item is live. It trims at most limit
// items: behind more stale ones, the time that it returns may be that of a stale one.
func (q *Queue) Oldest(limit int, stale func(value uint64) bool) (next int64, ok bool) {
	q.Trim(limit, stale)
	if q.Live == 0 {
		return 0, false
	}
	it, _ := q.front()
	return it.Next, true
}

// Trim drops stale items from the front, at most limit of them. Called for each item that becomes
// stale, it keeps a live item in front, or one that soon gets there.
func (q *Queue) Trim(limit int, stale func(value uint64) bool) {
	for ; limit > 0 && q.Count > 0; limit-- {
		it, fromLate := q.front()
		if !stale(it.Value) {
			return
		}
		q.drop(fromLate)
	}
}

// front returns the front item of a queue that is not empty, and whether the heap has it.
func (q *Queue) front() (it Item, fromLate bool) {
	first, ok := q.Run.first()
	if !ok || len(q.late) > 0 && q.late[0].before(first) {
		return q.late[0].Item, true
	}
	return first, false
}

// drop removes the front item.
func (q *Queue) drop(fromLate bool) {
	q.Count--
	if fromLate {
		heap.Pop(&q.late)
	} else {
		q.Run.shift()
	}
}

// lateSample is about how many items of the heap LiveBefore looks at.
const lateSample = 256

// LiveBefore sets counts[i] to how many live items have a time before times[i]. The times fall. The
// counts are estimates as far as items are stale, or are many and came too late for the run.
func (q *Queue) LiveBefore(times, counts []int64) {
	clear(counts)
	step := 1 + len(q.late)/lateSample
	for i := 0; i < len(q.late); i += step {
		// It is before the first k of the times.
		if k := sort.Search(len(times), func(k int) bool { return times[k] <= q.late[i].Next }); k > 0 {
			counts[k-1] += int64(step)
		}
	}
	late := int64(0)
	for i := len(times) - 1; i >= 0; i-- {
		late += counts[i]
		n := int64(q.Run.before(times[i])) + min(late, int64(len(q.late)))
		counts[i] = n * int64(q.Live) / int64(max(q.Count, 1))
	}
}

// Gone notes that one live item has been taken or has become stale.
func (q *Queue) Gone() { q.Live-- }

// Crowded reports whether Clean is worth its cost.
func (q *Queue) Crowded() bool { return q.Count > 1024 && q.Count > 4*q.Live }

// Clean drops what is stale.
func (q *Queue) Clean(stale func(value uint64) bool) {
	old := *q
	*q = Queue{Run: ring{initial: old.Run.initial}}
	for {
		it, ok := old.Pop()
		if !ok {
			return
		}
		if !stale(it.Value) {
			q.Push(it)
		}
	}
}

// A lateItem is an item of the heap. Its order among those of one instant is that in which they
// came, and is negative for one that was returned.
type lateItem struct {
	Item
	order int64
}

// before reports whether it leaves the queue before an item of the run.
func (l lateItem) before(first Item) bool {
	return l.Next < first.Next || l.Next == first.Next && l.order < 0
}

type lateHeap []lateItem

func (h lateHeap) Len() int { return len(h) }
func (h lateHeap) Less(i, j int) bool {
	return h[i].Next < h[j].Next || h[i].Next == h[j].Next && h[i].order < h[j].order
}
func (h lateHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *lateHeap) Push(x any)   { *h = append(*h, x.(lateItem)) }
func (h *lateHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	*h = old[:len(old)-1]
	return it
}

// A ring is a queue of items in blocks, so that it grows without copying and gives
// memory back as it empties.
type ring struct {
	Blocks [][]Item
	head   int // position in the first block
	// initial is the size of the first block, and each later one is twice as long; 0: 16, and then
	// ringBlock.
	initial int
}

const ringBlock = 1024

func (r *ring) push(it Item) {
	k := len(r.Blocks)
	if k == 0 || len(r.Blocks[k-1]) == cap(r.Blocks[k-1]) {
		size := ringBlock
		switch {
		case k > 0 && r.initial > 0: // one of many queues: it grows step by step
			size = min(ringBlock, 2*cap(r.Blocks[k-1]))
		case k == 0:
			size = cmp.Or(r.initial, 16) // most queues hold a few tasks at a time
		}
		r.Blocks = append(r.Blocks, make([]Item, 0, size))
		k++
	}
	r.Blocks[k-1] = append(r.Blocks[k-1], it)
}

func (r *ring) first() (Item, bool) {
	if len(r.Blocks) == 0 {
		return Item{}, false
	}
	return r.Blocks[0][r.head], true
}

func (r *ring) last() (Item, bool) {
	if len(r.Blocks) == 0 {
		return Item{}, false
	}
	b := r.Blocks[len(r.Blocks)-1]
	return b[len(b)-1], true
}

// before returns how many items have a time before next.
func (r *ring) before(next int64) int {
	if len(r.Blocks) == 0 {
		return 0
	}
	k := sort.Search(len(r.Blocks)-1, func(i int) bool { return r.Blocks[i+1][0].Next >= next })
	n := sort.Search(len(r.Blocks[k]), func(i int) bool { return r.Blocks[k][i].Next >= next })
	switch { // all blocks but the last are full
	case k > 0 && r.initial > 0:
		for _, b := range r.Blocks[:k] {
			n += len(b)
		}
	case k > 0:
		n += len(r.Blocks[0]) + (k-1)*ringBlock
	}
	return max(0, n-r.head)
}

func (r *ring) shift() {
	r.head++
	b := r.Blocks[0]
	if r.head < len(b) {
		return
	}
	r.head = 0
	r.Blocks[0] = nil
	r.Blocks = r.Blocks[1:]
}

// Each visits the items of a queue, in no order. It is meant for tests.
func (q *Queue) Each(visit func(Item)) {
	for i, block := range q.Run.Blocks {
		if i == 0 {
			block = block[q.Run.head:]
		}
		for _, it := range block {
			visit(it)
		}
	}
	for _, it := range q.late {
		visit(it.Item)
	}
}
