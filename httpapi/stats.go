package httpapi

import (
	"context"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Stats is the answer of /v1/stats. Counters begin at the start of each process. Those of several
// nodes are added up.
type Stats struct {
	Node    string    `json:"node" doc:"The node that was asked. Version, uptime and state are its own, whatever the scope."`
	Version string    `json:"version"`
	Uptime  duration  `json:"uptime"`
	State   Readiness `json:"state"`
	Reach
	Total  Counts      `json:"total"`
	Topics []Topic     `json:"topics" nullable:"false" doc:"By name. Empty if there are more than 1,000, or many at many nodes: GET /v1/topics lists them."`
	Sweep  SweepStats  `json:"sweep"`
	Ledger LedgerStats `json:"ledger"`
	Spool  SpoolStats  `json:"spool"`
	Memory MemoryStats `json:"memory"`
	Events EventStats  `json:"events"`
	Nodes  NodesStats  `json:"nodes"`

	TopicsLeftOut int `json:"topics_left_out,omitempty" doc:"How many topics there are, at least, if topics leaves them out."`

	Coalesce CoalesceStats `json:"coalesce"`

	ClockSteps int64 `json:"clock_steps" doc:"Jumps of the wall clock that were noticed."`
}

// SweepStats are the counts of the sweep and its audit.
type SweepStats struct {
	Rescued        int64 `json:"rescued" doc:"Tasks found overdue; without a fault always 0."`
	LeasesReturned int64 `json:"leases_returned"`
	AuditChecked   int64 `json:"audit_checked"`
	AuditRepaired  int64 `json:"audit_repaired"`

	MissedWakes int64     `json:"missed_wakes" doc:"Topics whose receivers were not notified of ready tasks; without a fault always 0."`
	Backlog     int       `json:"backlog" doc:"Ready tasks of topics that the node delivers by itself."`
	Backlogs    int64     `json:"backlogs" doc:"How often they were more than sweep.backlog."`
	Concurrency int       `json:"concurrency" doc:"The bound of topics without a concurrency of their own; raised during a backlog. Of several nodes the greatest."`
	Full        FullSweep `json:"full"`
}

// NodesStats are the counts of calls between nodes that share a ledger.
type NodesStats struct {
	ReservesGiven int64 `json:"reserves_given" doc:"Deliveries of this node's tasks to receivers that wait at other nodes."`
	ReservesTaken int64 `json:"reserves_taken" doc:"Deliveries of other nodes' tasks to receivers that wait at this one."`
	HelpTaken     int64 `json:"help_taken" doc:"Deliveries of this node's tasks that other nodes have made during a backlog here."`
	HelpGiven     int64 `json:"help_given" doc:"Deliveries of other nodes' tasks that this one has made during a backlog there."`
	Dropped       int64 `json:"settlements_dropped" doc:"Settlements of other nodes' tasks for which there was no room while those nodes did not answer; the tasks may be delivered again."`
}

// FullSweep reports the sweeps over everything. The last one of several nodes is the one that began
// first.
type FullSweep struct {
	Count  int64    `json:"count" doc:"Full sweeps that have ended."`
	LastAt string   `json:"last_at,omitempty" format:"date-time" doc:"When the last one began; absent if there was none."`
	Took   duration `json:"took" doc:"How long it took."`
}

// LedgerStats are the counts of writes.
type LedgerStats struct {
	Commits        int64 `json:"commits"`
	Changes        int64 `json:"changes" doc:"Puts, buries and deletes in those commits."`
	Repeats        int64 `json:"repeats" doc:"Commits sent again."`
	Queued         int   `json:"queued" doc:"Changes that wait now."`
	UnknownRecords int64 `json:"unknown_records" doc:"Records of a newer version, kept and not read."`
}

// SpoolStats are about tasks that Redis could not store. All is 0 without a spool.
type SpoolStats struct {
	Tasks     int    `json:"tasks" doc:"Tasks that only the disk of this node has."`
	Moved     int64  `json:"moved" doc:"Tasks moved from there to Redis."`
	Condition string `json:"condition,omitempty" doc:"Why the spool takes no new tasks."`
	Missing   int    `json:"missing,omitempty" doc:"Former spools that are missing and may have tasks. Left out if there are none."`
}

// MemoryStats report where the tasks are.
type MemoryStats struct {
	ArenaBytes int64 `json:"arena_bytes"`
	ArenaLive  int64 `json:"arena_live_bytes"`
	Armed      int   `json:"armed" doc:"Entries of the timing wheel."`
}

// EventStats are about the readers of events.
type EventStats struct {
	Streams int   `json:"streams" doc:"Streams that are open."`
	Lost    int64 `json:"lost" doc:"Events that their readers were too slow for."`
}

// CoalesceStats are about misfired tasks of topics that coalesce them.
type CoalesceStats struct {
	HeldBack int   `json:"held_back" doc:"Tasks that wait, because other nodes do not answer or have a later one of their group."`
	Skipped  int64 `json:"skipped" doc:"Tasks of which a later one of their group was delivered. The skipped of the topics have them, too."`
}

// Counts are how many tasks are in which state, and what has happened.
type Counts struct {
	Pending    int64 `json:"pending" doc:"Retrying and held tasks included."`
	Ready      int64 `json:"ready"`
	Delivering int64 `json:"delivering"`
	Dead       int64 `json:"dead"`
	ReadyParts

	DeadOldestAt string `json:"dead_oldest_at,omitempty" format:"date-time" doc:"When the oldest dead task died. Left out if there is none."`

	Scheduled    int64    `json:"scheduled"`
	Delivered    int64    `json:"delivered" doc:"Acknowledged."`
	Failed       int64    `json:"failed" doc:"Attempts, of any cause."`
	LeaseExpired int64    `json:"lease_expired" doc:"Attempts whose lease ran out; also in failed."`
	Panicked     int64    `json:"panicked" doc:"Handlers that panicked; also in failed."`
	Died         int64    `json:"died"`
	Expired      int64    `json:"expired" doc:"Dead tasks that were deleted because dead_retention had passed."`
	Cancelled    int64    `json:"cancelled"`
	Skipped      int64    `json:"skipped" doc:"Later than their max_lateness, or not delivered because of their topic's misfire."`
	Lateness     Lateness `json:"lateness" doc:"Of first attempts since the start."`

	ReadyOldestAt string         `json:"ready_oldest_at,omitempty" format:"date-time" doc:"Since when the oldest task has been due that is ready now. Left out if none is."`
	Attempts      Attempts       `json:"attempts" doc:"What has become of deliveries. Each counts once."`
	Finished      int64          `json:"finished" doc:"Finished tasks that are kept because of their topic's keep_finished."`
	Retrying      int64          `json:"retrying" doc:"Tasks of which an attempt was made, and that wait for the next one. They count as pending too."`
	Held          int64          `json:"held" doc:"Tasks whose countdown is held. They count as pending too."`
	Receivers     int64          `json:"receivers" doc:"Calls of reserve that wait."`
	FollowUps     FollowUps      `json:"follow_ups" doc:"Of dead tasks, in topics with on_dead, since the start."`
	Lost          int64          `json:"lost" doc:"Dead tasks, and finished ones that were kept, which the ledger has lost since the start, and of which this node had no records in memory to write them again."`
	FailedRecent  int64          `json:"failed_recent" doc:"Attempts that failed in the last 5 minutes."`
	Recent        RecentLateness `json:"recent" doc:"Of first attempts in the last 5 minutes, and of the tasks that are ready now, for their first or a further attempt. The total leaves paused topics out."`
}

// ReadyParts are parts of the ready tasks.
type ReadyParts struct {
	Blocked int64 `json:"blocked" doc:"Tasks that wait for deliveries of their groups to end, in topics with concurrency_per_group. They count as ready too."`
	Strays  int64 `json:"strays" doc:"Tasks with a delivery of their own that their topic cannot make, see undeliverable of a task. They count as ready too."`
}

// FollowUps are the tasks of on_dead.
type FollowUps struct {
	Made  int64 `json:"made"`
	Lost  int64 `json:"lost" doc:"Not made, since there was no room. Those tasks are dead, and that is all."`
	Ended int64 `json:"ended" doc:"Not made, since the chain of deaths had come through the topic before, or was too long."`
}

// Attempts are how many deliveries have ended how, since the start.
type Attempts struct {
	Delivered    int64 `json:"delivered" doc:"Acknowledged."`
	Retried      int64 `json:"retried" doc:"Failed; another attempt follows."`
	Exhausted    int64 `json:"exhausted" doc:"Failed, and were the last: the task is dead."`
	Buried       int64 `json:"buried" doc:"Buried by their receiver: the task is dead."`
	LeaseExpired int64 `json:"lease_expired" doc:"Not settled within their lease, whether another attempt follows or not."`
	Returned     int64 `json:"returned" doc:"Given back unused, by a receiver, or by a node that had fetched it for one; no attempt of the task."`
}

// RecentLateness sums up how late tasks are now.
type RecentLateness struct {
	Count int64    `json:"count"`
	P50   duration `json:"p50" doc:"Half of them are at most this late: the upper bound of a bucket, or max if that is less."`
	P99   duration `json:"p99"`
	Max   duration `json:"max" doc:"The greatest, no bound of a bucket."`
}

// Lateness sums up how late first attempts began.
type Lateness struct {
	Count int64    `json:"count"`
	Mean  duration `json:"mean"`
	P50   duration `json:"p50" doc:"Half of them were at most this late: the upper bound of a bucket. A value above the last bound, 1h, is shown as 1h."`
	P99   duration `json:"p99"`
}

func wireSweep(t *tasks.Stats) SweepStats {
	return SweepStats{
		Rescued: t.Rescued, LeasesReturned: t.LeasesReturned, AuditChecked: t.AuditChecked, AuditRepaired: t.AuditRepaired,
		MissedWakes: t.MissedWakes, Backlog: t.Backlog, Backlogs: t.Backlogs, Concurrency: t.Concurrency,
		Full: FullSweep{Count: t.FullSweeps, LastAt: formatInstant(t.FullSweepAt), Took: duration(t.FullSweepTook.Round(time.Millisecond))},
	}
}

func wireCounts(c *tasks.Counts) Counts {
	return Counts{
		Pending: c.Pending, Retrying: c.Retrying, Held: c.Held, Finished: c.Finished, Ready: c.Ready, Delivering: c.Delivering, Dead: c.Dead,
		ReadyParts: ReadyParts(c.ReadyCounts),
		Scheduled:  c.Scheduled, Delivered: c.Delivered, Failed: c.Failed, LeaseExpired: c.LeaseExpired,
		DeadOldestAt: formatInstant(c.DeadOldest),
		Panicked:     c.Panicked, Died: c.Died, Expired: c.Expired, Cancelled: c.Cancelled, Skipped: c.Skipped,
		Attempts: Attempts{
			Delivered: c.Delivered, Retried: c.Retried, Exhausted: c.Exhausted, Buried: c.Buried,
			LeaseExpired: c.LeaseExpired, Returned: c.Returned,
		},
		Lateness:      wireLateness(&c.Lateness),
		ReadyOldestAt: formatInstant(c.ReadyOldest), Receivers: c.Receivers, Recent: wireRecent(&c.Recent),
		FailedRecent: c.FailedRecent, FollowUps: FollowUps{c.FollowUps, c.FollowUpsLost, c.FollowUpsEnded}, Lost: c.Lost,
	}
}

func wireRecent(r *tasks.RecentLateness) RecentLateness {
	return RecentLateness{r.Counts.Total(), rounded(r.Quantile(0.5)), rounded(r.Quantile(0.99)), rounded(r.Max)}
}

// rounded leaves out what no reader wants to see of a lateness.
func rounded(d time.Duration) duration { return duration(d.Round(10 * time.Microsecond)) }

func wireLateness(h *tasks.Histogram) Lateness {
	l := Lateness{Count: h.Counts.Total()}
	if l.Count > 0 {
		mean := h.Sum / time.Duration(l.Count)
		l.Mean = rounded(mean)
		l.P50, l.P99 = within(h.Quantile(0.5)), within(h.Quantile(0.99))
	}
	return l
}

// statsPause is the pause between two rounds of answers about many topics.
const statsPause = 50 * time.Millisecond

type statsInput struct {
	ScopeInput
	Topics bool `query:"topics" default:"true" doc:"false: leave topics out. topics_left_out is their number."`
}

// stats answers GET /v1/stats. When there are so many topics that their counts are cached for a
// while, repeated calls would return the same, so callers wait for the next round.
func (s *Server) stats(ctx context.Context, in *statsInput) (*reply[Stats], error) {
	if s.manyTopics.Load() {
		if err := s.statsRounds.await(ctx); err != nil {
			return nil, err
		}
	}
	if in.ofNode() {
		t := s.scheduler.Stats()
		return &reply[Stats]{s.wireStats(&t, s.ownReach(), in.Topics)}, nil
	}
	figures := s.scheduler.FleetStats
	if !in.Topics {
		figures = s.scheduler.FleetTotals
	}
	t, reach, err := figures(ctx)
	if err != nil {
		return nil, err
	}
	return &reply[Stats]{s.wireStats(&t, wireReach(&reach), in.Topics)}, nil
}

func (s *Server) wireStats(t *tasks.Stats, reach Reach, withTopics bool) Stats {
	topics, leftOut := t.Topics, 0
	s.manyTopics.Store(len(t.Topics)+t.Beyond > tasks.MaxStatsTopics)
	if t.Beyond > 0 || !withTopics { // listing many would cost more than all the rest
		topics, leftOut = nil, len(t.Topics)+t.Beyond
	}
	return Stats{
		Node: t.Node, Version: s.version, Uptime: duration(time.Since(s.started).Round(time.Second)),
		State: s.wireReadiness(t.Readiness), Reach: reach, Total: wireCounts(&t.Total), Topics: wireTopics(topics),
		Sweep:      wireSweep(t),
		Ledger:     LedgerStats{t.Ledger.Commits, t.Ledger.Changes, t.Ledger.Repeats, t.Ledger.Queued, t.UnknownRecords},
		Spool:      SpoolStats{t.Spool.Tasks, t.Spool.Moved, t.Spool.Condition, t.Spool.Missing},
		Memory:     MemoryStats{t.ArenaBytes, t.ArenaLive, t.Armed},
		Events:     EventStats{t.Subscriptions, t.EventsLost},
		Coalesce:   CoalesceStats{t.Coalescing, t.Coalesced},
		Nodes:      NodesStats{t.ReservesGiven, t.ReservesTaken, t.HelpTaken, t.HelpGiven, t.SettlementsDropped},
		ClockSteps: t.ClockSteps, TopicsLeftOut: leftOut,
	}
}

// rounds release waiting requests together, at most once every pause. Callers that repeat a request
// without a pause of their own get a bounded part of the processors.
type rounds struct {
	pause time.Duration

	mu   sync.Mutex
	next time.Time // when the next round begins
}

// await returns nil when a round begins, or the error of ctx when that ends first.
func (r *rounds) await(ctx context.Context) error {
	r.mu.Lock()
	now := time.Now()
	wait := r.next.Sub(now)
	if wait <= 0 {
		r.next = now.Add(r.pause)
	}
	r.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
