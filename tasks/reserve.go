package tasks

import (
	"container/list"
	"context"
	"fmt"
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
	for {
		s.mu.Lock()
		t, err := s.pullableLocked(topic)
		if err != nil {
			s.unlock()
			return nil, err
		}
		begun := s.pullLocked(ctx, t, limit, lease)
		if len(begun) > 0 || wait == 0 {
			s.unlock()
			return s.handOver(begun), nil
		}
		turn := t.reservers.join()
		s.wakeLocked(t) // for what became ready while the lock was given up
		s.unlock()
		select {
		case <-turn.ready:
			continue
		case <-over:
		case <-ctx.Done():
		case <-s.closing:
		}
		s.depart(t, turn)
		return nil, nil
	}
}

// depart ends a receiver's wait. If it had just been woken, somebody else should be.
func (s *Scheduler) depart(t *topic, turn *turn) {
	s.mu.Lock()
	defer s.unlock()
	t.reservers.leave(turn)
	s.wakeLocked(t)
}

// pullLocked begins deliveries for a receiver that asks. It may give the lock up
// meanwhile.
func (s *Scheduler) pullLocked(ctx context.Context, t *topic, limit int, lease time.Duration) []*Delivery {
	ctx, cancel := s.within(ctx)
	defer cancel()
	return s.beginLocked(ctx, t, limit, lease, true)
}

// handOver signs deliveries for their receiver.
func (s *Scheduler) handOver(begun []*Delivery) []Delivery {
	ds := make([]Delivery, len(begun))
	for i, d := range begun {
		ds[i] = *d
		ds[i].Receipt = s.signer.sign(d)
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
	case t.deliverer != nil:
		return nil, ErrHandled
	case s.away >= s.cfg.MaxInFlight:
		return nil, fmt.Errorf("%w: %d deliveries are open", ErrOverloaded, s.away)
	}
	return t, nil
}

// Return gives deliveries back that never reached their receiver: they are ready
// again at once, and the attempt does not count.
func (s *Scheduler) Return(ds []Delivery) {
	s.mu.Lock()
	defer s.unlock()
	for i := range ds {
		n := ds[i].slot
		if l, ok := s.open[n]; ok && l.nonce == ds[i].lease.nonce {
			s.putBackLocked(n, s.book.slot(n))
		}
	}
}

// reservers are the receivers that wait for a topic's tasks, first come, first
// served. Guarded by Scheduler.mu.
type reservers struct{ queue list.List }

// A turn is one waiting receiver.
type turn struct {
	ready chan struct{}
	place *list.Element
}

func (r *reservers) join() *turn {
	t := &turn{ready: make(chan struct{})}
	t.place = r.queue.PushBack(t)
	return t
}

func (r *reservers) leave(t *turn) {
	if t.place != nil {
		r.queue.Remove(t.place)
		t.place = nil
	}
}

// wake lets the one that has waited longest look again.
func (r *reservers) wake() {
	if front := r.queue.Front(); front != nil {
		t := front.Value.(*turn)
		r.leave(t)
		close(t.ready)
	}
}
