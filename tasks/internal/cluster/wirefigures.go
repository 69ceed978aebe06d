package cluster

import (
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// The figures of a node on their way to another one, see wire.go. Zeros are left out: most figures
// of most topics are zero.

// wireStats are the figures of a task.Stats that add up.
type wireStats struct {
	Sweep  wireSweepStats  `json:"sweep"`
	Shards wireShardStats  `json:"shards"`
	Load   wireLoadStats   `json:"load"`
	Peers  wirePeerStats   `json:"peers"`
	Spool  wireSpoolStats  `json:"spool"`
	Ledger wireLedgerStats `json:"ledger"`

	Armed      int   `json:"armed,omitempty"`
	ArenaBytes int64 `json:"arena_bytes,omitempty"`
	ArenaLive  int64 `json:"arena_live,omitempty"`
}

type (
	// A wireSweepStats is a task.SweepStats.
	wireSweepStats struct {
		Rescued        int64         `json:"rescued,omitempty"`
		MissedWakes    int64         `json:"missed_wakes,omitempty"`
		LeasesReturned int64         `json:"leases_returned,omitempty"`
		AuditChecked   int64         `json:"audit_checked,omitempty"`
		AuditRepaired  int64         `json:"audit_repaired,omitempty"`
		ClockSteps     int64         `json:"clock_steps,omitempty"`
		FullSweeps     int64         `json:"full_sweeps,omitempty"`
		FullSweepAt    time.Time     `json:"full_sweep_at,omitzero"`
		FullSweepTook  time.Duration `json:"full_sweep_took,omitempty"`
	}
	// A wireShardStats is a task.ShardStats.
	wireShardStats struct {
		Rewinds          int64 `json:"rewinds,omitempty"`
		ShardsHeld       int   `json:"held,omitempty"`
		ShardsAdopted    int   `json:"adopted,omitempty"`
		ShardsGained     int64 `json:"gained,omitempty"`
		ShardsYielded    int64 `json:"yielded,omitempty"`
		ShardsLost       int64 `json:"lost,omitempty"`
		TasksDropped     int64 `json:"tasks_dropped,omitempty"`
		UnsureDeliveries int64 `json:"unsure_deliveries,omitempty"`
		LostDeliveries   int64 `json:"lost_deliveries,omitempty"`
		UnknownRecords   int64 `json:"unknown_records,omitempty"`
	}
	// A wireLoadStats is a task.LoadStats.
	wireLoadStats struct {
		Backlog       int   `json:"backlog,omitempty"`
		Backlogs      int64 `json:"backlogs,omitempty"`
		Concurrency   int   `json:"concurrency,omitempty"`
		Workers       int   `json:"workers,omitempty"`
		Crowd         int   `json:"crowd,omitempty"`
		Subscriptions int   `json:"subscriptions,omitempty"`
		EventsLost    int64 `json:"events_lost,omitempty"`
		Coalescing    int   `json:"coalescing,omitempty"`
		Coalesced     int64 `json:"coalesced,omitempty"`
	}
	// A wirePeerStats is a task.PeerStats.
	wirePeerStats struct {
		ReservesGiven      int64 `json:"reserves_given,omitempty"`
		ReservesTaken      int64 `json:"reserves_taken,omitempty"`
		HelpTaken          int64 `json:"help_taken,omitempty"`
		HelpGiven          int64 `json:"help_given,omitempty"`
		SettlementsDropped int64 `json:"settlements_dropped,omitempty"`
	}
	// A wireSpoolStats is a task.SpoolStats.
	wireSpoolStats struct {
		Tasks     int    `json:"tasks,omitempty"`
		Moved     int64  `json:"moved,omitempty"`
		Condition string `json:"condition,omitempty"`
		Missing   int    `json:"missing,omitempty"`
	}
	// A wireLedgerStats is a recovery.CommitterStats.
	wireLedgerStats struct {
		Commits      int64         `json:"commits,omitempty"`
		Changes      int64         `json:"changes,omitempty"`
		Repeats      int64         `json:"repeats,omitempty"`
		Queued       int           `json:"queued,omitempty"`
		LargestBatch int           `json:"largest_batch,omitempty"`
		Stall        time.Duration `json:"stall,omitempty"`
	}
)

func encodeStats(s *task.Stats) wireStats {
	return wireStats{
		wireSweepStats(s.SweepStats), wireShardStats(s.ShardStats), wireLoadStats(s.LoadStats), wirePeerStats(s.PeerStats),
		wireSpoolStats(s.Spool), wireLedgerStats(s.Ledger), s.Armed, s.ArenaBytes, s.ArenaLive,
	}
}

func (w *wireStats) decode() task.Stats {
	return task.Stats{
		SweepStats: task.SweepStats(w.Sweep), ShardStats: task.ShardStats(w.Shards), LoadStats: task.LoadStats(w.Load),
		PeerStats: task.PeerStats(w.Peers), Spool: task.SpoolStats(w.Spool), Ledger: recovery.CommitterStats(w.Ledger),
		Armed: w.Armed, ArenaBytes: w.ArenaBytes, ArenaLive: w.ArenaLive,
	}
}

// A wireTopic is what a task.Topic says of one node. Its settings are not part of it: all nodes
// have them from the ledger.
type wireTopic struct {
	Name           string     `json:"name"`
	Counts         wireCounts `json:"counts"`
	ConcurrencyNow int        `json:"concurrency_now,omitempty"`
	Undeliverable  string     `json:"undeliverable,omitempty"`
	LastError      string     `json:"last_error,omitempty"`
	LastFailed     time.Time  `json:"last_failed,omitzero"`
}

func encodeTopic(t *task.Topic) wireTopic {
	return wireTopic{t.Name, encodeCounts(&t.Counts), t.ConcurrencyNow, t.Undeliverable, t.LastError, t.LastFailed}
}

// decode returns the topic without settings. Its text says which node cannot deliver the tasks.
func (w *wireTopic) decode(node string) task.Topic {
	t := task.Topic{Name: w.Name, Counts: w.Counts.decode(), ConcurrencyNow: w.ConcurrencyNow, LastError: w.LastError, LastFailed: w.LastFailed}
	if w.Undeliverable != "" {
		t.Undeliverable = "node " + node + ": " + w.Undeliverable
	}
	return t
}

// size is about how many bytes of a message the topic takes up.
func (w *wireTopic) size() int {
	const fields, bucket = 400, 30
	return fields + bucket*(len(w.Counts.Lateness)+len(w.Counts.Recent)) + len(w.Name) + len(w.Undeliverable) + len(w.LastError)
}

// A wireCounts is a task.Counts.
type wireCounts struct {
	Pending    int64 `json:"pending,omitempty"`
	Ready      int64 `json:"ready,omitempty"`
	Delivering int64 `json:"delivering,omitempty"`
	Dead       int64 `json:"dead,omitempty"`
	wirePending
	wireReady
	Finished int64 `json:"finished,omitempty"`

	Scheduled    int64 `json:"scheduled,omitempty"`
	Delivered    int64 `json:"delivered,omitempty"`
	Failed       int64 `json:"failed,omitempty"`
	LeaseExpired int64 `json:"lease_expired,omitempty"`
	wireDeaths
	Cancelled int64 `json:"cancelled,omitempty"`
	Skipped   int64 `json:"skipped,omitempty"`
	Panicked  int64 `json:"panicked,omitempty"`
	Retried   int64 `json:"retried,omitempty"`
	Exhausted int64 `json:"exhausted,omitempty"`
	Buried    int64 `json:"buried,omitempty"`
	Returned  int64 `json:"returned,omitempty"`

	DeadOldest  time.Time     `json:"dead_oldest,omitzero"`
	Lateness    []wireBucket  `json:"lateness,omitempty"`
	LatenessSum time.Duration `json:"lateness_sum,omitempty"`

	ReadyOldest time.Time `json:"ready_oldest,omitzero"`
	Receivers   int64     `json:"receivers,omitempty"`
	wireRecent
}

// A wireReady is a task.ReadyCounts.
type wireReady struct {
	Blocked int64 `json:"blocked,omitempty"`
	Strays  int64 `json:"strays,omitempty"`
}

// A wireDeaths is a task.DeathCounts.
type wireDeaths struct {
	Died           int64 `json:"died,omitempty"`
	Expired        int64 `json:"expired,omitempty"`
	FollowUps      int64 `json:"follow_ups,omitempty"`
	FollowUpsLost  int64 `json:"follow_ups_lost,omitempty"`
	FollowUpsEnded int64 `json:"follow_ups_ended,omitempty"`
	Lost           int64 `json:"lost,omitempty"`
}

// A wirePending is a task.PendingCounts.
type wirePending struct {
	Retrying int64 `json:"retrying,omitempty"`
	Held     int64 `json:"held,omitempty"`
}

// A wireRecent has the figures of the last minutes.
type wireRecent struct {
	Recent       []wireBucket  `json:"recent,omitempty"`
	RecentMax    time.Duration `json:"recent_max,omitempty"`
	FailedRecent int64         `json:"failed_recent,omitempty"`
}

func (w *wireCounts) haveTasks() bool { return w.Pending+w.Ready+w.Delivering+w.Dead > 0 }

func encodeCounts(c *task.Counts) wireCounts {
	return wireCounts{
		Pending: c.Pending, Ready: c.Ready, Delivering: c.Delivering, Dead: c.Dead, wirePending: wirePending(c.PendingCounts), wireReady: wireReady(c.ReadyCounts), Finished: c.Finished,
		Scheduled: c.Scheduled, Delivered: c.Delivered, Failed: c.Failed, LeaseExpired: c.LeaseExpired, wireDeaths: wireDeaths(c.DeathCounts),
		Cancelled: c.Cancelled, Skipped: c.Skipped, Panicked: c.Panicked,
		Retried: c.Retried, Exhausted: c.Exhausted, Buried: c.Buried, Returned: c.Returned,
		DeadOldest: c.DeadOldest, Lateness: encodeBuckets(&c.Lateness.Counts), LatenessSum: c.Lateness.Sum,
		ReadyOldest: c.ReadyOldest, Receivers: c.Receivers,
		wireRecent: wireRecent{encodeBuckets(&c.Recent.Counts), c.Recent.Max, c.FailedRecent},
	}
}

func (w *wireCounts) decode() task.Counts {
	return task.Counts{
		Pending: w.Pending, Ready: w.Ready, Delivering: w.Delivering, Dead: w.Dead, Finished: w.Finished,
		PendingCounts: task.PendingCounts(w.wirePending), ReadyCounts: task.ReadyCounts(w.wireReady),
		Scheduled: w.Scheduled, Delivered: w.Delivered, Failed: w.Failed, LeaseExpired: w.LeaseExpired, DeathCounts: task.DeathCounts(w.wireDeaths),
		Cancelled: w.Cancelled, Skipped: w.Skipped, Panicked: w.Panicked,
		Retried: w.Retried, Exhausted: w.Exhausted, Buried: w.Buried, Returned: w.Returned,
		DeadOldest: w.DeadOldest, Lateness: task.Histogram{Counts: decodeBuckets(w.Lateness), Sum: w.LatenessSum},
		ReadyOldest: w.ReadyOldest, Receivers: w.Receivers, Recent: task.RecentLateness{Counts: decodeBuckets(w.Recent), Max: w.RecentMax},
		FailedRecent: w.FailedRecent,
	}
}

// A wireBucket counts durations of up to a bound. It travels with its bound: another version may
// have other buckets.
type wireBucket struct {
	UpTo  time.Duration `json:"up_to"`
	Count int64         `json:"count"`
}

// beyondBounds is the bound of the last bucket on the wire.
const beyondBounds = 1000 * time.Hour

func encodeBuckets(b *task.Buckets) (w []wireBucket) {
	for i, n := range b {
		bound := beyondBounds
		if i < len(task.LatenessBounds) {
			bound = task.LatenessBounds[i]
		}
		if n != 0 {
			w = append(w, wireBucket{bound, n})
		}
	}
	return w
}

func decodeBuckets(w []wireBucket) (b task.Buckets) {
	for _, k := range w {
		b.AddUpTo(k.UpTo, k.Count)
	}
	return b
}
