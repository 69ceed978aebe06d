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
	Ready     bool
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
}

// Figures are those of Stats that add up over nodes, see addUp, and that nodes tell one another.
type Figures struct {
	Total Counts `json:"total"` // of all topics

	SweepStats `json:"sweep"`
	ShardStats `json:"shards"`
	LoadStats  `json:"load"`
	PeerStats  `json:"peers"`

	Spool  SpoolStats              `json:"spool"` // zero without Config.Spool
	Ledger recovery.CommitterStats `json:"ledger"`

	Armed      int   `json:"armed,omitzero"`       // entries of the wheel
	ArenaBytes int64 `json:"arena_bytes,omitzero"` // memory of records
	ArenaLive  int64 `json:"arena_live,omitzero"`  // of that, in use
}

// SweepStats are the figures of the sweep and of what it finds.
type SweepStats struct {
	// Rescued counts tasks that the sweep has delivered in place of the wheel; 0 outside a fault.
	Rescued int64 `json:"rescued,omitzero"`
	// MissedWakes counts topics whose receivers did not know of ready tasks until the sweep came; 0
	// outside a fault.
	MissedWakes int64 `json:"missed_wakes,omitzero"`
	// LeasesReturned counts deliveries whose lease ran out.
	LeasesReturned int64 `json:"leases_returned,omitzero"`
	// AuditChecked counts tasks that were compared with the ledger.
	AuditChecked int64 `json:"audit_checked,omitzero"`
	// AuditRepaired counts those that the ledger lacked and got again; 0 outside a fault.
	AuditRepaired int64 `json:"audit_repaired,omitzero"`
	// ClockSteps counts how often the wall clock was set.
	ClockSteps int64 `json:"clock_steps,omitzero"`
	// FullSweeps counts full sweeps that are over, see Config.SweepAt.
	FullSweeps int64 `json:"full_sweeps,omitzero"`
	// FullSweepAt is when the last of them began; zero if there was none.
	FullSweepAt time.Time `json:"full_sweep_at,omitzero" fleet:"own"`
	// FullSweepTook is the time from then until all of memory was compared with the ledger.
	FullSweepTook time.Duration `json:"full_sweep_took,omitzero" fleet:"own"`
}

// ShardStats are the figures of the shards that this node holds.
type ShardStats struct {
	// Rewinds counts shards whose storage had lost confirmed writes; 0 outside a fault.
	Rewinds       int64 `json:"rewinds,omitzero"`
	ShardsHeld    int   `json:"held,omitzero"`    // now
	ShardsAdopted int   `json:"adopted,omitzero"` // of those, other nodes'
	// ShardsGained counts shards that were adopted from others, or got back.
	ShardsGained  int64 `json:"gained,omitzero"`
	ShardsYielded int64 `json:"yielded,omitzero"` // handed over
	// ShardsLost counts shards that others took while this node was cut off; 0 outside a fault.
	ShardsLost int64 `json:"lost,omitzero"`
	// TasksDropped counts tasks that have left memory with their shards.
	TasksDropped int64 `json:"tasks_dropped,omitzero"`
	// UnsureDeliveries were begun while other nodes may have held the task, see OnOutage.
	UnsureDeliveries int64 `json:"unsure_deliveries,omitzero"`
	// LostDeliveries were open when it turned out that their shard had been lost: others may have
	// made them as well.
	LostDeliveries int64 `json:"lost_deliveries,omitzero"`
	// UnknownRecords counts records that this version cannot read and has left alone.
	UnknownRecords int64 `json:"unknown_records,omitzero"`
}

// LoadStats are the figures of the work at hand.
type LoadStats struct {
	// Backlog counts ready tasks of topics that this process delivers, see Config.SweepBacklog.
	Backlog  int   `json:"backlog,omitzero"`
	Backlogs int64 `json:"backlogs,omitzero"` // times that they were too many
	// Concurrency is that of topics without one of their own. A backlog raises it.
	Concurrency int `json:"concurrency,omitzero" fleet:"max"`
	// Workers are deliveries that this process makes or has places for, see Config.MaxDeliveries.
	Workers int `json:"workers,omitzero"`
	// Crowd counts topics that want to make more deliveries, and have to share.
	Crowd int `json:"crowd,omitzero"`
	// Subscriptions counts those that are open here, see Scheduler.Subscribe and FleetSubscribe.
	Subscriptions int `json:"subscriptions,omitzero"`
	// EventsLost counts events that a reader of any subscription was too slow for.
	EventsLost int64 `json:"events_lost,omitzero"`
	// Coalescing is how many misfired tasks are held back, because other nodes may have later ones
	// of their groups.
	Coalescing int `json:"coalescing,omitzero"`
	// Coalesced counts misfired tasks that were skipped for a later one of their group.
	Coalesced int64 `json:"coalesced,omitzero"`
}

// PeerStats count what passes between nodes that share a ledger: each such delivery counts at both.
type PeerStats struct {
	// ReservesGiven counts deliveries of this node's tasks to receivers that wait at other nodes.
	ReservesGiven int64 `json:"reserves_given,omitzero"`
	// ReservesTaken counts deliveries of other nodes' tasks to receivers that wait here.
	ReservesTaken int64 `json:"reserves_taken,omitzero"`
	// HelpTaken counts deliveries of this node's tasks by others during a backlog here.
	HelpTaken int64 `json:"help_taken,omitzero"`
	// HelpGiven counts deliveries of other nodes' tasks by this one during their backlogs.
	HelpGiven int64 `json:"help_given,omitzero"`
	// SettlementsDropped: settlements of tasks of other nodes for which there was no room while
	// those nodes did not answer. Their tasks may be delivered again.
	SettlementsDropped int64 `json:"settlements_dropped,omitzero"`
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
	Tasks     int    `json:"tasks,omitzero"`     // in the spool now
	Moved     int64  `json:"moved,omitzero"`     // from there to the ledger
	Condition string `json:"condition,omitzero"` // why it takes no new tasks; empty if it does
	// Missing: former spools of this node that are missing, see Node.MissingSpools
	Missing int `json:"missing,omitzero"`
}
