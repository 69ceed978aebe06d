package task

import (
	"strings"
	"time"
)

// A Reach says which nodes the figures of an answer are of. Counters are those of each node since
// its start: what a process has counted ends with it.
type Reach struct {
	Nodes []string // whose figures are in the answer, by name
	// Missing are the nodes whose figures are not in the answer, or only in part, by name: they do
	// not answer, or send no heartbeat while they hold shards or may have spooled tasks, or still
	// read tasks that they hold, which is ErrReplaying. One without a name stands for all other
	// nodes, if the ledger has not told yet which those are.
	Missing []*NodeError
	// RecentSince is since when figures of the last RecentTime are of all nodes: what those in
	// RecentWithout had counted before has ended with their processes. Zero: they lack nothing, or
	// no other node shares the ledger.
	RecentSince   time.Time
	RecentWithout []string // by name
}

// LacksRecent notes that what a node had counted until a time is missing.
func (r *Reach) LacksRecent(node string, until time.Time) {
	r.RecentWithout = append(r.RecentWithout, node)
	if until.After(r.RecentSince) {
		r.RecentSince = until
	}
}

// recent says what figures of the last RecentTime lack, "" if nothing.
func (r *Reach) recent() string {
	if len(r.RecentWithout) == 0 {
		return ""
	}
	return " (without what " + strings.Join(r.RecentWithout, ", ") + " had counted)"
}
