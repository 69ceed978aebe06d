package task

import (
	"time"

	"github.com/lapsehq/lapse/internal/latency"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/relay"
)

// Readiness reports whether the scheduler can take and deliver tasks.
type Readiness struct {
	// Ready: the first replay is over, and the node has got its own shards back, or has waited for
	// them for long enough.
	Ready    bool          `metric:"ready" help:"1 once this node has read all of its tasks from the ledger after its start, else 0. It should be 1 within minutes."`
	Replayed int64         `metric:"replay_records" help:"Records that this node has read from the ledger in the replay at its start."`
	Elapsed  time.Duration `metric:"replay_seconds" help:"How long the replay at the start of this node took, in seconds, or how long it has been running so far."`
	// LedgerOK: the ledger answers, takes new records, and is ours.
	LedgerOK  bool          `metric:"ledger_up" help:"1 if the ledger answers this node, else 0: then new tasks are refused, and those in memory are still delivered."`
	Stalled   time.Duration `metric:"ledger_stalled_seconds" help:"How long, in seconds, the ledger has not answered a write of this node; 0 if it answers."`
	Condition string        // why the ledger takes no new records; empty if it does
	Away      int           // shards of the node's own that other nodes still hold
	// Unsure: others may have taken over what this node holds, see OnOutage.
	Unsure   bool `metric:"unsure" help:"1 while this node is cut off from the ledger for so long that others may have adopted what it holds, else 0."`
	Draining bool `metric:"draining" help:"1 while this node hands over what it holds and takes no new tasks, before it ends. Else 0."`

	// Waiting says what is stuck or not served yet, what has waited longest first.
	Waiting []Waiting

	// Storage is what the ledger reports of the storage beneath it; empty if the ledger is no
	// recovery.Reporter.
	Storage recovery.Health
}

// A Waiting says what is stuck or not served yet, since when, and what it waits for.
type Waiting = recovery.Waiting

// MaxStatsTopics is how many topics Stats shows at most.
const MaxStatsTopics = 1000

// Stats are a scheduler's figures at one moment. What is counted is counted since Open.
type Stats struct {
	Node string
	At   time.Time // when they were taken
	// Topics are at most MaxStatsTopics, by name: those with settings, and then the busiest. Other
	// callers share the slice: do not change it.
	Topics    []Topic
	Others    Counts // of the topics beyond those
	Beyond    int    // how many topics those are
	Readiness Readiness

	Figures

	Ways []WayStats // of Config.Ways, by kind
	Took Took

	Relay RelayStats // of calls to other nodes and from them; zero if the ledger is not shared

	// Clocks are the clocks of the other nodes that are alive, as compared with this node's.
	Clocks []ClockOffset

	// ForecastWait is the p99 wait of the peak that will wait longest within a day, of the fleet,
	// as Diagnosis tells it (TroubleAhead); 0 if none will, or no limit of receivers is known.
	ForecastWait time.Duration `metric:"forecast_wait_seconds" help:"The p99 wait, in seconds, of the peak that will wait longest among all that falls due within a day in the fleet, at the best rate that receivers have shown, judged by this node once a minute; 0 if none will wait, or no limit is known."`
}

// Figures are those of Stats that add up over nodes, see addUp, and that nodes tell one another.
//
// A figure is described by the tags of its field alone. json is its name between nodes, and fleet
// how it adds up. http is its place in the answer of GET /v1/stats, and doc what the API says of
// it; one with attempt counts as an outcome of a delivery, too. metric is the metric that shows it,
// with the label that tells it from others of that name, and help the text of the metric. Package
// metrics reads these tags. The types of httpapi and client are generated from them.
type Figures struct {
	Total Counts `json:"total"` // of all topics

	SweepStats `json:"sweep"`
	ShardStats `json:"shards"`
	LoadStats  `json:"load"`
	PeerStats  `json:"peers"`

	Spool  SpoolStats              `json:"spool"` // zero without Config.Spool
	Ledger recovery.CommitterStats `json:"ledger"`

	Armed      int   `json:"armed,omitzero" http:"memory.armed" doc:"Entries of the timing wheel." metric:"wheel_armed" help:"Tasks in the timing wheel of this node, now: those that are pending."`
	ArenaBytes int64 `json:"arena_bytes,omitzero" http:"memory.arena_bytes" metric:"arena_bytes" help:"Memory in bytes that this node has reserved for the records of tasks."`
	ArenaLive  int64 `json:"arena_live,omitzero" http:"memory.arena_live_bytes" metric:"arena_live_bytes" help:"Memory in bytes that the records of tasks use at this node, of lapse_arena_bytes."`
}

// SweepStats are the figures of the sweep and of what it finds.
type SweepStats struct {
	// Rescued counts tasks that the sweep has delivered in place of the wheel; 0 outside a fault.
	Rescued int64 `json:"rescued,omitzero" http:"sweep.rescued" doc:"Tasks found overdue; without a fault always 0." metric:"sweep_rescued_total" help:"Overdue tasks that the sweep of this node has delivered because its timing wheel did not fire them, since its start. A pause of the process adds nothing. Outside a fault it stays 0: alert on any increase."`
	// MissedWakes counts topics whose receivers did not know of ready tasks until the sweep came; 0
	// outside a fault.
	MissedWakes int64 `json:"missed_wakes,omitzero" http:"sweep.missed_wakes" doc:"Topics whose receivers were not notified of ready tasks; without a fault always 0." metric:"sweep_missed_wakes_total" help:"Topics of this node whose receivers did not know of ready tasks until the sweep came, since its start. Outside a fault it stays 0: alert on any increase."`
	// LeasesReturned counts deliveries whose lease ran out.
	LeasesReturned int64 `json:"leases_returned,omitzero" http:"sweep.leases_returned" metric:"sweep_leases_returned_total" help:"Deliveries that the sweep of this node has taken back because their lease ran out, since its start. lapse_attempts_lease_expired_total tells them by topic."`
	// AuditChecked counts tasks that were compared with the ledger.
	AuditChecked int64 `json:"audit_checked,omitzero" http:"sweep.audit_checked" metric:"audit_checked_total" help:"Tasks that the audit of this node has compared between memory and ledger since its start."`
	// AuditRepaired counts those that the ledger lacked and got again; 0 outside a fault.
	AuditRepaired int64 `json:"audit_repaired,omitzero" http:"sweep.audit_repaired" metric:"audit_repaired_total" help:"Tasks that the audit of this node has found missing in the ledger and written again, since its start. Outside a fault it stays 0: another program deletes there."`
	// ClockSteps counts how often the wall clock was set.
	ClockSteps int64 `json:"clock_steps,omitzero" metric:"clock_steps_total" help:"Jumps of the wall clock of this node that it has noticed since its start. Deadlines are kept by that clock: find out what sets it."`
	// FullSweeps counts full sweeps that are over, see Config.SweepAt.
	FullSweeps int64 `json:"full_sweeps,omitzero" http:"sweep.full.count" doc:"Full sweeps that have ended." metric:"sweep_full_total" help:"Full sweeps of this node that have ended since its start: all of its memory searched for overdue tasks, and compared with the ledger."`
	// FullSweepAt is when the last of them began; zero if there was none.
	FullSweepAt time.Time `json:"full_sweep_at,omitzero" fleet:"own" http:"sweep.full.last_at,omitempty" doc:"When the last one began; absent if there was none." metric:"sweep_full_timestamp_seconds" help:"When the last full sweep of this node began that has ended, in seconds of Unix time; 0 if there was none. Nightly with --sweep-at."`
	// FullSweepTook is the time from then until all of memory was compared with the ledger.
	FullSweepTook time.Duration `json:"full_sweep_took,omitzero" fleet:"own" http:"sweep.full.took" doc:"How long it took." metric:"sweep_full_seconds" help:"How long the last full sweep of this node took, in seconds; 0 if there was none."`
}

// ShardStats are the figures of the shards that this node holds.
type ShardStats struct {
	// Rewinds counts shards whose storage had lost confirmed writes; 0 outside a fault.
	Rewinds       int64 `json:"rewinds,omitzero" metric:"ledger_rewinds_total" help:"Times since the start of this node that the ledger had lost confirmed writes of a shard, which the node has written again. Outside a fault it stays 0: alert on any increase."`
	ShardsHeld    int   `json:"held,omitzero"`    // now
	ShardsAdopted int   `json:"adopted,omitzero"` // of those, other nodes'
	// ShardsGained counts shards that were adopted from others, or got back.
	ShardsGained  int64 `json:"gained,omitzero" metric:"shards_gained_total" help:"Shards that this node has adopted from others, or got back, since its start."`
	ShardsYielded int64 `json:"yielded,omitzero" metric:"shards_yielded_total" help:"Shards that this node has handed over to others since its start."`
	// ShardsLost counts shards that others took while this node was cut off; 0 outside a fault.
	ShardsLost int64 `json:"lost,omitzero" metric:"shards_lost_total" help:"Shards that others took over while this node was cut off from the ledger, since its start. Outside a fault it stays 0: what was delivered meanwhile may have come twice."`
	// TasksDropped counts tasks that have left memory with their shards.
	TasksDropped int64 `json:"tasks_dropped,omitzero" metric:"shards_tasks_left_total" help:"Tasks that have left the memory of this node together with their shards, since its start. Other nodes have them."`
	// UnsureDeliveries were begun while other nodes may have held the task, see OnOutage.
	UnsureDeliveries int64 `json:"unsure_deliveries,omitzero" metric:"deliveries_unsure_total" help:"Deliveries that this node has begun since its start while others may have adopted what it holds: each may be a second one. With on_outage: pause it stays 0."`
	// LostDeliveries were open when it turned out that their shard had been lost: others may have
	// made them as well.
	LostDeliveries int64 `json:"lost_deliveries,omitzero" metric:"deliveries_lost_total" help:"Deliveries of this node since its start that were open when it turned out that their shard had been lost: other nodes may have made them, too."`
	// UnknownRecords counts records that this version cannot read and has left alone.
	UnknownRecords int64 `json:"unknown_records,omitzero" http:"ledger.unknown_records" doc:"Records of a newer version, kept and not read." metric:"ledger_unknown_records" help:"Records in the shards of this node that this version cannot read: of a newer version, or damaged. They are kept and not delivered. Outside a downgrade it should be 0."`
}

// LoadStats are the figures of the work at hand.
type LoadStats struct {
	// Backlog counts ready tasks of topics that this process delivers, see Config.SweepBacklog.
	Backlog  int   `json:"backlog,omitzero" http:"sweep.backlog" doc:"Ready tasks of topics that the node delivers by itself." metric:"sweep_backlog" help:"Ready tasks of topics that this node delivers itself, now. Beyond the setting sweep.backlog the node raises the concurrency of topics that have none of their own."`
	Backlogs int64 `json:"backlogs,omitzero" http:"sweep.backlogs" doc:"How often they were more than sweep.backlog." metric:"sweep_backlogs_total" help:"How often this node has had a backlog since its start: more ready tasks of topics that it delivers itself than the setting sweep.backlog."`
	// Concurrency is that of topics without one of their own. A backlog raises it.
	Concurrency int `json:"concurrency,omitzero" fleet:"max" http:"sweep.concurrency" doc:"The bound of topics without a concurrency of their own; raised during a backlog. Of several nodes the greatest." metric:"sweep_concurrency" help:"How many deliveries a topic without a concurrency of its own may make at once at this node, now. A backlog raises it."`
	// Workers are deliveries that this process makes or has places for, see Config.MaxDeliveries.
	Workers int `json:"workers,omitzero" metric:"deliveries_running" help:"Places for deliveries that are taken at this node, now, of at most the setting max_deliveries. A way of delivery that delivers batches takes several at once."`
	// Crowd counts topics that want to make more deliveries, and have to share.
	Crowd int `json:"crowd,omitzero" metric:"deliveries_waiting_topics" help:"Topics that want to make more deliveries at this node than there are places, now, and share the places by their weight. 0 while there are enough: else raise max_deliveries, or add nodes."`
	// Subscriptions counts those that are open here, see Scheduler.Subscribe and FleetSubscribe.
	Subscriptions int `json:"subscriptions,omitzero" http:"events.streams" doc:"Streams that are open." metric:"event_streams" help:"Readers of events that are connected to this node, now. Those of other nodes that hear of its events are not counted."`
	// EventsLost counts events that a reader of any subscription was too slow for.
	EventsLost int64 `json:"events_lost,omitzero" http:"events.lost" doc:"Events that their readers were too slow for." metric:"events_lost_total" help:"Events of this node that readers, here or at other nodes, have lost since its start, because they were too slow. No task is any later for it."`
	// Coalescing is how many misfired tasks are held back, because other nodes may have later ones
	// of their groups.
	Coalescing int `json:"coalescing,omitzero" http:"coalesce.held_back" doc:"Tasks that wait, because other nodes do not answer or have a later one of their group." metric:"coalesce_held_back" help:"Misfired tasks of this node that are held back, now: their topics coalesce, and other nodes that do not answer, or that have a later task of the group, keep them waiting for a bounded time."`
	// Coalesced counts misfired tasks that were skipped for a later one of their group.
	Coalesced int64 `json:"coalesced,omitzero" http:"coalesce.skipped" doc:"Tasks of which a later one of their group was delivered. The skipped of the topics have them, too." metric:"coalesce_skipped_total" help:"Misfired tasks that this node has skipped since its start because a later one of their group is delivered, here or at another node. They are in lapse_tasks_skipped_total, too."`
}

// PeerStats count what passes between nodes that share a ledger: each such delivery counts at both.
type PeerStats struct {
	// ReservesGiven counts deliveries of this node's tasks to receivers that wait at other nodes.
	ReservesGiven int64 `json:"reserves_given,omitzero" http:"nodes.reserves_given" doc:"Deliveries of this node's tasks to receivers that wait at other nodes." metric:"nodes_reserves_total,side=given" help:"Deliveries between this node and others since its start, to receivers that wait at one node, of tasks that the other holds. side given: tasks of this node; side taken: receivers at this node."`
	// ReservesTaken counts deliveries of other nodes' tasks to receivers that wait here.
	ReservesTaken int64 `json:"reserves_taken,omitzero" http:"nodes.reserves_taken" doc:"Deliveries of other nodes' tasks to receivers that wait at this one." metric:"nodes_reserves_total,side=taken"`
	// HelpTaken counts deliveries of this node's tasks by others during a backlog here.
	HelpTaken int64 `json:"help_taken,omitzero" http:"nodes.help_taken" doc:"Deliveries of this node's tasks that other nodes have made during a backlog here." metric:"nodes_help_total,side=taken" help:"Deliveries that one node makes of the tasks of another during a backlog there, since the start of this node. side given: made here; side taken: made by others of the tasks of this node."`
	// HelpGiven counts deliveries of other nodes' tasks by this one during their backlogs.
	HelpGiven int64 `json:"help_given,omitzero" http:"nodes.help_given" doc:"Deliveries of other nodes' tasks that this one has made during a backlog there." metric:"nodes_help_total,side=given"`
	// PastDropped counts rows of the past that the ledger has not taken.
	PastDropped int64 `json:"past_dropped,omitzero" metric:"past_rows_dropped_total" help:"Rows of what was counted, and of what was done, that this node has dropped since its start because the ledger did not take them. The past in GET /v1/history has gaps then; no task is affected."`
	// SettlementsDropped: settlements of tasks of other nodes for which there was no room while
	// those nodes did not answer. Their tasks may be delivered again.
	SettlementsDropped int64 `json:"settlements_dropped,omitzero" http:"nodes.settlements_dropped" doc:"Settlements of other nodes' tasks for which there was no room while those nodes did not answer; the tasks may be delivered again." metric:"settlements_dropped_total" help:"Settlements of tasks of other nodes that this node has dropped since its start: there was no room for more while those nodes did not answer. Each of these tasks may be delivered again."`
}

// Took says how long things took that this process has done since Open.
type Took struct {
	Attempts map[Kind]Latency // that it made itself, by kind: of Config.Ways, and Handler
	// Commits are batches of changes that the ledger has confirmed, from the first sending on.
	Commits Latency
}

// Latency counts how long something took, in buckets.
type Latency = latency.Counts

// LatencyBounds are the upper bounds of the buckets of a Latency.
var LatencyBounds = latency.Bounds

// RelayStats count calls to other nodes, those of other nodes, and what became of them.
type RelayStats = relay.Stats

// SpoolStats are the figures of Config.Spool.
type SpoolStats struct {
	Tasks     int    `json:"tasks,omitzero" http:"spool.tasks" doc:"Tasks that only the disk of this node has." metric:"spool_tasks" help:"Tasks that only the disk of this node has, now, since the ledger could not take them. While there are any, the node and its disk must not be taken away."`
	Moved     int64  `json:"moved,omitzero" http:"spool.moved" doc:"Tasks moved from there to Redis." metric:"spool_moved_total" help:"Tasks that this node has moved from its spool to the ledger since its start."`
	Condition string `json:"condition,omitzero" http:"spool.condition,omitempty" doc:"Why the spool takes no new tasks."`
	// Missing: former spools of this node that are missing, see Node.MissingSpools
	Missing int `json:"missing,omitzero" http:"spool.missing,omitempty" doc:"Former spools that are missing and may have tasks. Left out if there are none." metric:"spools_missing" help:"Former spools of this node that are missing and may have tasks, now: it was started with another spool, or with none. Ids of this node that are not found are answered 503, and so are lists, until it is started with them, or they are given up."`
}
