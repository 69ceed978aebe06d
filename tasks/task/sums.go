package task

import "time"

// How the figures of several nodes become those of all of them: counts add up, and of what is no
// count the one that an operator must see remains.

// Add adds the figures of another node to those of this one. Node, At, Readiness, Ways, Took and
// Relay stay, and so do Topics, Others and Beyond: see Topic.Add.
func (s *Stats) Add(o *Stats) {
	s.Total.Add(&o.Total)
	s.SweepStats.add(&o.SweepStats)
	s.ShardStats.add(&o.ShardStats)
	s.LoadStats.add(&o.LoadStats)
	s.PeerStats.add(&o.PeerStats)
	s.Spool.add(&o.Spool)
	s.Ledger.Commits += o.Ledger.Commits
	s.Ledger.Changes += o.Ledger.Changes
	s.Ledger.Repeats += o.Ledger.Repeats
	s.Ledger.Queued += o.Ledger.Queued
	s.Ledger.LargestBatch = max(s.Ledger.LargestBatch, o.Ledger.LargestBatch)
	s.Ledger.Stall = max(s.Ledger.Stall, o.Ledger.Stall)
	s.Armed += o.Armed
	s.ArenaBytes += o.ArenaBytes
	s.ArenaLive += o.ArenaLive
}

// add keeps, of the last full sweep of each node, the one that began first.
func (s *SweepStats) add(o *SweepStats) {
	s.Rescued += o.Rescued
	s.MissedWakes += o.MissedWakes
	s.LeasesReturned += o.LeasesReturned
	s.AuditChecked += o.AuditChecked
	s.AuditRepaired += o.AuditRepaired
	s.ClockSteps += o.ClockSteps
	s.FullSweeps += o.FullSweeps
	if at := earlier(s.FullSweepAt, o.FullSweepAt); !at.Equal(s.FullSweepAt) {
		s.FullSweepAt, s.FullSweepTook = at, o.FullSweepTook
	}
}

func (s *ShardStats) add(o *ShardStats) {
	s.Rewinds += o.Rewinds
	s.ShardsHeld += o.ShardsHeld
	s.ShardsAdopted += o.ShardsAdopted
	s.ShardsGained += o.ShardsGained
	s.ShardsYielded += o.ShardsYielded
	s.ShardsLost += o.ShardsLost
	s.TasksDropped += o.TasksDropped
	s.UnsureDeliveries += o.UnsureDeliveries
	s.LostDeliveries += o.LostDeliveries
	s.UnknownRecords += o.UnknownRecords
}

func (l *LoadStats) add(o *LoadStats) {
	l.Backlog += o.Backlog
	l.Backlogs += o.Backlogs
	l.Concurrency = max(l.Concurrency, o.Concurrency)
	l.Workers += o.Workers
	l.Crowd += o.Crowd
	l.Subscriptions += o.Subscriptions
	l.EventsLost += o.EventsLost
	l.Coalescing += o.Coalescing
	l.Coalesced += o.Coalesced
}

func (p *PeerStats) add(o *PeerStats) {
	p.ReservesGiven += o.ReservesGiven
	p.ReservesTaken += o.ReservesTaken
	p.HelpTaken += o.HelpTaken
	p.HelpGiven += o.HelpGiven
	p.SettlementsDropped += o.SettlementsDropped
}

func (s *SpoolStats) add(o *SpoolStats) {
	s.Tasks += o.Tasks
	s.Moved += o.Moved
	s.Missing += o.Missing
	if s.Condition == "" {
		s.Condition = o.Condition
	}
}

// Add adds what the topic is doing at another node. The settings stay; the last error becomes the
// later one, and ConcurrencyNow the greater one.
func (t *Topic) Add(o *Topic) {
	t.Counts.Add(&o.Counts)
	t.ConcurrencyNow = max(t.ConcurrencyNow, o.ConcurrencyNow)
	if t.Undeliverable == "" {
		t.Undeliverable = o.Undeliverable
	}
	if o.LastFailed.After(t.LastFailed) {
		t.LastError, t.LastFailed = o.LastError, o.LastFailed
	}
}

// Add adds the forecast of another node. Both must begin at the same time and have the same steps.
func (f *Forecast) Add(o *Forecast) {
	for i := range min(len(f.Counts), len(o.Counts)) {
		f.Counts[i] += o.Counts[i]
	}
	f.Ready += o.Ready
	f.Delivering += o.Delivering
	f.Later += o.Later
	f.Held += o.Held
	f.Complete = f.Complete && o.Complete
}

// AddUpTo counts n durations of up to that bound of another node, whose version may have other
// buckets than this one.
func (b *Buckets) AddUpTo(bound time.Duration, n int64) { b[LatenessBucket(bound)] += n }
