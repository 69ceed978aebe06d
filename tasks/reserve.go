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
		ds := s.pullLocked(ctx, t, limit, lease)
		if len(ds) > 0 || wait == 0 {
			s.unlock()
			for i := range ds {
				ds[i].Receipt = s.signer.sign(&ds[i])
			}
			return ds, nil
		}
		turn := t.reservers.join()
		s.unlock()
		select {
		case <-turn.ready:
			continue
		case <-over:
		case <-ctx.Done():
		case <-s.closing:
		}
		s.mu.Lock()
		t.reservers.leave(turn)
		s.wakeLocked(t) // if this one had just been woken, somebody else should be
		s.unlock()
		return nil, nil
	}
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
	case s.pulled >= s.cfg.MaxInFlight:
		return nil, fmt.Errorf("%w: %d deliveries are open", ErrOverloaded, s.pulled)
	}
	return t, nil
}

// pullLocked takes and hands out. It gives the lock up and takes it again while
// attempts are being recorded.
func (s *Scheduler) pullLocked(ctx context.Context, t *topic, limit int, lease time.Duration) []Delivery {
	term := lease
	if term == 0 {
		term = t.settings.Lease
	}
	limit = min(limit, s.cfg.MaxInFlight-s.pulled)
	var taken []uint32
	now := s.now()
	for len(taken) < limit {
		n, _, ok := s.takeLocked(t, now)
		if !ok {
			break
		}
		taken = append(taken, n)
	}
	claimed := t.settings.CountCrashes
	if claimed && len(taken) > 0 {
		c := newCall(len(taken))
		for i, n := range taken {
			s.claimLocked(n, s.book.slot(n), c, i)
		}
		c.complete()
		s.unlock()
		taken = s.claim(ctx, c, taken)
	}
	ds := make([]Delivery, len(taken))
	for i, n := range taken {
		ds[i] = *s.handOutLocked(n, s.book.slot(n), term, claimed)
		s.leaveOpenLocked(n)
		ds[i].lease.away = true
	}
	if t.queue.live > 0 {
		s.wakeLocked(t) // one push wakes one receiver; it may have left some
	}
	return ds
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
