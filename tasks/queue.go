package tasks

import (
	"container/heap"
	"container/list"
	"context"
	"fmt"
	"math"
	"time"
)

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

// queueLocked waits, without the lock, until it is a receiver's turn to look again, or until
// the receiver was given deliveries. It reports false if neither came in time. ask begins to ask
// other nodes; it is called with the lock held, and may be nil.
func (s *engine) queueLocked(ctx context.Context, t *topic, place *turn, over <-chan time.Time, ask func() <-chan struct{}) (woken bool) {
	if !t.pulled() { // any more: sleeping receivers were woken already
		return true
	}
	t.reservers.join(place)
	s.wakeLocked(t) // for tasks that became ready while the lock was released
	var search <-chan struct{}
	if ask != nil {
		search = ask()
	}
	s.unlock()
	woken = place.wait(ctx, s.closing, over, search)
	s.mu.Lock()
	t.reservers.leave(place)
	if len(place.fetched) > 0 {
		return true
	}
	if !woken {
		s.wakeLocked(t) // if it has just been woken, another receiver should be
	}
	return woken
}

// wait reports whether the turn has come. While other nodes are being asked, it waits for their
// answers even if the receiver's time is over: what they have is worth the moment.
func (t *turn) wait(ctx context.Context, closing <-chan struct{}, over <-chan time.Time, search <-chan struct{}) bool {
	if !t.late {
		select {
		case <-t.ready:
			return true
		case <-over:
			t.late = true
		case <-ctx.Done():
			return false
		case <-closing:
			return false
		}
	}
	if search == nil {
		return false
	}
	select {
	case <-t.ready:
		return true
	case <-search:
	case <-ctx.Done():
	case <-closing:
	}
	return false
}

// pullLocked begins deliveries for a receiver. It may release the lock meanwhile.
func (s *engine) pullLocked(ctx context.Context, t *topic, limit int, lease time.Duration) []*delivery {
	ctx, cancel := s.within(ctx)
	defer cancel()
	return s.beginLocked(ctx, t, limit, lease, byReceiver)
}

func (s *engine) pullableLocked(name string, reserved bool) (*topic, error) {
	if s.ended {
		return nil, ErrClosed
	}
	t, err := s.topicLocked(name, reserved)
	switch {
	case err != nil:
		return nil, err
	case t.unread():
		return nil, errSettingsUnread
	case !t.pulled():
		return nil, ErrHandled
	case s.roomLocked() <= 0:
		s.holdLocked(t)
		return nil, fmt.Errorf("%w: %d deliveries are open", ErrOverloaded, s.leasedOut+s.reservedInFlight)
	}
	return t, nil
}

// reservers are the receivers that wait for a topic's tasks, first come, first served.
// Guarded by Scheduler.mu.
type reservers struct {
	queue list.List // of sleeping receivers
	woken int       // receivers that were woken and have not looked yet
	last  uint64    // the last number drawn
}

// A turn is one waiting receiver. It keeps its number for as long as it waits: a receiver that
// was woken too late, because another had been faster, keeps its place in the queue.
type turn struct {
	number uint64 // drawn when it joins for the first time
	ready  chan struct{}
	place  *list.Element // while it sleeps

	serve func() // of a remoteWaiter: called instead of closing ready

	// Of others:
	limit   int         // how many tasks it takes
	late    bool        // the time to wait is over
	want    *int        // what it shares with other sleeping receivers: how many tasks all take; may be nil
	fetched []*delivery // from other nodes
}

func (r *reservers) join(t *turn) {
	if t.number == 0 {
		r.last++
		t.number = r.last
	}
	t.ready = make(chan struct{})
	before := r.queue.Back()
	for before != nil && before.Value.(*turn).number > t.number {
		before = before.Prev()
	}
	if before == nil {
		t.place = r.queue.PushFront(t)
	} else {
		t.place = r.queue.InsertAfter(t, before)
	}
	if t.want != nil {
		*t.want += t.limit
	}
}

// remove takes a sleeping receiver out of the queue.
func (r *reservers) remove(t *turn) {
	r.queue.Remove(t.place)
	t.place = nil
	if t.want != nil {
		*t.want -= t.limit
	}
}

// bring wakes a sleeping receiver with deliveries of another node.
func (r *reservers) give(t *turn, ds []*delivery) {
	r.remove(t)
	t.fetched = ds
	close(t.ready)
}

// leave is called by every receiver that has joined, woken or not.
func (r *reservers) leave(t *turn) {
	switch {
	case t.place != nil:
		r.remove(t)
	case t.fetched == nil:
		r.woken--
	}
}

// wakeAll wakes all sleeping receivers: there is nothing for them any more.
func (r *reservers) wakeAll() {
	for r.queue.Len() > 0 {
		r.wake(math.MaxInt)
	}
}

// wake wakes the receiver that has waited longest, unless as many have been woken and have not
// looked yet as there are ready tasks.
func (r *reservers) wake(tasks int) {
	front := r.queue.Front()
	if front == nil || r.woken >= tasks {
		return
	}
	t := front.Value.(*turn)
	r.remove(t)
	r.woken++
	if t.serve != nil {
		t.serve()
	} else {
		close(t.ready)
	}
}

// remoteInFront reports whether the receiver that has waited longest waits at another node.
func (r *reservers) remoteInFront() bool {
	front := r.queue.Front()
	return front != nil && front.Value.(*turn).serve != nil
}

// each visits the items of a queue, in no order. It is meant for tests.
func (q *queue) each(visit func(item)) {
	for i, block := range q.run.blocks {
		if i == 0 {
			block = block[q.run.head:]
		}
		for _, it := range block {
			visit(it)
		}
	}
	for _, it := range q.late {
		visit(it)
	}
}
