package tasks

import (
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/relay"
)

// Readiness tells whether the scheduler can take and deliver tasks.
type Readiness struct {
	Ready     bool          // the first replay is over, and the node's own shards have come home, or were waited for long enough
	Replayed  int64         // records read so far
	Elapsed   time.Duration // of the replay
	LedgerOK  bool          // the ledger answers, takes new records, and is ours
	Stalled   time.Duration // for how long the ledger has not answered a write; 0 if it does
	Condition string        // why the ledger takes no new records; empty if it does
	Away      int           // shards of the node's own that other nodes still hold
	Unsure    bool          // others may have taken over what this node holds, see OnOutage
	Draining  bool          // Drain has begun

	// Waiting says what is stuck or not served yet, what has waited longest first.
	Waiting []Waiting

	// Storage is what the ledger tells of the storage beneath it; empty if it is
	// no recovery.Reporter.
	Storage recovery.Health
}

// A Waiting says what is stuck or not served yet, since when, and what it waits for.
type Waiting = recovery.Waiting

// Stats are a scheduler's figures at one moment. What is counted is counted
// since Open.
type Stats struct {
	Node      string
	At        time.Time // when they were taken
	Topics    []Topic   // at most MaxStatsTopics, by name: those that were set up, then the busiest. Shared with other callers: not to be changed
	Others    Counts    // of the topics beyond those
	Beyond    int       // how many topics those are
	Total     Counts    // of all topics
	Readiness Readiness

	Rescued          int64 // tasks that the sweep found overdue; 0 outside a fault
	MissedWakes      int64 // topics whose receivers did not know of ready tasks until the sweep came; 0 outside a fault
	LeasesReturned   int64 // deliveries whose lease ran out
	AuditChecked     int64 // tasks compared with the ledger
	AuditRepaired    int64 // of those, missing there and written again; 0 outside a fault
	ClockSteps       int64 // times that the wall clock was set
	Rewinds          int64 // shards whose storage had lost confirmed writes; 0 outside a fault
	ShardsHeld       int   // now
	ShardsAdopted    int   // of those, other nodes'
	ShardsGained     int64 // adopted from others, or got back
	ShardsYielded    int64 // handed over
	ShardsLost       int64 // taken over by others while this node was cut off; 0 outside a fault
	TasksDropped     int64 // that have left memory with their shards
	UnsureDeliveries int64 // that were begun while others may have held the task, see OnOutage
	// LostDeliveries were open when it turned out that their shard had been lost: others
	// may have made them as well.
	LostDeliveries int64
	UnknownRecords int64 // records that this version cannot read and has left alone

	Backlog     int   // ready tasks of topics that this process delivers, see Config.SweepBacklog
	Backlogs    int64 // times that they were too many
	Concurrency int   // what holds now for topics without a Concurrency of their own: raised during a backlog

	Workers       int   // deliveries that this process is making or has places for, see Config.MaxDeliveries
	Crowd         int   // topics that want to make more, and have to share
	Subscriptions int   // that are open, see Scheduler.Subscribe
	EventsLost    int64 // events that a reader of any subscription was too slow for

	// What passes between nodes that share a ledger: each such delivery
	// counts at both.
	ReservesGiven int64 // deliveries of this node's tasks to receivers that wait at other nodes
	ReservesTaken int64 // deliveries of other nodes' tasks to receivers that wait here
	HelpTaken     int64 // deliveries of this node's tasks that others have made during a backlog here
	HelpGiven     int64 // deliveries of other nodes' tasks that this one has made during their backlogs

	FullSweeps    int64         // that are over, see Config.SweepAt
	FullSweepAt   time.Time     // when the last of them began; zero if there was none
	FullSweepTook time.Duration // from then until all of memory was compared with the ledger

	Ways []WayStats // of Config.Ways, by kind

	Relay relay.Stats // of questions to other nodes and from them; zero if the ledger is not shared
	Spool SpoolStats  // zero without Config.Spool

	Ledger     recovery.CommitterStats
	Armed      int   // entries of the wheel
	ArenaBytes int64 // memory of records
	ArenaLive  int64 // of that, in use
}

// SpoolStats are the figures of Config.Spool.
type SpoolStats struct {
	Tasks     int    // in the spool now
	Moved     int64  // from there to the ledger
	Condition string // why it takes no new tasks; empty if it does
}

// Stats returns the figures. With more than MaxStatsTopics topics, what it says of topics may
// be a second old.
func (s *Scheduler) Stats() Stats {
	ready, sums := s.Readiness(), s.topicSums()
	st := Stats{
		Node: s.cfg.Node, At: s.cfg.Clock(), Topics: sums.topics, Readiness: ready,
		Others: sums.others, Beyond: sums.beyond, Total: sums.others,
		Ledger: s.committer.Stats(), Armed: s.runner.Len(), Ways: s.cfg.ways.stats(),
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
	st.Workers, st.Crowd = s.workers, len(s.crowd)
	st.Concurrency = defaultConcurrency
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
	st.ArenaBytes, st.ArenaLive = s.book.arena.size, s.book.arena.live
	return st
}

// Add adds other figures to c.
func (c *Counts) Add(o *Counts) {
	c.Pending += o.Pending
	c.Ready += o.Ready
	c.Delivering += o.Delivering
	c.Dead += o.Dead
	c.Scheduled += o.Scheduled
	c.Delivered += o.Delivered
	c.Failed += o.Failed
	c.LeaseExpired += o.LeaseExpired
	c.Died += o.Died
	c.Expired += o.Expired
	c.Cancelled += o.Cancelled
	c.Skipped += o.Skipped
	c.Panicked += o.Panicked
	if c.DeadOldest.IsZero() || !o.DeadOldest.IsZero() && o.DeadOldest.Before(c.DeadOldest) {
		c.DeadOldest = o.DeadOldest
	}
	c.Lateness.Sum += o.Lateness.Sum
	for i, n := range o.Lateness.Counts {
		c.Lateness.Counts[i] += n
	}
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
