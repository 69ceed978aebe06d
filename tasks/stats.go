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
		Node: s.cfg.Node, At: s.cfg.Clock(), Topics: sums.topics, Readiness: ready,
		Others: sums.others, Beyond: sums.beyond, Total: sums.others,
		Ledger: s.committer.Stats(), Armed: s.runner.Len(), Ways: s.cfg.ByKind.Stats(),
	}
	if s.shared != nil && s.shared.relay != nil {
		st.Relay = s.shared.relay.Stats()
	}
	for i := range st.Topics {
		st.Total.Add(&st.Topics[i].Counts)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Rescued, st.LeasesReturned = s.sweep.rescued, s.sweep.leases
	st.AuditChecked, st.AuditRepaired = s.sweep.checked, s.sweep.repaired
	st.Rewinds = s.sweep.rewinds
	st.MissedWakes, st.Backlog, st.Backlogs = s.sweep.missedWakes, s.backlog, s.sweep.backlogs
	st.Workers, st.Crowd = s.workers, len(s.contenders)
	st.Concurrency = task.DefaultConcurrency
	if s.sweep.raised {
		st.Concurrency = s.cfg.SweepMaxConcurrency
	}
	for _, h := range s.shards {
		if h.mine() {
			st.ShardsHeld++
			if h.shardID != 0 && h.shardID.Node() != s.nodeNumber {
				st.ShardsAdopted++
			}
		}
	}
	n := &s.shardCounts
	st.ShardsGained, st.ShardsYielded, st.ShardsLost, st.TasksDropped = n.acquired, n.transferred, n.revoked, n.evicted
	st.UnsureDeliveries, st.LostDeliveries = n.unsure, n.doubtful
	x := &s.peers.counts
	st.ReservesGiven, st.ReservesTaken = x.reservesGiven, x.reservesTaken
	st.HelpTaken, st.HelpGiven = x.offloadedOut, x.offloadedIn
	st.Subscriptions, st.EventsLost = s.feed.count, s.feed.lost
	st.FullSweeps, st.FullSweepAt, st.FullSweepTook = s.sweep.fulls, s.sweep.last.at, s.sweep.lastTook
	st.ClockSteps, st.UnknownRecords = s.sweep.clockSteps, s.unknown
	st.Spool = s.spoolStatsLocked()
	st.ArenaBytes, st.ArenaLive = s.store.Size(), s.store.Live()
	return st
}

// Readiness tells how far the scheduler is.
func (s *Scheduler) Readiness() Readiness {
	r := Readiness{LedgerOK: true, Unsure: s.unsure()}
	r.Stalled = s.committer.Stats().Stall
	if r.Stalled > s.cfg.AnswerWithin {
		r.LedgerOK = false
	} else {
		r.Stalled = 0
	}
	if err := s.condition(); err != nil {
		r.LedgerOK, r.Condition = false, err.Error()
	}
	if reporter, ok := s.ledger.(recovery.Reporter); ok {
		r.Storage = reporter.Health()
		r.LedgerOK = r.LedgerOK && r.Storage.Err == nil
	}
	r.Waiting = append(s.waits.List(), r.Storage.Waiting...)
	slices.SortStableFunc(r.Waiting, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Ready, r.Away, r.Draining = s.settledLocked(), len(s.missing), s.draining
	r.Replayed, r.Elapsed = s.progress.Read, s.progress.Elapsed
	if p := &s.progress; !p.Done && !p.Began.IsZero() {
		r.Elapsed = time.Since(p.Began) // the last report may be old, or there was none
	}
	if s.fault != nil {
		r.LedgerOK, r.Condition = false, s.fault.Error()
	}
	return r
}
