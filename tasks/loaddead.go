package tasks

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/recovery"
)

const (
	// deadShardsAtOnce is of how many shards the indexes of the dead are read at once.
	deadShardsAtOnce = 4
	// deadFailsEvery is the time between two log lines about an index that cannot be read.
	deadFailsEvery = 10 * time.Second
	// waitsForDead is what readiness calls it.
	waitsForDead = "the index of the dead"
)

// loadDead learns which ids are dead, and how many of which topic. Where the ledger has an
// index it reads no records. What a ledger of several nodes does not answer is asked for
// again until ctx ends.
func (s *Scheduler) loadDead(ctx context.Context) error {
	scanner, ok := s.ledger.(recovery.DeadScanner)
	if !ok {
		return s.ledger.ListDead(ctx, "", recovery.Ref{}, func(e recovery.Entry) bool {
			s.learnDead(e.Shard, e)
			return true
		})
	}
	defer s.waits.Clear(waitsForDead)
	shards, loading := errgroup.WithContext(ctx)
	shards.SetLimit(deadShardsAtOnce)
	for n := range s.terms.Shards {
		shards.Go(func() error { return s.loadDeadOf(loading, scanner, n) })
	}
	return shards.Wait()
}

// loadDeadOf is loadDead of one shard. A shard that was lost meanwhile is no error.
func (s *Scheduler) loadDeadOf(ctx context.Context, scanner recovery.DeadScanner, n int) error {
	var backoff recovery.Backoff
	var told time.Time
	for attempt := 0; ; attempt++ {
		err := scanner.ScanDead(ctx, n, func(e recovery.Entry) { s.learnDead(n, e) })
		switch {
		case err == nil, errors.Is(err, recovery.ErrLost):
			return nil
		case s.fleet == nil, errors.Is(err, recovery.ErrClosed):
			return err
		}
		s.waits.Set(waitsForDead, err.Error())
		if told.IsZero() || time.Since(told) >= deadFailsEvery {
			told = time.Now()
			s.cfg.Log.Warn("the index of the dead cannot be read; the start waits for it", "node", s.cfg.Node, "shard", n, "error", err)
		}
		if cause := backoff.Wait(ctx, attempt); cause != nil {
			return errors.Join(cause, err)
		}
	}
}

// learnDead notes a dead task that the ledger has told of. It may be told again.
func (s *Scheduler) learnDead(n int, e recovery.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.holdingLocked(n)
	if !h.mine() || h.stage == gained {
		return
	}
	if _, again := h.graves[s.book.index.hash(e.ID)]; !again {
		s.enterGraveLocked(s.keptTopic([]byte(e.Spot.Label)), n, e.ID, e.Spot.At)
	}
}
