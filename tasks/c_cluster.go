package tasks

import (
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// A cluster is what a node has to do with the other nodes that share its ledger. Without any it
// does next to nothing.
type cluster struct {
	engine *engine.Engine

	shared    *shared // nil if the ledger is one node's alone
	peerCalls peerCalls
	peers     peers
	missing   map[recovery.Home]bool // shards of this node's own that it does not hold
	late      lateVerdicts
	drain     draining
	settled   bool // it was ready once
	figures   figures
}

// newCluster returns the cluster of an engine, and makes it the one that the engine tells. A test
// may replace how nodes hand shards over.
func newCluster(e *engine.Engine, calls peerCalls) *cluster {
	s := &cluster{
		engine:    e,
		peerCalls: calls,
		drain:     draining{done: make(chan struct{})},
		late:      lateVerdicts{wake: make(chan struct{}, 1)},
		missing:   make(map[recovery.Home]bool),
		peers:     newPeers(),
	}
	e.Cluster = rooms{s}
	return s
}

// startLoops begins what a node does because other nodes share its ledger.
func (s *cluster) startLoops() {
	s.joinFleet()
	if s.shared != nil {
		s.engine.Life.Background.Go(s.reconcilerLoop)
		s.engine.Life.Background.Go(s.peersLoop)
	}
}
