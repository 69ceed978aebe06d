package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/lapsehq/lapse/tasks/internal/engine/lifetime"
	"github.com/lapsehq/lapse/tasks/task"
)

// end makes every method refuse new work. It reports whether it was the first to
// do so.
func (s *Engine) end(fault error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Ended {
		return false
	}
	s.Ended, s.Fault = true, fault
	s.Dispatch.Ended = true
	s.Life.End()
	return true
}

// BeginDrain has the node take no new tasks and no shards any more. It returns ErrClosed once Close
// has begun.
func (s *Engine) BeginDrain() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Ended {
		return task.ErrClosed
	}
	s.Draining = true
	return nil
}

// Revoke ends the engine because the ledger has another owner now.
func (s *Engine) Revoke(err error) {
	first := s.end(err)
	if first {
		s.Config.Log.Error("ledger lost to another owner; deliveries stop", "node", s.Config.Node, "error", err)
		s.Life.Finish()
	}
}

// Err is tasks.Scheduler.Err.
func (s *Engine) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Fault
}

// Now is the wall clock in Unix milliseconds, rounded down: a deadline counts as
// reached only when it has passed.
func (s *Engine) Now() int64 { return s.Config.Clock().UnixMilli() }

// Elapsed is the monotonic clock, for leases.
func (s *Engine) Elapsed() time.Duration { return time.Since(s.Started) }

// unlock ends a critical section and passes its events to the observer.
func (s *Engine) unlock() {
	told := s.observed
	s.observed = nil
	s.mu.Unlock()
	for _, e := range told {
		s.Config.Observer.Observe(e)
	}
}

// Close is tasks.Scheduler.Close.
func (s *Engine) Close(ctx context.Context) error {
	return s.Life.Close(func() error {
		s.awaitRestored(ctx)
		s.end(nil)
		return s.shutDown(ctx)
	})
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

	if !lifetime.Ended(ctx, &s.Life.Handlers) {
		s.Config.Log.Warn("handlers, or calls to other nodes, still run after the grace; the handlers' tasks are delivered again", "node", s.Config.Node, "grace", s.Config.Grace)
	}
	s.Life.Cancel()
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), LastWords)
	defer cancelLast()
	lifetime.Ended(last, &s.Life.Handlers)
	s.Cluster.SendLastVerdicts(last)
	// The remaining writes have a timeout of their own: handlers may have used up that of ctx.
	flush, cancelFlush := context.WithTimeout(context.WithoutCancel(ctx), s.Config.AnswerWithin)
	defer cancelFlush()
	s.Life.pulse.End(flush)
	if !lifetime.Ended(flush, &s.Life.Background) {
		s.Config.Log.Warn("closing without the ledger: it does not answer", "node", s.Config.Node)
	}
	s.tellMoved(true)
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
