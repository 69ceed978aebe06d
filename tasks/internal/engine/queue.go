package engine

import (
	"container/heap"
	"container/list"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A Queue holds a topic's ready tasks, those that became due first in front.
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
type Queue struct {
	Run   ring
	late  lateHeap
	Live  int // items that are not stale
	Count int
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
	heap.Push(&q.late, it)
}

// Pop returns the front item, stale or not; the caller calls took if it was live.
func (q *Queue) Pop() (Item, bool) {
	if q.Count == 0 {
		return Item{}, false
	}
	q.Count--
	first, ok := q.Run.first()
	if !ok || len(q.late) > 0 && q.late[0].Next < first.Next {
		return heap.Pop(&q.late).(Item), true
	}
	q.Run.shift()
	return first, true
}

// Gone tells that one live item has been taken or has become stale.
func (q *Queue) Gone() { q.Live-- }

// Crowded tells that clean is worth its cost.
func (q *Queue) Crowded() bool { return q.Count > 1024 && q.Count > 4*q.Live }

// Clean drops what is stale.
func (q *Queue) Clean(stale func(value uint64) bool) {
	old := *q
	*q = Queue{}
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

type lateHeap []Item

func (h lateHeap) Len() int           { return len(h) }
func (h lateHeap) Less(i, j int) bool { return h[i].Next < h[j].Next }
func (h lateHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lateHeap) Push(x any)        { *h = append(*h, x.(Item)) }
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
}

const ringBlock = 1024

func (r *ring) push(it Item) {
	k := len(r.Blocks)
	if k == 0 || len(r.Blocks[k-1]) == cap(r.Blocks[k-1]) {
		size := ringBlock
		if k == 0 {
			size = 16 // most queues hold a few tasks at a time
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

// Pull hands ready tasks of a topic to a receiver, which leaves the queue if it stands there.
// Errors: as of tasks.Scheduler.Reserve.
func (s *Engine) Pull(ctx context.Context, name string, reserved bool, place *Turn, lease time.Duration) ([]*Delivery, error) {
	ctx, cancel := s.Within(ctx)
	defer cancel()
	b := beginning{by: byReceiver, term: lease, limit: place.Limit, place: place, name: name, reserved: reserved}
	return s.run(ctx, &b), b.err
}

// Queue puts a receiver to sleep until it is its turn to look again, or until it was given
// deliveries. It reports false if neither came in time. demand, which may be nil, returns what
// the receiver shares with others and what begins to ask other nodes. Both are called with the lock
// held. Errors: as of tasks.Scheduler.Reserve.
func (s *Engine) Queue(ctx context.Context, name string, reserved bool, place *Turn, over <-chan time.Time, demand func(t *Topic) (want *int, ask func() <-chan struct{})) (woken bool, err error) {
	s.Mu.Lock()
	t, err := s.PullableLocked(name, reserved)
	if err != nil {
		s.Unlock()
		return false, err
	}
	var ask func() <-chan struct{}
	if demand != nil {
		place.Want, ask = demand(t)
	}
	place.topic = t
	t.Reservers.Join(place)
	s.WakeLocked(t) // for tasks that became ready while the lock was released
	var search <-chan struct{}
	if ask != nil {
		search = ask()
	}
	s.Unlock()
	woken = place.wait(ctx, s.Life.Closing, over, search)
	s.Mu.Lock()
	defer s.Unlock()
	switch {
	case len(place.Fetched) > 0:
		woken = true
	case woken:
		return true, nil // Pull takes it off the queue
	}
	t.Reservers.Leave(place)
	place.topic = nil
	if !woken {
		s.WakeLocked(t) // if it has just been woken, another receiver should be
	}
	return woken, nil
}

// wait reports whether the turn has come. While other nodes are being asked, it waits for their
// answers even if the receiver's time is over: what they have is worth the moment.
func (t *Turn) wait(ctx context.Context, closing <-chan struct{}, over <-chan time.Time, search <-chan struct{}) bool {
	if !t.Late {
		select {
		case <-t.Ready:
			return true
		case <-over:
			t.Late = true
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
	case <-t.Ready:
		return true
	case <-search:
	case <-ctx.Done():
	case <-closing:
	}
	return false
}

// PullableLocked returns a topic from which a receiver may take tasks. Errors: as of
// tasks.Scheduler.Reserve.
func (s *Engine) PullableLocked(name string, reserved bool) (*Topic, error) {
	if s.Ended {
		return nil, task.ErrClosed
	}
	t, err := s.TopicLocked(name, reserved)
	switch {
	case err != nil:
		return nil, err
	case t.unread():
		return nil, errSettingsUnread
	case !t.Pulled():
		return nil, task.ErrHandled
	case s.roomLocked() <= 0:
		s.holdLocked(t)
		return nil, fmt.Errorf("%w: %d deliveries are open", task.ErrOverloaded, s.Dispatch.LeasedOut+s.Dispatch.ReservedInFlight)
	}
	return t, nil
}

// Reservers are the receivers that wait for a topic's tasks, first come, first served.
// Guarded by Engine.Mu.
type Reservers struct {
	Queue list.List // of sleeping receivers
	Woken int       // receivers that were woken and have not looked yet
	last  uint64    // the last number drawn
}

// A Turn is one waiting receiver. It keeps its number for as long as it waits: a receiver that
// was woken too late, because another had been faster, keeps its place in the queue.
type Turn struct {
	Number uint64 // drawn when it joins for the first time
	Ready  chan struct{}
	Place  *list.Element // while it sleeps

	Serve func() // of a remoteWaiter: called instead of closing ready

	// Of others:
	Limit   int         // how many tasks it takes
	Late    bool        // the time to wait is over
	Want    *int        // what it shares with other sleeping receivers: how many tasks all take; may be nil
	Fetched []*Delivery // from other nodes
	topic   *Topic      // in whose queue it stands, or was woken; nil if in none
}

// Join puts a receiver to sleep at the place that its number gives it.
func (r *Reservers) Join(t *Turn) {
	if t.Number == 0 {
		r.last++
		t.Number = r.last
	}
	t.Ready = make(chan struct{})
	before := r.Queue.Back()
	for before != nil && before.Value.(*Turn).Number > t.Number {
		before = before.Prev()
	}
	if before == nil {
		t.Place = r.Queue.PushFront(t)
	} else {
		t.Place = r.Queue.InsertAfter(t, before)
	}
	if t.Want != nil {
		*t.Want += t.Limit
	}
}

// remove takes a sleeping receiver out of the queue.
func (r *Reservers) remove(t *Turn) {
	r.Queue.Remove(t.Place)
	t.Place = nil
	if t.Want != nil {
		*t.Want -= t.Limit
	}
}

// Give wakes a sleeping receiver with deliveries of another node.
func (r *Reservers) Give(t *Turn, ds []*Delivery) {
	r.remove(t)
	t.Fetched = ds
	close(t.Ready)
}

// Leave is called by every receiver that has joined, woken or not.
func (r *Reservers) Leave(t *Turn) {
	switch {
	case t.Place != nil:
		r.remove(t)
	case t.Fetched == nil:
		r.Woken--
	}
}

// wakeAll wakes all sleeping receivers: there is nothing for them any more.
func (r *Reservers) wakeAll() {
	for r.Queue.Len() > 0 {
		r.Wake(math.MaxInt)
	}
}

// Wake wakes the receiver that has waited longest, unless as many have been woken and have not
// looked yet as there are ready tasks.
func (r *Reservers) Wake(tasks int) {
	front := r.Queue.Front()
	if front == nil || r.Woken >= tasks {
		return
	}
	t := front.Value.(*Turn)
	r.remove(t)
	r.Woken++
	if t.Serve != nil {
		t.Serve()
	} else {
		close(t.Ready)
	}
}

// remoteInFront reports whether the receiver that has waited longest waits at another node.
func (r *Reservers) remoteInFront() bool {
	front := r.Queue.Front()
	return front != nil && front.Value.(*Turn).Serve != nil
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
		visit(it)
	}
}
