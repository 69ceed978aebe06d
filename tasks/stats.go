package tasks

import (
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// Stats returns the figures. With more than MaxStatsTopics topics, what it says of topics may
// be a second old.
func (s *Scheduler) Stats() Stats {
	ready, sums := s.Readiness(), s.topicSums()
	st := Stats{
		Node: s.engine.cfg.Node, At: s.engine.cfg.Clock(), Topics: sums.topics, Readiness: ready,
		Others: sums.others, Beyond: sums.beyond, Total: sums.others,
		Ledger: s.engine.committer.Stats(), Armed: s.engine.runner.Len(), Ways: s.engine.cfg.ByKind.Stats(),
	}
	if s.shared != nil && s.shared.relay != nil {
		st.Relay = s.shared.relay.Stats()
	}
	for i := range st.Topics {
		st.Total.Add(&st.Topics[i].Counts)
	}
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	st.Rescued, st.LeasesReturned = s.engine.sweep.rescued, s.engine.sweep.leases
	st.AuditChecked, st.AuditRepaired = s.engine.sweep.checked, s.engine.sweep.repaired
	st.Rewinds = s.engine.sweep.rewinds
	st.MissedWakes, st.Backlog, st.Backlogs = s.engine.sweep.missedWakes, s.engine.backlog, s.engine.sweep.backlogs
	st.Workers, st.Crowd = s.engine.workers, len(s.engine.contenders)
	st.Concurrency = task.DefaultConcurrency
	if s.engine.sweep.raised {
		st.Concurrency = s.engine.cfg.SweepMaxConcurrency
	}
	for _, h := range s.engine.shards {
		if h.mine() {
			st.ShardsHeld++
			if h.shardID != 0 && h.shardID.Node() != s.engine.nodeNumber {
				st.ShardsAdopted++
			}
		}
	}
	n := &s.engine.shardCounts
	st.ShardsGained, st.ShardsYielded, st.ShardsLost, st.TasksDropped = n.acquired, n.transferred, n.revoked, n.evicted
	st.UnsureDeliveries, st.LostDeliveries = n.unsure, n.doubtful
	x := &s.peers.counts
	st.ReservesGiven, st.ReservesTaken = x.reservesGiven, x.reservesTaken
	st.HelpTaken, st.HelpGiven = x.offloadedOut, x.offloadedIn
	st.Subscriptions, st.EventsLost = s.engine.feed.count, s.engine.feed.lost
	st.FullSweeps, st.FullSweepAt, st.FullSweepTook = s.engine.sweep.fulls, s.engine.sweep.last.at, s.engine.sweep.lastTook
	st.ClockSteps, st.UnknownRecords = s.engine.sweep.clockSteps, s.engine.unknown
	st.Spool = s.engine.spoolStatsLocked()
	st.ArenaBytes, st.ArenaLive = s.engine.store.Size(), s.engine.store.Live()
	return st
}

// Readiness tells how far the scheduler is.
func (s *Scheduler) Readiness() Readiness {
	r := Readiness{LedgerOK: true, Unsure: s.engine.unsure()}
	r.Stalled = s.engine.committer.Stats().Stall
	if r.Stalled > s.engine.cfg.AnswerWithin {
		r.LedgerOK = false
	} else {
		r.Stalled = 0
	}
	if err := s.engine.condition(); err != nil {
		r.LedgerOK, r.Condition = false, err.Error()
	}
	if reporter, ok := s.engine.ledger.(recovery.Reporter); ok {
		r.Storage = reporter.Health()
		r.LedgerOK = r.LedgerOK && r.Storage.Err == nil
	}
	r.Waiting = append(s.engine.waits.List(), r.Storage.Waiting...)
	slices.SortStableFunc(r.Waiting, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	r.Ready, r.Away, r.Draining = s.settledLocked(), len(s.missing), s.engine.draining
	r.Replayed, r.Elapsed = s.engine.progress.Read, s.engine.progress.Elapsed
	if p := &s.engine.progress; !p.Done && !p.Began.IsZero() {
		r.Elapsed = time.Since(p.Began) // the last report may be old, or there was none
	}
	if s.engine.fault != nil {
		r.LedgerOK, r.Condition = false, s.engine.fault.Error()
	}
	return r
}
