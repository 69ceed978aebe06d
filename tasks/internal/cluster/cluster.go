package cluster

import (
	"sync/atomic"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/past"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Cluster is the part of a node that deals with the other nodes that share its ledger. Without
// any it does next to nothing.
type Cluster struct {
	engine *engine.Engine

	Fleet     *Fleet // nil if the ledger is one node's alone
	peerCalls PeerCalls
	Peers     peers
	missing   missing
	Forward   forwarder
	Drain     draining
	Figures   figures
	Past      *past.Past

	peerClocks atomic.Pointer[[]task.ClockOffset] // see clocks
}

// New returns the cluster of an engine, and makes it the one that the engine tells. A test
// may replace how nodes hand shards over.
func New(e *engine.Engine, calls PeerCalls) *Cluster {
	s := &Cluster{
		engine:    e,
		peerCalls: calls,
		Drain:     draining{Done: make(chan struct{})},
		missing:   missing{is: make(map[recovery.ShardID]bool)},
		Peers:     newPeers(),
		Figures:   figures{surveying: make(chan struct{}, surveysAtOnce)},
	}
	if ledger, ok := e.Ledger.(sharedLedger); ok {
		s.Fleet = &Fleet{ledger: ledger, Methods: MethodHandlers(), work: make(chan struct{}, 1), indexing: indexing{acquired: 1}, finishedCalls: newFinishedCalls()}
	}
	s.peerClocks.Store(new([]task.ClockOffset))
	if e.Fleet != nil {
		e.Cluster = s
	} else {
		e.Cluster = engine.NoCluster{}
	}
	return s
}

// StartLoops starts the loops that a node needs because other nodes share its ledger.
func (s *Cluster) StartLoops() {
	s.joinFleet()
	s.engine.Life.Go(s.pastLoop)
	if s.Fleet != nil {
		s.engine.Life.Go(s.reconcilerLoop)
		s.engine.Life.Go(s.peersLoop)
		s.engine.Life.Go(s.coalesceLoop)
		if s.engine.Config.Helps.Times != nil {
			s.engine.Life.Go(s.helpLoop)
		}
	}
}

// NeverHadPeers reports whether no other node has ever been registered. Once one was, it stays
// false for the life of this process: going back would gain nothing.
func (s *Cluster) NeverHadPeers() bool {
	if !s.Fleet.multiNode.Load() && !s.Fleet.ledger.Standing().Alone {
		s.noteMultiNode()
	}
	return !s.Fleet.multiNode.Load()
}

// noteMultiNode records that there are other nodes. What was created under Engine.mu before is in
// memory when the reconciler registers all ids.
func (s *Cluster) noteMultiNode() {
	if s.Fleet.multiNode.CompareAndSwap(false, true) {
		s.wakeReconciler()
	}
}
