package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/relay"
	"github.com/lapsehq/lapse/tasks/task"
)

// A RemoteWaiter stands in a topic's queue for the receivers that wait at another node. Its turn
// comes when it has waited longest, as if it waited here. It is served as much as those
// receivers would take together. Then it stands at the end of the queue.
type RemoteWaiter struct {
	key  remoteWaiterKey
	turn *engine.RemoteTurn

	// Guarded by remoteWaiters.mu:
	run    uint32
	serial uint64
	want   int
	until  time.Duration // on the monotonic clock
	lease  *time.Timer   // drops it then
	served bool          // its turn has come, and serveRemoteWaiter runs
	gone   bool          // it was dropped
}

// A remoteWaiterKey identifies a remote waiter.
type remoteWaiterKey struct {
	node  string
	topic string
	lease time.Duration
}

// remoteWaiters are those that stand in queues of this node. The engine tells one of its turn under
// Engine.mu, so mu is taken under that, and under mu the engine is not called. In between, one that
// joins a queue may have been dropped, or one that was dropped be told of its turn: stand and
// serveRemoteWaiter look again, and it leaves the queue.
type remoteWaiters struct {
	mu    sync.Mutex // guards everything below
	byKey map[remoteWaiterKey]*RemoteWaiter
}

// OfferMethod offers deliveries to the node of a demand.
var OfferMethod = Method[Offer, OfferReply]{Name: "offer", writes: true}

// An Offer hands deliveries to the receivers of another node.
type Offer struct {
	Run        uint32 // of the process that has the demand
	Topic      string
	Lease      time.Duration `json:",omitempty"`
	Deliveries []engine.WireDelivery
}

// An OfferReply says which of them no receiver took.
type OfferReply struct {
	Unused []string      `json:"Back"` // receipts of those that no receiver waits for
	Demand DemandMessage `json:"Wish"` // the demand from now on; Serial 0: none
}

// HandleReserve serves the receivers of another node, or keeps their demand as a remote waiter.
func (s *Cluster) HandleReserve(ctx context.Context, from string, ask DemandMessage) (ReserveReply, error) {
	if !task.ValidName(ask.Topic) || ask.Want < 1 || ask.Want > task.MaxReserve || ask.Lease != 0 && (ask.Lease < task.MinLease || ask.Lease > task.MaxLease) {
		return ReserveReply{}, ErrNotUnderstood
	}
	ds := s.Serve(ctx, s.NewRemoteWaiter(from, ask.Topic, ask.Lease), ask.Want)
	if len(ds) == 0 {
		s.UpdateRemoteWaiter(from, ask)
	}
	return ReserveReply{ask.Topic, ask.Lease, engine.EncodeDeliveries(ds, s.engine.Elapsed())}, nil
}

// NewRemoteWaiter returns a remote waiter that stands in no queue.
func (s *Cluster) NewRemoteWaiter(node, topic string, lease time.Duration) *RemoteWaiter {
	g := &RemoteWaiter{key: remoteWaiterKey{node, topic, lease}}
	g.turn = engine.NewRemoteTurn(s.engine, node, topic, lease, func() { s.turnOf(g) })
	return g
}

// Serve begins deliveries for a remote waiter, which leaves the queue if it stands there.
func (s *Cluster) Serve(ctx context.Context, g *RemoteWaiter, want int) []*engine.Delivery {
	ds := g.turn.Pull(ctx, want)
	s.Peers.Counts.ReservesGiven.Add(int64(len(ds)))
	return ds
}

// handleDemands records the demands of another node.
func (s *Cluster) handleDemands(_ context.Context, from string, told demandsMessage) (none struct{}, err error) {
	for _, w := range told.Demands {
		if task.ValidName(w.Topic) {
			s.UpdateRemoteWaiter(from, w)
		}
	}
	return none, nil
}

// UpdateRemoteWaiter records what a node announces of a demand.
func (s *Cluster) UpdateRemoteWaiter(from string, w DemandMessage) {
	if g := s.updated(remoteWaiterKey{from, w.Topic, w.Lease}, w); g != nil {
		s.stand(g)
	}
}

// updated returns the remote waiter of a demand with what was announced of it; nil if the message
// is old, or announces nothing, or the waiter is being served: serveRemoteWaiter goes by the latest
// message.
func (s *Cluster) updated(key remoteWaiterKey, w DemandMessage) *RemoteWaiter {
	x := &s.Peers.waiters
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.byKey[key]
	switch {
	case s.engine.IsClosing():
		return nil
	case g != nil && g.run == w.Run && w.Serial < g.serial:
		return nil
	case g == nil && w.Want <= 0:
		return nil
	case g == nil:
		g = s.NewRemoteWaiter(key.node, key.topic, key.lease)
		g.lease = time.AfterFunc(remoteWaiterFor, func() { s.stand(g) })
		x.byKey[key] = g
	}
	g.run = w.Run
	g.announce(w, s.engine.Elapsed())
	if g.served {
		return nil
	}
	return g
}

// announce takes over what a node has said of a demand.
func (g *RemoteWaiter) announce(w DemandMessage, now time.Duration) {
	g.serial, g.want, g.until = w.Serial, min(w.Want, task.MaxReserve), now+remoteWaiterFor
	g.lease.Reset(remoteWaiterFor)
}

// wanted returns how many tasks a remote waiter may be served, and by which process; 0 if it is to
// be dropped.
func (s *Cluster) wanted(g *RemoteWaiter) (want int, run uint32) {
	s.Peers.waiters.mu.Lock()
	defer s.Peers.waiters.mu.Unlock()
	return g.wantLocked(s.engine.Elapsed()), g.run
}

func (g *RemoteWaiter) wantLocked(now time.Duration) int {
	if g.gone || g.until <= now {
		return 0
	}
	return max(0, g.want)
}

// isWanted reports whether a remote waiter is not to be dropped.
func (s *Cluster) isWanted(g *RemoteWaiter) bool {
	want, _ := s.wanted(g)
	return want > 0
}

// stand has a remote waiter wait for its turn, or drops it.
func (s *Cluster) stand(g *RemoteWaiter) {
	refused := s.isWanted(g) && !g.turn.Join()
	s.drop(g, refused)
}

// drop forgets a remote waiter that the queue has refused, or that no receiver wants any more: then
// it leaves the queue. One that is being served stays: serveRemoteWaiter has it stand again.
func (s *Cluster) drop(g *RemoteWaiter, refused bool) {
	x := &s.Peers.waiters
	x.mu.Lock()
	drops := !g.served && (refused || g.wantLocked(s.engine.Elapsed()) == 0)
	if drops && !g.gone {
		g.gone = true
		g.lease.Stop()
		delete(x.byKey, g.key)
	}
	x.mu.Unlock()
	if drops {
		g.turn.Leave()
	}
}

// turnOf is called under Engine.mu when a remote waiter's turn has come.
func (s *Cluster) turnOf(g *RemoteWaiter) {
	s.Peers.waiters.mu.Lock()
	g.served = true
	s.Peers.waiters.mu.Unlock()
	s.engine.Life.Handle(func() { s.serveRemoteWaiter(g) })
}

// serveRemoteWaiter offers ready tasks to the remote waiter's node.
func (s *Cluster) serveRemoteWaiter(g *RemoteWaiter) {
	if want, run := s.wanted(g); want > 0 {
		if ds := s.Serve(s.engine.Life.Context, g, want); len(ds) > 0 {
			sent := engine.EncodeDeliveries(ds, s.engine.Elapsed())
			a, err := s.offer(g, run, sent)
			s.Offered(g, ds, sent, a, err)
			if silent(err) {
				s.askAgain(g)
			}
		}
	}
	g.turn.Leave() // unless it has pulled
	s.Peers.waiters.mu.Lock()
	g.served = false
	s.Peers.waiters.mu.Unlock()
	s.stand(g)
}

// offer offers deliveries to a remote waiter's node.
func (s *Cluster) offer(g *RemoteWaiter, run uint32, ds []engine.WireDelivery) (OfferReply, error) {
	ctx, cancel := context.WithTimeout(s.engine.Life.Context, AskWithin)
	defer cancel()
	return Call(ctx, s, g.key.node, OfferMethod, Offer{run, g.key.topic, g.key.lease, ds})
}

// askAgainAfter spaces the offers without tasks to a node that has not answered one with tasks.
var askAgainAfter = recovery.Backoff{Min: 50 * time.Millisecond, Max: 250 * time.Millisecond}

// askAgain offers nothing to a node that has not answered an offer, until it answers or its demand
// is over. The answer says what it wants now. So an outage of the ledger delays tasks for as long
// as it lasts, and not until the demand is announced again.
func (s *Cluster) askAgain(g *RemoteWaiter) {
	for attempt := 0; s.engine.Life.Rest(askAgainAfter.Delay(attempt)); attempt++ {
		want, run := s.wanted(g)
		if want == 0 {
			return
		}
		a, err := s.offer(g, run, nil)
		s.Offered(g, nil, nil, a, err)
		if !silent(err) {
			return
		}
	}
}

// Offered processes the answer to an offer.
func (s *Cluster) Offered(g *RemoteWaiter, ds []*engine.Delivery, sent []engine.WireDelivery, a OfferReply, err error) {
	unused := make(map[string]bool, len(a.Unused))
	for _, receipt := range a.Unused {
		unused[receipt] = true
	}
	unheard := errors.Is(err, relay.ErrUnheard) || errors.Is(err, relay.ErrOverloaded) || errors.Is(err, ErrNotUnderstood) || errors.Is(err, task.ErrClosed)
	var back []*engine.Delivery
	for i, d := range ds {
		if unheard || unused[sent[i].Receipt] {
			back = append(back, d)
		}
	}
	s.Peers.Counts.ReservesGiven.Add(-int64(len(back)))
	s.ReturnMoved(s.engine.TakeBack(back))
	s.Peers.waiters.mu.Lock()
	defer s.Peers.waiters.mu.Unlock()
	switch {
	case silent(err): // see askAgain
	case err != nil, a.Demand.Serial == 0:
		g.want = 0 // until the node announces a demand again
	case a.Demand.Run == g.run && a.Demand.Serial > g.serial:
		g.announce(a.Demand, s.engine.Elapsed())
	}
}

// HandleOffer accepts deliveries that this node's receivers have been waiting for.
func (s *Cluster) HandleOffer(ctx context.Context, from string, o Offer) (OfferReply, error) {
	sent := s.engine.Elapsed()
	if deadline, ok := ctx.Deadline(); ok {
		sent = min(sent, deadline.Sub(s.engine.Started)-AskWithin)
	}
	if s.engine.IsClosing() {
		return OfferReply{}, task.ErrClosed
	}
	ds := engine.DecodeDeliveries(s.engine, from, o.Deliveries, sent, nil)
	var a OfferReply
	if key := (demandKey{o.Topic, o.Lease}); o.Run == s.Peers.Run {
		ds = s.serveFetched(key, ds)
		a.Demand = s.answerOffer(key, from)
	}
	for _, d := range ds {
		a.Unused = append(a.Unused, d.Receipt())
	}
	return a, nil
}
