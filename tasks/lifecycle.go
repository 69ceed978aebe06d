package tasks

import (
	"context"
	"sync"
	"time"
)

// ended waits for goroutines, until ctx ends.
func ended(ctx context.Context, group *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *Scheduler) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

// end makes every method refuse new work. It reports whether it was the first to
// do so.
func (s *Scheduler) end(fault error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.ended, s.fault = true, fault
	close(s.closing)
	return true
}

// revoke ends the scheduler because the ledger has another owner now.
func (s *Scheduler) revoke(err error) {
	first := s.end(err)
	if first {
		s.cfg.Log.Error("the ledger has passed to another owner; nothing more is delivered here", "error", err)
		s.finish()
	}
}

// Done is closed when the scheduler has ended: after Close, or because the
// ledger has passed to another owner.
func (s *Scheduler) Done() <-chan struct{} { return s.done }

// Err tells why the scheduler ended by itself; nil while it runs and after an
// ordinary Close.
func (s *Scheduler) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// now is the wall clock in Unix milliseconds, rounded down: a deadline counts as
// reached only when it has passed.
func (s *Scheduler) now() int64 { return s.cfg.Clock().UnixMilli() }

// elapsed is the monotonic clock, for leases.
func (s *Scheduler) elapsed() time.Duration { return time.Since(s.started) }

// unlock ends a critical section and tells the observer what happened in it.
func (s *Scheduler) unlock() {
	events := s.events
	s.events = nil
	s.mu.Unlock()
	for _, e := range events {
		s.cfg.Observer.Observe(e)
	}
}
