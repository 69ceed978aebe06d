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
	ready, sums := s.Readiness(), s.cluster.TopicSums()
	st := Stats{
		Node: s.engine.Config.Node, At: s.engine.Config.Clock(), Topics: sums.Topics, Readiness: ready,
		Others: sums.Others, Beyond: sums.Beyond, Total: sums.Others,
		Ledger: s.engine.Committer.Stats(), Armed: s.engine.Runner.Len(), Ways: s.engine.Config.ByKind.Stats(),
	}
	if s.cluster.Fleet != nil && s.cluster.Fleet.Relay != nil {
		st.Relay = s.cluster.Fleet.Relay.Stats()
	}
	for i := range st.Topics {
		c := st.Topics[i].Counts.WithoutRest(st.Topics[i].Settings.Paused)
		st.Total.Add(&c)
	}
	s.engine.Mu.Lock()
	defer s.engine.Mu.Unlock()
	st.Rescued, st.LeasesReturned = s.engine.Sweep.Rescued, s.engine.Sweep.Leases
	st.AuditChecked, st.AuditRepaired = s.engine.Sweep.Checked, s.engine.Sweep.Repaired
	st.Rewinds = s.engine.Sweep.Rewinds
	st.MissedWakes, st.Backlog, st.Backlogs = s.engine.Sweep.MissedWakes, s.engine.Dispatch.Backlog, s.engine.Sweep.Backlogs
	st.Workers, st.Crowd = s.engine.Dispatch.Workers, s.engine.Dispatch.Contenders()
	st.Concurrency = task.DefaultConcurrency
	if s.engine.Dispatch.Raised {
		st.Concurrency = s.engine.Config.SweepMaxConcurrency
	}
	for _, h := range s.engine.Shards.List {
		if h.Mine() {
			st.ShardsHeld++
			if h.ShardID != 0 && h.ShardID.Node() != s.engine.NodeNumber {
				st.ShardsAdopted++
			}
		}
	}
	n := &s.engine.Shards.Counts
	st.ShardsGained, st.ShardsYielded, st.ShardsLost, st.TasksDropped = n.Acquired, n.Transferred, n.Revoked, n.Evicted
	st.UnsureDeliveries, st.LostDeliveries = n.Unsure, n.Doubtful
	x := &s.cluster.Peers.Counts
	st.ReservesGiven, st.ReservesTaken = x.ReservesGiven, x.ReservesTaken
	st.HelpTaken, st.HelpGiven = x.OffloadedOut, x.OffloadedIn
	st.SettlementsDropped = s.cluster.Forward.Dropped
	st.Subscriptions, st.EventsLost = s.engine.Feed.Count, s.engine.Feed.Lost
	st.FullSweeps, st.FullSweepAt, st.FullSweepTook = s.engine.Sweep.Fulls, s.engine.Sweep.Last.At, s.engine.Sweep.LastTook
	st.ClockSteps, st.UnknownRecords = s.engine.Sweep.ClockSteps, s.engine.Reading.Unknown
	st.Spool = s.engine.SpoolStatsLocked()
	st.ArenaBytes, st.ArenaLive = s.engine.Store.Size(), s.engine.Store.Live()
	return st
}

// Readiness tells how far the scheduler is.
func (s *Scheduler) Readiness() Readiness {
	r := Readiness{LedgerOK: true, Unsure: s.engine.Unsure()}
	r.Stalled = s.engine.Committer.Stats().Stall
	if r.Stalled > s.engine.Config.AnswerWithin {
		r.LedgerOK = false
	} else {
		r.Stalled = 0
	}
	if err := s.engine.Condition(); err != nil {
		r.LedgerOK, r.Condition = false, err.Error()
	}
	if reporter, ok := s.engine.Ledger.(recovery.Reporter); ok {
		r.Storage = reporter.Health()
		r.LedgerOK = r.LedgerOK && r.Storage.Err == nil
	}
	r.Waiting = append(s.engine.Waits.List(), r.Storage.Waiting...)
	slices.SortStableFunc(r.Waiting, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	s.engine.Mu.Lock()
	defer s.engine.Mu.Unlock()
	r.Ready, r.Away, r.Draining = s.cluster.SettledLocked(), len(s.cluster.Missing), s.engine.Draining
	r.Replayed, r.Elapsed = s.engine.Reading.Progress.Read, s.engine.Reading.Progress.Elapsed
	if p := &s.engine.Reading.Progress; !p.Done && !p.Began.IsZero() {
		r.Elapsed = time.Since(p.Began) // the last report may be old, or there was none
	}
	if s.engine.Fault != nil {
		r.LedgerOK, r.Condition = false, s.engine.Fault.Error()
	}
	return r
}
