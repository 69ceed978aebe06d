package tasks

import "container/heap"

// A queue holds a topic's ready tasks, those that became due first in front.
//
// The wheel fires in order, so almost every push belongs at the end: those go
// into a run, a plain ring in order of time. What comes too late for that (a
// replayed task behind fresh ones, a return) goes into a small heap beside it,
// and pop takes the earlier of the two fronts. Pushing and popping cost O(1) for a
// herd of a million that falls due at one instant.
//
// A task that leaves the queue otherwise (cancelled, moved) stays in it as a
// stale item, recognised by its generation. When most items are stale, they are
// swept out.
type queue struct {
	run   ring
	late  lateHeap
	live  int // items that are not stale
	count int
}

type item struct {
	next  int64
	value uint64 // generation and slot
}

func (q *queue) push(it item) {
	q.live++
	q.count++
	if last, ok := q.run.last(); !ok || last.next <= it.next {
		q.run.push(it)
		return
	}
	heap.Push(&q.late, it)
}

// pop returns the front item, stale or not; the caller calls took if it was live.
func (q *queue) pop() (item, bool) {
	if q.count == 0 {
		return item{}, false
	}
	q.count--
	first, ok := q.run.first()
	if !ok || len(q.late) > 0 && q.late[0].next < first.next {
		return heap.Pop(&q.late).(item), true
	}
	q.run.shift()
	return first, true
}

// gone tells that one live item has been taken or has become stale.
func (q *queue) gone() { q.live-- }

// crowded tells that clean is worth its cost.
func (q *queue) crowded() bool { return q.count > 1024 && q.count > 4*q.live }

// clean drops what is stale.
func (q *queue) clean(stale func(value uint64) bool) {
	old := *q
	*q = queue{}
	for {
		it, ok := old.pop()
		if !ok {
			return
		}
		if !stale(it.value) {
			q.push(it)
		}
	}
}

type lateHeap []item

func (h lateHeap) Len() int           { return len(h) }
func (h lateHeap) Less(i, j int) bool { return h[i].next < h[j].next }
func (h lateHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lateHeap) Push(x any)        { *h = append(*h, x.(item)) }
func (h *lateHeap) Pop() any {
	old := *h
	it := old[len(old)-1]
	*h = old[:len(old)-1]
	return it
}

// A ring is a queue of items in blocks, so that it grows without copying and gives
// memory back as it empties.
type ring struct {
	blocks [][]item
	head   int // position in the first block
}

const ringBlock = 1024

func (r *ring) push(it item) {
	k := len(r.blocks)
	if k == 0 || len(r.blocks[k-1]) == cap(r.blocks[k-1]) {
		size := ringBlock
		if k == 0 {
			size = 16 // most queues hold a few tasks at a time
		}
		r.blocks = append(r.blocks, make([]item, 0, size))
		k++
	}
	r.blocks[k-1] = append(r.blocks[k-1], it)
}

func (r *ring) first() (item, bool) {
	if len(r.blocks) == 0 {
		return item{}, false
	}
	return r.blocks[0][r.head], true
}

func (r *ring) last() (item, bool) {
	if len(r.blocks) == 0 {
		return item{}, false
	}
	b := r.blocks[len(r.blocks)-1]
	return b[len(b)-1], true
}

func (r *ring) shift() {
	r.head++
	b := r.blocks[0]
	if r.head < len(b) {
		return
	}
	r.head = 0
	r.blocks[0] = nil
	r.blocks = r.blocks[1:]
}
