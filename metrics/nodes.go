package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// nodesFor is for how long the list of nodes is cached. To make it, the ledger may have to look at
// every shard of every node, and the frequency of scrapes must not decide how often.
const nodesFor = 10 * time.Second

// nodes caches how many nodes there were.
type nodes struct {
	mu    sync.Mutex // guards everything below
	at    time.Time
	count map[tasks.NodeState]int
}

// byState counts the nodes. It returns no counts while the ledger does not answer.
func (n *nodes) byState(from source, now time.Time) map[tasks.NodeState]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.at.IsZero() && now.Sub(n.at) < nodesFor {
		return n.count
	}
	n.at, n.count = now, nil
	all, err := from.Nodes(context.Background())
	if err != nil {
		return nil
	}
	n.count = make(map[tasks.NodeState]int, len(tasks.NodeStates))
	for _, state := range tasks.NodeStates {
		n.count[state] = 0
	}
	for i := range all {
		n.count[all[i].State()]++
	}
	return n.count
}
