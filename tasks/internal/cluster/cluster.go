package cluster

import (
	"sync/atomic"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Cluster is the part of a node that deals with the other nodes that share its ledger. Without
// any it does next to nothing.
type Cluster struct {
	engine *engine.Engine

	Fleet     *Fleet // nil if the ledger is one node's alone
	peerCalls PeerCalls
	Peers     peers
	Missing   map[recovery.ShardID]bool // shards of this node's own that it does not hold
	Forward   forwarder
	Drain     draining
	settled   bool // it was ready once
	Figures   figures

	peerClocks atomic.Pointer[[]task.ClockOffset] // see clocks
}

// New returns the cluster of an engine, and makes it the one that the engine tells. A test
// may replace how nodes hand shards over.
func New(e *engine.Engine, calls PeerCalls) *Cluster {
	s := &Cluster{
		engine:    e,
		peerCalls: calls,
		Drain:     draining{Done: make(chan struct{})},
		Missing:   make(map[recovery.ShardID]bool),
		Peers:     newPeers(),
	}
	s.peerClocks.Store(new([]task.ClockOffset))
	if e.Fleet != nil {
		e.Cluster = rooms{s}
	} else {
		e.Cluster = engine.NoCluster{}
	}
	return s
}

// StartLoops starts the loops that a node needs because other nodes share its ledger.
func (s *Cluster) StartLoops() {
	s.joinFleet()
	if s.Fleet != nil {
		s.engine.Life.Background.Go(s.reconcilerLoop)
		s.engine.Life.Background.Go(s.peersLoop)
		s.engine.Life.Background.Go(s.coalesceLoop)
		if s.engine.Config.Helps.Times != nil {
			s.engine.Life.Background.Go(s.helpLoop)
		}
	}
}
