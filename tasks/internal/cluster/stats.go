package cluster

import (
	"slices"

	"github.com/lapsehq/lapse/tasks/task"
)

// Stats is tasks.Scheduler.Stats, without Readiness.
func (s *Cluster) Stats() task.Stats {
	sums := s.TopicSums()
	st := task.Stats{
		Node: s.engine.Config.Node, At: s.engine.Config.Clock(), Topics: sums.Topics,
		Others: sums.Others, Beyond: sums.Beyond, Ways: s.engine.Config.ByKind.Stats(),
		Figures: task.Figures{Total: sums.Others, Ledger: s.engine.Committer.Stats(), Armed: s.engine.Runner.Len()},
	}
	st.Took = task.Took{Attempts: make(map[task.Kind]task.Latency, len(s.engine.Dispatch.Took)), Commits: s.engine.Committer.Took()}
	for kind, h := range s.engine.Dispatch.Took {
		st.Took.Attempts[kind] = h.Counts()
	}
	if s.Fleet != nil && s.Fleet.Relay != nil {
		st.Relay = s.Fleet.Relay.Stats()
	}
	for i := range st.Topics {
		c := st.Topics[i].Counts.WithoutRest(st.Topics[i].Settings.Paused)
		st.Total.Add(&c)
	}
	missing, _ := s.missingSpools() // what a closed ledger cannot tell is left out
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
	st.Clocks = slices.Clone(s.clocks())
	x := &s.Peers.Counts
	st.ReservesGiven, st.ReservesTaken = x.ReservesGiven.Load(), x.ReservesTaken.Load()
	st.HelpTaken, st.HelpGiven = x.OffloadedOut.Load(), x.OffloadedIn.Load()
	st.SettlementsDropped = s.Forward.Dropped.Load()
	feed := s.engine.Feed.Counts()
	st.Subscriptions, st.EventsLost = feed.Subscriptions-feed.Remote, feed.Lost
	st.Coalescing, st.Coalesced = s.engine.Misfires.Board.Open(), s.engine.Misfires.Skipped
	st.FullSweeps, st.FullSweepAt, st.FullSweepTook = s.engine.Sweep.Fulls, s.engine.Sweep.Last.At, s.engine.Sweep.LastTook
	st.ClockSteps, st.UnknownRecords = s.engine.Sweep.ClockSteps, s.engine.Reading.Unknown
	st.Spool = s.engine.SpoolStatsLocked()
	st.Spool.Missing = missing
	st.ArenaBytes, st.ArenaLive = s.engine.Store.Size(), s.engine.Store.Live()
	return st
}
