package task

import (
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// A Node is one of the processes that share a ledger: what the ledger knows of it, and what it
// reported with its last heartbeat.
type Node struct {
	Name        string
	Self        bool          // this process
	Live        bool          // it is not taken for dead
	Quiet       bool          // it sends no heartbeat, be it taken for dead or not
	Released    bool          // its last process ended in order
	Silent      time.Duration // since this process last saw a heartbeat of it, whatever the cause
	Unknown     bool          // nothing is known of it: the ledger does not answer this process
	Incarnation string        // names the process among all that had the node's name
	Process     string        // which process, for people
	Version     string        // of the program
	Address     string        // where it serves HTTP; empty if it does not

	Shards  int // of its own: how many it has ever used
	Held    int // of its own: how many it holds now
	Adopted int // how many of other nodes' it holds

	// MissingSpools names spools that may have tasks: it was started with another one, or with
	// none. While there are any, no id of its shards counts as not found. See
	// Admin.GiveUpSpools.
	MissingSpools []string
	// Spools: its present spool may have tasks that no other node has.
	Spools bool

	// Status is what its memory says; nil if that is not known, or it does not live.
	Status *NodeStatus

	// Stored is where its own shards are in the ledger, by index. Only Admin.Node tells it, and
	// only of a ledger in Redis.
	Stored []StoredShard
}

// A StoredShard is where the ledger keeps a shard, and how much of it.
type StoredShard struct {
	Pending string // key of the set of the ids of unfinished tasks
	Tasks   string // key of the hash of their records
	Count   int64  // unfinished tasks
	Owner   string // the node that has the shard now; empty: none, or it could not be read
}

// State returns the state that sums up what is known of the node.
func (n *Node) State() NodeState {
	switch {
	case n.Released:
		return NodeReleased
	case !n.Live, n.Quiet:
		return NodeSilent
	case n.Unknown:
		return NodeUnknown
	case n.Status != nil && n.Status.Draining:
		return NodeDraining
	}
	return NodeLive
}

// A NodeState sums up what is known of a node.
type NodeState string

// The states of nodes.
const (
	NodeLive     NodeState = "live"     // it sends heartbeats
	NodeDraining NodeState = "draining" // it sends heartbeats, and hands its shards over
	NodeSilent   NodeState = "silent"   // it sends none; once it is dead, others adopt its shards
	NodeUnknown  NodeState = "unknown"  // it may send some, but the ledger does not answer
	NodeReleased NodeState = "released" // its last process has ended in order
)

// NodeStates are all states there are.
var NodeStates = []NodeState{NodeLive, NodeDraining, NodeSilent, NodeUnknown, NodeReleased}

// NodeStatus is what a node tells the others about its memory. It travels as JSON between processes
// of different versions: fields are only ever added.
type NodeStatus struct {
	Pending    int64 `json:"pending"`
	Ready      int64 `json:"ready"`
	Delivering int64 `json:"delivering"`
	Dead       int64 `json:"dead"`
	Room       int   `json:"room"` // how many more tasks its memory takes

	// Of first attempts since the process began, by the buckets of LatenessBounds: half of them,
	// and 99 of 100, were not later than that. 0 if there was none.
	LatenessP50 time.Duration `json:"lateness_p50_ns"`
	LatenessP99 time.Duration `json:"lateness_p99_ns"`

	Backlog  bool `json:"backlog,omitempty"`  // more ready tasks wait than Config.SweepBacklog
	Draining bool `json:"draining,omitempty"` // it takes no tasks and no shards any more
	Unsure   bool `json:"unsure,omitempty"`   // it may have lost what it held
	Catching bool `json:"catching,omitempty"` // it still reads tasks that it holds

	// Spooled are the shards whose tasks only this node's spool has, whichever node holds them.
	Spooled []recovery.ShardID `json:"spooled,omitempty"`

	// How often this process could not be drained as DrainNode had asked, and why the last time.
	DrainsFailed int    `json:"drains_failed,omitempty"`
	DrainFault   string `json:"drain_fault,omitempty"`

	// Clock is how far its clock is from that of the ledger's server; nil: it is not known.
	Clock *ClockReading `json:"clock,omitempty"`
}
