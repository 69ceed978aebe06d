package tasks

import (
	"container/list"
	"context"
	"fmt"
	"math"
	"time"
)

// Limits of Reserve and of leases.
const (
	MaxReserve  = 1000
	MaxWait     = 60 * time.Second
	MinLease    = time.Second
	MaxLease    = 24 * time.Hour
	leaseText   = "must be from 1 s to 24 h"
	reserveText = "must be from 1 to 1000"
	waitText    = "must be from 0 to 60 s"
)

// Reserve hands out up to limit ready tasks of a topic that is pulled, those
// first that became due first. If there are none, it waits for up to wait, and
// may return none. A lease of 0 is the topic's.
//
// Errors: ErrInvalid; ErrHandled if the topic's tasks go to a handler;
// ErrOverloaded when Config.MaxInFlight deliveries are open; ErrClosed.
func (s *Scheduler) Reserve(ctx context.Context, topic string, limit int, wait, lease time.Duration) ([]Delivery, error) {
	var f faults
	if !validName(topic) {
		f.add("topic", nameProblem)
	}
	if limit < 1 || limit > MaxReserve {
		f.add("max", reserveText)
	}
	if wait < 0 || wait > MaxWait {
		f.add("wait", waitText)
	}
	if lease != 0 && (lease < MinLease || lease > MaxLease) {
		f.add("lease", leaseText)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	var over <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		over = timer.C
	}
	var place turn
	s.mu.Lock()
	for {
		t, err := s.pullableLocked(topic)
		if err != nil {
			s.unlock()
			return nil, err
		}
		begun := s.pullLocked(ctx, t, limit, lease)
		if len(begun) > 0 || wait == 0 || !s.queueLocked(ctx, t, &place, over) {
			s.unlock()
			return handOver(begun), nil
		}
	}
}

// queueLocked waits, without the lock, until it is a receiver's turn to look again.
// It reports false if that did not come in time.
func (s *Scheduler) queueLocked(ctx context.Context, t *topic, place *turn, over <-chan time.Time) (woken bool) {
	if !t.pulled() { // any more: whoever slept has been told already
		return true
	}
	t.reservers.join(place)
	s.wakeLocked(t) // for what became ready while the lock was given up
	s.unlock()
	select {
	case <-place.ready:
		woken = true
	case <-over:
	case <-ctx.Done():
	case <-s.closing:
	}
	s.mu.Lock()
	t.reservers.leave(place)
	if !woken {
		s.wakeLocked(t) // if it has just been woken, somebody else should be
	}
	return woken
}

// pullLocked begins deliveries for a receiver that asks. It may give the lock up
// meanwhile.
func (s *Scheduler) pullLocked(ctx context.Context, t *topic, limit int, lease time.Duration) []*Delivery {
	ctx, cancel := s.within(ctx)
	defer cancel()
	return s.beginLocked(ctx, t, limit, lease, true)
}

// handOver gives deliveries to their receiver.
func handOver(begun []*Delivery) []Delivery {
	ds := make([]Delivery, len(begun))
	for i, d := range begun {
		ds[i] = *d
	}
	return ds
}

func (s *Scheduler) pullableLocked(name string) (*topic, error) {
	if s.ended {
		return nil, ErrClosed
	}
	t, err := s.topicLocked(name)
	switch {
	case err != nil:
		return nil, err
	case !t.pulled():
		return nil, ErrHandled
	case s.roomLocked() <= 0:
		s.holdLocked(t)
		return nil, fmt.Errorf("%w: %d deliveries are open", ErrOverloaded, s.away+s.pledged)
	}
	return t, nil
}

// reservers are the receivers that wait for a topic's tasks, first come, first
// served. Guarded by Scheduler.mu.
type reservers struct {
	queue list.List // of those that sleep
	woken int       // those that were woken and have not looked yet
	last  uint64    // the number drawn last
}

// A turn is one waiting receiver. It keeps its number for as long as it waits: one
// that was woken, and found that another had been faster, is not the last one again.
type turn struct {
	number uint64 // drawn when it joins for the first time
	ready  chan struct{}
	place  *list.Element // while it sleeps
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
}

// leave is called by every receiver that has joined, woken or not.
func (r *reservers) leave(t *turn) {
	if t.place == nil {
		r.woken--
		return
	}
	r.queue.Remove(t.place)
	t.place = nil
}

// dismiss lets all look who sleep: there is nothing for them any more.
func (r *reservers) dismiss() {
	for r.queue.Len() > 0 {
		r.wake(math.MaxInt)
	}
}

// wake lets the one that has waited longest look, unless there are enough on their
// way for so many ready tasks.
func (r *reservers) wake(tasks int) {
	front := r.queue.Front()
	if front == nil || r.woken >= tasks {
		return
	}
	t := r.queue.Remove(front).(*turn)
	t.place = nil
	r.woken++
	close(t.ready)
}
