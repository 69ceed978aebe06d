package tasks

import (
	"container/list"
	"context"
	"fmt"
	"math"
	"time"
)

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
