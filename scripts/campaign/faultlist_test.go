package campaign

import "github.com/lapsehq/lapse/scripts/crash"

// A fault is what befalls a node, Redis, or all nodes. A plan combines each with each.
type fault struct {
	name    string // selects it, and heads its column in the matrix
	trouble crash.Trouble
	does    string
	excuses string // what it explains, by the protocol and operations.md; empty: nothing

	ofNode  bool // a node is chosen for it
	instant bool // it takes as long as it takes
	loses   bool // Redis loses writes that it has confirmed
	moves   bool // other nodes take tasks over
	adopted bool // ... but only after failover_after
	begin   func(f *fleet, m plannedFault) (end func())
}

// What several faults explain.
const (
	leased  = "open deliveries, and acknowledgements that were answered as not recorded, come again"
	strayed = "the same; with on_outage: deliver also what others have finished meanwhile"
)

// faults are all faults.
var faults = []fault{
	{name: "kill", trouble: crash.Killed, ofNode: true, moves: true, adopted: true, begin: (*fleet).kill,
		does:    "a node is killed, and started again before or after others may adopt its shards",
		excuses: leased + "; what Redis loses before the others have read it is lost"},
	{name: "stop", trouble: crash.Stopped, ofNode: true, moves: true, adopted: true, begin: (*fleet).stop,
		does: "a node stands still (SIGSTOP), for less or for more than failover_after", excuses: strayed},
	{name: "cut", trouble: crash.CutOff, ofNode: true, moves: true, adopted: true, begin: (*fleet).breakWay,
		does: "a node's way to Redis is cut: connections break, or hang", excuses: strayed},
	{name: "halfopen", trouble: crash.HalfOpen, ofNode: true, begin: (*fleet).breakWay,
		does: "a node's connections to Redis die silently; new ones work", excuses: strayed},
	{name: "slow", trouble: crash.Slow, ofNode: true, begin: (*fleet).breakWay,
		does: "what passes between a node and Redis is late", excuses: strayed},
	{name: "deaf", trouble: crash.Deaf, ofNode: true, begin: (*fleet).breakWay,
		does: "what is published does not reach a node; commands pass"},
	{name: "drain", trouble: crash.Drained, ofNode: true, instant: true, moves: true, begin: (*fleet).drain,
		does: "a node is asked to hand over and end, and is started again"},
	{name: "handover", trouble: crash.HandedOver, ofNode: true, instant: true, moves: true, begin: (*fleet).handOver,
		does: "a node that was started with --handover gets a SIGTERM, and is started again"},
	{name: "restart", trouble: crash.Restarted, ofNode: true, instant: true, begin: (*fleet).restart,
		does: "a node without --handover gets a SIGTERM, and is started again", excuses: "what Redis loses meanwhile is lost"},
	{name: "roll", trouble: crash.HandedOver, instant: true, moves: true, begin: (*fleet).roll,
		does: "all nodes get a SIGTERM with --handover, one after the other"},
	{name: "spool", trouble: crash.OtherSpool, ofNode: true, begin: (*fleet).otherSpool,
		does: "a node is started again with another, empty spool directory, and later with its own"},
	{name: "down", trouble: crash.Down, begin: (*fleet).down,
		does: "Redis is killed, and started again without a loss", excuses: "a node that ends meanwhile cannot record what it has counted"},
	{name: "hung", trouble: crash.Hung, begin: (*fleet).hang,
		does: "Redis stands still", excuses: "the same"},
	{name: "late", trouble: crash.Late, begin: (*fleet).delay,
		does: "what passes between all nodes and Redis is late"},
	{name: "full", trouble: crash.Full, begin: (*fleet).fill,
		does: "Redis is out of memory"},
	{name: "rewind", trouble: crash.Rewound, loses: true, begin: (*fleet).rewind,
		does: "Redis is put back to an older file"},
	{name: "failover", trouble: crash.FailedOver, loses: true, begin: (*fleet).failOver,
		does: "another server, which was behind, takes the place of Redis: by a sentinel (every fourth seed), or as the proxies lead there"},
	{name: "flush", trouble: crash.Flushed, loses: true, instant: true, begin: (*fleet).flush,
		does: "FLUSHALL"},
}

func faultOf(name string) *fault {
	for i := range faults {
		if faults[i].name == name {
			return &faults[i]
		}
	}
	return nil
}

func allFaults() (names []string) {
	for i := range faults {
		names = append(names, faults[i].name)
	}
	return names
}
