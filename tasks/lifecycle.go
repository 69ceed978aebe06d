package tasks

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-multierror"
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

func (s *engine) finish() {
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
func (s *engine) end(fault error) bool {
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
func (s *engine) revoke(err error) {
	first := s.end(err)
	if first {
		s.cfg.Log.Error("the ledger has passed to another owner; nothing more is delivered here", "error", err)
		s.finish()
	}
}

// Done is tasks.Scheduler.Done.
func (s *engine) Done() <-chan struct{} { return s.done }

// Err is tasks.Scheduler.Err.
func (s *engine) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// now is the wall clock in Unix milliseconds, rounded down: a deadline counts as
// reached only when it has passed.
func (s *engine) now() int64 { return s.cfg.Clock().UnixMilli() }

// elapsed is the monotonic clock, for leases.
func (s *engine) elapsed() time.Duration { return time.Since(s.started) }

// unlock ends a critical section and tells the observer what happened in it.
func (s *engine) unlock() {
	events := s.events
	s.events = nil
	s.mu.Unlock()
	for _, e := range events {
		s.cfg.Observer.Observe(e)
	}
}

// close is Scheduler.Close.
func (s *engine) close(ctx context.Context) error {
	if s.closeBegun.CompareAndSwap(false, true) {
		s.end(nil)
		s.closeErr = s.shutDown(ctx)
		s.finish()
		close(s.closed)
	}
	<-s.closed
	return s.closeErr
}

// lastWords is how long Close waits for handlers whose context it has cancelled, so that
// what becomes of their attempts is recorded. Those that do not mind it are given up.
const lastWords = 100 * time.Millisecond

func (s *engine) shutDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Grace)
	defer cancel()

	if !ended(ctx, &s.handlers) {
		s.cfg.Log.Warn("handlers still run at the end of the grace; their tasks are delivered again after the next start", "grace", s.cfg.Grace)
	}
	s.cancel()
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
	defer cancelLast()
	ended(last, &s.handlers)
	s.cluster.sendLastVerdicts(last)
	// What is left has a time of its own: handlers may have used up theirs.
	flush, cancelFlush := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.AnswerWithin)
	defer cancelFlush()
	if !ended(flush, &s.background) {
		s.cfg.Log.Warn("the ledger does not answer; it is given up")
	}
	s.cluster.leave()
	s.runner.Close()
	s.park()
	var all *multierror.Error
	if err := s.committer.Close(flush); err != nil {
		all = multierror.Append(all, err)
	}
	if err := s.closeSpool(ctx); err != nil {
		all = multierror.Append(all, fmt.Errorf("spool: %w", err))
	}
	if err := s.ledger.Close(); err != nil {
		all = multierror.Append(all, err)
	}
	return all.ErrorOrNil()
}
