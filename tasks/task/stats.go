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
	Total     Counts // of all topics
	Readiness Readiness

	SweepStats
	ShardStats
	LoadStats
	PeerStats

	Ways []WayStats // of Config.Ways, by kind
	Took Took

	Relay RelayStats // of calls to other nodes and from them; zero if the ledger is not shared
	Spool SpoolStats // zero without Config.Spool

	// Clocks are the clocks of the other nodes that are alive, as compared with this node's.
	Clocks []ClockOffset

	Ledger     recovery.CommitterStats
	Armed      int   // entries of the wheel
	ArenaBytes int64 // memory of records
	ArenaLive  int64 // of that, in use
}

// SweepStats are the figures of the sweep and of what it finds.
type SweepStats struct {
	Rescued int64 // tasks that the sweep has delivered in the wheel's place; else 0
	// MissedWakes counts topics whose receivers did not know of ready tasks until the sweep came; 0
	// outside a fault.
	MissedWakes    int64
	LeasesReturned int64         // deliveries whose lease ran out
	AuditChecked   int64         // tasks compared with the ledger
	AuditRepaired  int64         // of those, missing there and written again; 0 outside a fault
	ClockSteps     int64         // times that the wall clock was set
	FullSweeps     int64         // that are over, see Config.SweepAt
	FullSweepAt    time.Time     // when the last of them began; zero if there was none
	FullSweepTook  time.Duration // from then until all of memory was compared with the ledger
}

// ShardStats are the figures of the shards that this node holds.
type ShardStats struct {
	Rewinds          int64 // shards whose storage had lost confirmed writes; 0 outside a fault
	ShardsHeld       int   // now
	ShardsAdopted    int   // of those, other nodes'
	ShardsGained     int64 // adopted from others, or got back
	ShardsYielded    int64 // handed over
	ShardsLost       int64 // taken over by others while this node was cut off; 0 outside a fault
	TasksDropped     int64 // that have left memory with their shards
	UnsureDeliveries int64 // that were begun while others may have held the task, see OnOutage
	// LostDeliveries were open when it turned out that their shard had been lost: others may have
	// made them as well.
	LostDeliveries int64
	UnknownRecords int64 // records that this version cannot read and has left alone
}

// LoadStats are the figures of the work at hand.
type LoadStats struct {
	Backlog  int   // ready tasks of topics that this process delivers, see Config.SweepBacklog
	Backlogs int64 // times that they were too many
	// Concurrency is that of topics without one of their own. A backlog raises it.
	Concurrency int
	// Workers are deliveries that this process makes or has places for, see Config.MaxDeliveries.
	Workers       int
	Crowd         int   // topics that want to make more, and have to share
	Subscriptions int   // that are open here, see Scheduler.Subscribe and FleetSubscribe
	EventsLost    int64 // events that a reader of any subscription was too slow for
	// Coalescing is how many misfired tasks are held back, because other nodes may have later ones
	// of their groups.
	Coalescing int
	Coalesced  int64 // misfired tasks that were skipped for a later one of their group
}

// PeerStats count what passes between nodes that share a ledger: each such delivery counts at both.
type PeerStats struct {
	ReservesGiven int64 // deliveries of this node's tasks to receivers that wait at other nodes
	ReservesTaken int64 // deliveries of other nodes' tasks to receivers that wait here
	HelpTaken     int64 // deliveries of this node's tasks by others during a backlog here
	HelpGiven     int64 // deliveries of other nodes' tasks by this one during their backlogs
	// SettlementsDropped: settlements of tasks of other nodes for which there was no room while
	// those nodes did not answer. Their tasks may be delivered again.
	SettlementsDropped int64
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
	Tasks     int    // in the spool now
	Moved     int64  // from there to the ledger
	Condition string // why it takes no new tasks; empty if it does
	Missing   int    // former spools of this node that are missing, see Node.MissingSpools
}
