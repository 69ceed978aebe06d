// The fields and functions of this file follow the tags of tasks.Figures. They are written by
// go test ./tasks/task -run TestFiguresAreGenerated -update, which makes a new figure the last one
// of its group. Comments, the order of fields and new groups are written by hand.

package httpapi

import (
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// Counts are how many tasks are in which state, and what has happened.
type Counts struct {
	Pending    int64 `json:"pending" doc:"Retrying and held tasks included."`
	Ready      int64 `json:"ready"`
	Delivering int64 `json:"delivering"`
	Dead       int64 `json:"dead"`
	ReadyParts
	DeadOldestAt    string         `json:"dead_oldest_at,omitempty" format:"date-time" doc:"When the oldest dead task died. Left out if there is none."`
	Scheduled       int64          `json:"scheduled"`
	Delivered       int64          `json:"delivered" doc:"Acknowledged."`
	Failed          int64          `json:"failed" doc:"Attempts, of any cause."`
	LeaseExpired    int64          `json:"lease_expired" doc:"Attempts whose lease ran out; also in failed."`
	Panicked        int64          `json:"panicked" doc:"Handlers that panicked; also in failed."`
	Died            int64          `json:"died"`
	Expired         int64          `json:"expired" doc:"Dead tasks that were deleted because dead_retention had passed."`
	Cancelled       int64          `json:"cancelled"`
	Skipped         int64          `json:"skipped" doc:"Later than their max_lateness, or not delivered because of their topic's misfire."`
	Lateness        Lateness       `json:"lateness" doc:"Of first attempts since the start."`
	ReadyOldestAt   string         `json:"ready_oldest_at,omitempty" format:"date-time" doc:"Since when the oldest task has been due that is ready now. Left out if none is."`
	Attempts        Attempts       `json:"attempts" doc:"What has become of deliveries. Each counts once."`
	Finished        int64          `json:"finished" doc:"Finished tasks that are kept because of their topic's keep_finished."`
	Retrying        int64          `json:"retrying" doc:"Tasks of which an attempt was made, and that wait for the next one. They count as pending too."`
	Held            int64          `json:"held" doc:"Tasks whose countdown is held. They count as pending too."`
	Receivers       int64          `json:"receivers" doc:"Calls of reserve that wait."`
	FollowUps       FollowUps      `json:"follow_ups" doc:"Of dead tasks, in topics with on_dead, since the start."`
	Lost            int64          `json:"lost" doc:"Dead tasks, and finished ones that were kept, which the ledger has lost since the start, and of which this node had no records in memory to write them again."`
	FailedRecent    int64          `json:"failed_recent" doc:"Attempts that failed in the last 5 minutes."`
	Recent          RecentLateness `json:"recent" doc:"Of first attempts in the last 5 minutes, and of the tasks that are ready now, for their first or a further attempt. The total leaves paused topics out."`
	Overdue         Overdue        `json:"overdue" doc:"Tasks whose deadline has passed and that are not delivered, now."`
	DeliveredRecent int64          `json:"delivered_recent" doc:"Tasks that were delivered in the last 5 minutes, at whatever attempt."`
}

// ReadyParts are parts of the ready tasks.
type ReadyParts struct {
	Blocked int64 `json:"blocked" doc:"Tasks that wait for deliveries of their groups to end, in topics with concurrency_per_group. They count as ready too."`
	Strays  int64 `json:"strays" doc:"Tasks that wait aside: their topic cannot make the delivery that they have of their own, see undeliverable of a task, or none of its receivers wants them. They count as ready too."`
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

// FollowUps are the tasks of on_dead.
type FollowUps struct {
	Made  int64 `json:"made"`
	Lost  int64 `json:"lost" doc:"Not made, since there was no room. Those tasks are dead, and that is all."`
	Ended int64 `json:"ended" doc:"Not made, since the chain of deaths had come through the topic before, or was too long."`
}

// Overdue counts the tasks of topics whose deadline has passed and that are not delivered.
type Overdue struct {
	Count    int64  `json:"count" doc:"Tasks whose deadline has passed and that are not delivered: ready for their first attempt, or an attempt has failed. Held and dead tasks are not overdue, nor is one of which the first attempt is under way."`
	Retrying int64  `json:"retrying" doc:"Of the overdue tasks, those of which an attempt has failed, whatever state they are in now."`
	Paused   int64  `json:"paused" doc:"Of the overdue tasks, those of paused topics."`
	OldestAt string `json:"oldest_at,omitempty" format:"date-time" doc:"The earliest deadline of an overdue task. Left out if there is none. The total leaves paused topics out."`
}

// SweepStats are the counts of the sweep and its audit.
type SweepStats struct {
	Rescued        int64     `json:"rescued" doc:"Tasks found overdue; without a fault always 0."`
	LeasesReturned int64     `json:"leases_returned"`
	AuditChecked   int64     `json:"audit_checked"`
	AuditRepaired  int64     `json:"audit_repaired"`
	MissedWakes    int64     `json:"missed_wakes" doc:"Topics whose receivers were not notified of ready tasks; without a fault always 0."`
	Backlog        int       `json:"backlog" doc:"Ready tasks of topics that the node delivers by itself."`
	Backlogs       int64     `json:"backlogs" doc:"How often they were more than sweep.backlog."`
	Concurrency    int       `json:"concurrency" doc:"The bound of topics without a concurrency of their own; raised during a backlog. Of several nodes the greatest."`
	Full           FullSweep `json:"full"`
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

// NodesStats are the counts of calls between nodes that share a ledger.
type NodesStats struct {
	ReservesGiven int64 `json:"reserves_given" doc:"Deliveries of this node's tasks to receivers that wait at other nodes."`
	ReservesTaken int64 `json:"reserves_taken" doc:"Deliveries of other nodes' tasks to receivers that wait at this one."`
	HelpTaken     int64 `json:"help_taken" doc:"Deliveries of this node's tasks that other nodes have made during a backlog here."`
	HelpGiven     int64 `json:"help_given" doc:"Deliveries of other nodes' tasks that this one has made during a backlog there."`
	Dropped       int64 `json:"settlements_dropped" doc:"Settlements of other nodes' tasks for which there was no room while those nodes did not answer; the tasks may be delivered again."`
}

// CoalesceStats are about misfired tasks of topics that coalesce them.
type CoalesceStats struct {
	HeldBack int   `json:"held_back" doc:"Tasks that wait, because other nodes do not answer or have a later one of their group."`
	Skipped  int64 `json:"skipped" doc:"Tasks of which a later one of their group was delivered. The skipped of the topics have them, too."`
}

// wireCounts shows the figures of a topic.
func wireCounts(c *tasks.Counts) Counts {
	return Counts{Pending: c.Pending, Ready: c.Ready, Delivering: c.Delivering, Dead: c.Dead, ReadyParts: ReadyParts{Blocked: c.Blocked, Strays: c.Strays},
		DeadOldestAt: formatInstant(c.DeadOldest), Scheduled: c.Scheduled, Delivered: c.Delivered, Failed: c.Failed, LeaseExpired: c.LeaseExpired,
		Panicked: c.Panicked, Died: c.Died, Expired: c.Expired, Cancelled: c.Cancelled, Skipped: c.Skipped, Lateness: wireLateness(&c.Lateness),
		ReadyOldestAt: formatInstant(c.ReadyOldest),
		Attempts:      Attempts{Delivered: c.Delivered, Retried: c.Retried, Exhausted: c.Exhausted, Buried: c.Buried, LeaseExpired: c.LeaseExpired, Returned: c.Returned},
		Finished:      c.Finished, Retrying: c.Retrying, Held: c.Held, Receivers: c.Receivers,
		FollowUps: FollowUps{Made: c.FollowUps, Lost: c.FollowUpsLost, Ended: c.FollowUpsEnded}, Lost: c.Lost, FailedRecent: c.FailedRecent,
		Recent:          wireRecent(&c.Recent),
		Overdue:         Overdue{Count: c.Overdue, Retrying: c.OverdueRetrying, Paused: c.OverduePaused, OldestAt: formatInstant(c.OverdueOldest)},
		DeliveredRecent: c.DeliveredRecent}
}

// wireFigures shows the figures of a node, or of several.
func wireFigures(w *Stats, t *tasks.Figures) {
	w.Sweep = SweepStats{Rescued: t.Rescued, LeasesReturned: t.LeasesReturned, AuditChecked: t.AuditChecked, AuditRepaired: t.AuditRepaired, MissedWakes: t.MissedWakes,
		Backlog: t.Backlog, Backlogs: t.Backlogs, Concurrency: t.Concurrency,
		Full: FullSweep{Count: t.FullSweeps, LastAt: formatInstant(t.FullSweepAt), Took: duration(t.FullSweepTook.Round(time.Millisecond))}}
	w.Ledger = LedgerStats{Commits: t.Ledger.Commits, Changes: t.Ledger.Changes, Repeats: t.Ledger.Repeats, Queued: t.Ledger.Queued, UnknownRecords: t.UnknownRecords}
	w.Spool = SpoolStats{Tasks: t.Spool.Tasks, Moved: t.Spool.Moved, Condition: t.Spool.Condition, Missing: t.Spool.Missing}
	w.Memory = MemoryStats{ArenaBytes: t.ArenaBytes, ArenaLive: t.ArenaLive, Armed: t.Armed}
	w.Events = EventStats{Streams: t.Subscriptions, Lost: t.EventsLost}
	w.Nodes = NodesStats{ReservesGiven: t.ReservesGiven, ReservesTaken: t.ReservesTaken, HelpTaken: t.HelpTaken, HelpGiven: t.HelpGiven, Dropped: t.SettlementsDropped}
	w.Coalesce = CoalesceStats{HeldBack: t.Coalescing, Skipped: t.Coalesced}
}
