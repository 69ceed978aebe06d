package cluster

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// peers is the state that a node has with the other nodes on behalf of its own receivers
// and theirs. Each part has a mutex of its own.
type peers struct {
	Run      uint32 // random: tells serials of this process from those of earlier ones
	demands  demands
	waiters  remoteWaiters
	Offloads offloads
	Counts   peerCounts
	messages messages // of the program
}

func newPeers() peers {
	return peers{
		Run:      rand.Uint32(),
		demands:  demands{byKey: make(map[demandKey]*Demand)},
		waiters:  remoteWaiters{byKey: make(map[remoteWaiterKey]*RemoteWaiter)},
		Offloads: offloads{byKey: make(map[offloadKey]*offload)},
	}
}

// peerCounts count the deliveries that have passed between this node and others since Open.
type peerCounts struct {
	ReservesGiven, ReservesTaken atomic.Int64
	OffloadedIn, OffloadedOut    atomic.Int64
}

// A peer is another node that is alive.
type peer struct {
	name, incarnation string
	retryAt           time.Duration // not asked until then: it has just failed to answer
}

const (
	// PeersEvery is how often a node looks after its demands.
	PeersEvery = time.Second
	// AskWithin bounds a call for tasks, and how long a peer that has not answered one is
	// not asked again.
	AskWithin = time.Second
)

// NoPeers reports whether there are no other nodes. It costs next to nothing.
func (s *Cluster) NoPeers() bool { return s.Fleet == nil || s.Fleet.ledger.Standing().Alone }

// peersLoop runs peersOnce at every tick, until Close.
func (s *Cluster) peersLoop() {
	s.engine.Life.Every(PeersEvery, s.peersOnce)
}

func (s *Cluster) peersOnce() {
	s.compareClocks()
	s.listPeers()
	s.renewDemands()
}

// listPeers lists the other nodes that are alive, as the watch over their heartbeats has seen
// them: Redis is not asked. A process that took the name of an earlier one knows nothing of the
// demands that were announced to that one.
func (s *Cluster) listPeers() {
	ctx, cancel := s.engine.Within(s.engine.Life.Context)
	defer cancel()
	nodes, err := s.Fleet.ledger.Peers(ctx)
	s.Peers.demands.meet(nodes, err, s.engine.Elapsed())
}

// meet takes note of which other nodes are alive.
func (x *demands) meet(nodes []recovery.Node, err error, now time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.listed = now
	if err != nil {
		return // the earlier list is good enough
	}
	before := make(map[string]*peer, len(x.list))
	for _, n := range x.list {
		before[n.name] = n
	}
	x.list = x.list[:0:0]
	for _, n := range nodes {
		if n.Self || !n.Live || n.Released {
			continue
		}
		known := before[n.Name]
		if known == nil || known.incarnation != n.Incarnation {
			known = &peer{name: n.Name, incarnation: n.Incarnation}
		} else {
			delete(before, n.Name)
		}
		x.list = append(x.list, known)
	}
	slices.SortFunc(x.list, func(a, b *peer) int { return strings.Compare(a.name, b.name) })
	for name := range before {
		for _, w := range x.byKey {
			delete(w.announced, name)
		}
	}
}

// send sends a message to another node, or to all if node is empty. It may get lost.
func send[Q, A any](s *Cluster, node string, m Method[Q, A], what Q) {
	body, err := json.Marshal(what)
	if err == nil {
		err = s.Fleet.Relay.Send(node, m.Name, body)
	}
	if err != nil {
		s.engine.Config.Log.Debug("message not sent", "method", m.Name, "to", node, "error", err)
	}
}

// LateReply processes a reply that has come after its caller stopped waiting. Deliveries in it go
// to receivers or back to their node.
func (s *Cluster) LateReply(node, method string, answer []byte, called time.Time) {
	switch method {
	case ReserveMethod.Name:
		if a := decodeLate[ReserveReply](answer); a != nil {
			s.fetched(node, a, called.Sub(s.engine.Started))
		}
	case OfferMethod.Name:
		if a := decodeLate[OfferReply](answer); a != nil {
			if err := s.takeBack(s.engine.Life.Context, node, a.Unused); err != nil {
				for _, receipt := range a.Unused {
					s.returnToOwner(receipt)
				}
			}
		}
	case OffloadMethod.Name:
		if a := decodeLate[offloadReply](answer); a != nil {
			s.ReturnUnused(engine.DecodeDeliveries(s.engine, node, a.Deliveries, called.Sub(s.engine.Started), nil))
		}
	}
}

func decodeLate[A any](body []byte) *A {
	var r Reply[A]
	if json.Unmarshal(body, &r) != nil {
		return nil
	}
	return r.Answer
}
