package task

// A Reach says which nodes the figures of an answer are of. Counters are those of each node since
// its start: what a process has counted ends with it.
type Reach struct {
	Nodes []string // whose figures are in the answer, by name
	// Missing are the nodes whose figures are not in the answer, or only in part, by name: they do
	// not answer, or send no heartbeat while they hold shards or may have spooled tasks, or still
	// read tasks that they hold, which is ErrReplaying. One without a name stands for all other
	// nodes, if the ledger has not told yet which those are.
	Missing []*NodeError
}
