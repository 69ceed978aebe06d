package engine

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

// Enter counts the caller as a handler, which Close waits for, until Handlers.Done is called. It
// reports false once Close has begun. It may be called with Engine.Mu held.
func (l *lifetime) Enter() bool { return l.unlessClosing(func() { l.Handlers.Add(1) }) }

// Handle runs f in a goroutine that counts as a handler. It reports false once Close has begun.
func (l *lifetime) Handle(f func()) bool { return l.unlessClosing(func() { l.Handlers.Go(f) }) }

// Go runs f in the background, see Background. It reports false once Close has begun.
func (l *lifetime) Go(f func()) bool { return l.unlessClosing(func() { l.Background.Go(f) }) }

func (l *lifetime) unlessClosing(f func()) bool {
	l.ending.Lock()
	defer l.ending.Unlock()
	if isClosed(l.Closing) {
		return false
	}
	f()
	return true
}

func (s *Engine) finish() {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	select {
	case <-s.Life.done:
	default:
		close(s.Life.done)
	}
}

// Every calls f once in every period, until Close begins.
func (s *Engine) Every(period time.Duration, f func()) {
	s.EveryOr(period, nil, func(bool) { f() })
}

// EveryOr calls f once in every period, and whenever it receives from wake, until Close begins. It
// tells f whether it was woken.
func (s *Engine) EveryOr(period time.Duration, wake <-chan struct{}, f func(woken bool)) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f(false)
		case <-wake:
			f(true)
		case <-s.Life.Closing:
			return
		}
	}
}

// end makes every method refuse new work. It reports whether it was the first to
// do so.
func (s *Engine) end(fault error) bool {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Ended {
		return false
	}
	s.Ended, s.Fault = true, fault
	s.Dispatch.Ended = true
	s.Life.ending.Lock()
	defer s.Life.ending.Unlock()
	close(s.Life.Closing)
	return true
}

// Revoke ends the engine because the ledger has another owner now.
func (s *Engine) Revoke(err error) {
	first := s.end(err)
	if first {
		s.Config.Log.Error("ledger lost to another owner; deliveries stop", "node", s.Config.Node, "error", err)
		s.finish()
	}
}

// Done is tasks.Scheduler.Done.
func (s *Engine) Done() <-chan struct{} { return s.Life.done }

// Err is tasks.Scheduler.Err.
func (s *Engine) Err() error {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	return s.Fault
}

// Now is the wall clock in Unix milliseconds, rounded down: a deadline counts as
// reached only when it has passed.
func (s *Engine) Now() int64 { return s.Config.Clock().UnixMilli() }

// Elapsed is the monotonic clock, for leases.
func (s *Engine) Elapsed() time.Duration { return time.Since(s.Started) }

// Unlock ends a critical section and passes its events to the observer.
func (s *Engine) Unlock() {
	told := s.observed
	s.observed = nil
	s.Mu.Unlock()
	for _, e := range told {
		s.Config.Observer.Observe(e)
	}
}

// Close is tasks.Scheduler.Close.
func (s *Engine) Close(ctx context.Context) error {
	if s.Life.closeBegun.CompareAndSwap(false, true) {
		s.awaitRestored(ctx)
		s.end(nil)
		s.Life.closeErr = s.shutDown(ctx)
		s.finish()
		close(s.Life.closed)
	}
	<-s.Life.closed
	return s.Life.closeErr
}

// awaitRestored waits until shards whose storage has lost writes are equal to memory again: the
// next process would read what is left. It gives up after Config.Grace, or when the ledger has not
// answered for as long as a caller waits.
func (s *Engine) awaitRestored(ctx context.Context) {
	if !isClosed(s.Life.Opened) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.Config.Grace)
	defer cancel()
	tick := time.NewTicker(BusyPause)
	defer tick.Stop()
	for began := s.Elapsed(); s.Restoring(); {
		select {
		case <-tick.C:
			if !s.Committer.AnyDown() || s.Elapsed()-began < s.Config.AnswerWithin {
				continue
			}
		case <-ctx.Done():
		case <-s.Life.Closing: // the ledger was lost
			return
		}
		s.Config.Log.Error("closing before all that the ledger had lost is written again", "node", s.Config.Node)
		return
	}
}

// LastWords is how long Close waits for handlers whose context it has cancelled, so that the
// outcomes of their attempts are recorded. Close gives up handlers that ignore their context.
const LastWords = 100 * time.Millisecond

func (s *Engine) shutDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Config.Grace)
	defer cancel()

	if !ended(ctx, &s.Life.Handlers) {
		s.Config.Log.Warn("handlers, or calls to other nodes, still run after the grace; the handlers' tasks are delivered again", "node", s.Config.Node, "grace", s.Config.Grace)
	}
	s.Life.Cancel()
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), LastWords)
	defer cancelLast()
	ended(last, &s.Life.Handlers)
	s.Cluster.SendLastVerdicts(last)
	// The remaining writes have a timeout of their own: handlers may have used up that of ctx.
	flush, cancelFlush := context.WithTimeout(context.WithoutCancel(ctx), s.Config.AnswerWithin)
	defer cancelFlush()
	s.Life.pulse.End(flush)
	if !ended(flush, &s.Life.Background) {
		s.Config.Log.Warn("closing without the ledger: it does not answer", "node", s.Config.Node)
	}
	s.tellHandOvers(true)
	s.tellLost(true)
	s.Cluster.Leave()
	s.Runner.Close()
	s.park()
	s.tellHeldBack()
	var all *multierror.Error
	if err := s.Committer.Close(flush); err != nil {
		all = multierror.Append(all, err)
	}
	if err := s.closeSpool(ctx); err != nil {
		all = multierror.Append(all, fmt.Errorf("spool: %w", err))
	}
	if err := s.Ledger.Close(); err != nil {
		all = multierror.Append(all, err)
	}
	return all.ErrorOrNil()
}
