package task

// A Reach says which nodes the figures of an answer are of. Counters are those of each node since
// its start: what a process has counted ends with it.
type Reach struct {
	Nodes []string // by name
	// Missing are the nodes whose figures are not in the answer, by name: they do not answer, or
	// send no heartbeat while they hold shards or may have spooled tasks. One without a name stands
	// for all other nodes, if the ledger has not told yet which those are.
	Missing []*NodeError
}
