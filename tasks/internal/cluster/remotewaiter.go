package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/relay"
	"github.com/lapsehq/lapse/tasks/task"
)

// A RemoteWaiter stands in a topic's queue for the receivers that wait at another node. Its turn
// comes when it has waited longest, as if it waited here. It is served as much as those
// receivers would take together. Then it stands at the end of the queue.
type RemoteWaiter struct {
	dispatch.Turn
	Topic  *engine.Topic
	key    remoteWaiterKey
	run    uint32
	serial uint64
	want   int
	until  time.Duration // on the monotonic clock
	served bool          // its turn has come, and serveRemoteWaiter runs
}

// A remoteWaiterKey identifies a remote waiter.
type remoteWaiterKey struct {
	node  string
	topic string
	lease time.Duration
}

// OfferMethod offers deliveries to the node of a demand.
var OfferMethod = Method[Offer, OfferReply]{Name: "offer", writes: true}

// An Offer hands deliveries to the receivers of another node.
type Offer struct {
	Run        uint32 // of the process that has the demand
	Topic      string
	Lease      time.Duration `json:",omitempty"`
	Deliveries []WireDelivery
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
	answer := ReserveReply{Topic: ask.Topic, Lease: ask.Lease}
	s.engine.Mu.Lock()
	t, err := s.engine.PullableLocked(ask.Topic, false)
	s.engine.Unlock()
	if err == nil {
		answer.Deliveries = s.EncodeDeliveries(s.Serve(ctx, t, from, ask.Want, ask.Lease))
	}
	if len(answer.Deliveries) == 0 {
		s.engine.Mu.Lock()
		defer s.engine.Unlock()
		s.updateRemoteWaiterLocked(from, ask)
	}
	return answer, nil
}

// Serve begins deliveries for a remote waiter.
func (s *Cluster) Serve(ctx context.Context, t *engine.Topic, node string, want int, lease time.Duration) []*engine.Delivery {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	ds := s.engine.Begin(ctx, t, want, lease, dispatch.ByRemoteWaiter(node))
	if len(ds) > 0 {
		s.engine.Mu.Lock()
		defer s.engine.Unlock()
		s.Peers.Counts.ReservesGiven += int64(len(ds))
	}
	return ds
}

// handleDemands records the demands of another node.
func (s *Cluster) handleDemands(_ context.Context, from string, told demandsMessage) (none struct{}, err error) {
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	for _, w := range told.Demands {
		if task.ValidName(w.Topic) {
			s.updateRemoteWaiterLocked(from, w)
		}
	}
	return none, nil
}

// updateRemoteWaiterLocked records what a node announces of a demand.
func (s *Cluster) updateRemoteWaiterLocked(from string, w DemandMessage) {
	if s.engine.Ended {
		return
	}
	key := remoteWaiterKey{from, w.Topic, w.Lease}
	g := s.Peers.remoteWaiters[key]
	switch {
	case g != nil && g.run == w.Run && w.Serial < g.serial:
		return
	case g == nil && w.Want <= 0:
		return
	case g == nil:
		t, err := s.engine.TopicLocked(w.Topic, false)
		if err != nil || !t.Pulled() {
			return // the node announces it again
		}
		g = &RemoteWaiter{Topic: t, key: key}
		g.Serve = func() { s.serveRemoteWaiterLocked(g) }
		s.Peers.remoteWaiters[key] = g
		t.Pins++
	}
	g.run, g.serial, g.want, g.until = w.Run, w.Serial, min(w.Want, task.MaxReserve), s.engine.Elapsed()+remoteWaiterFor
	switch {
	case g.served: // serveRemoteWaiter goes by the latest message
	case g.want <= 0:
		s.dropRemoteWaiterLocked(g)
	case g.Place == nil:
		g.Topic.Reservers.Join(&g.Turn)
		s.engine.WakeLocked(g.Topic)
	}
}

// servableLocked reports whether a remote waiter may be served.
func (s *Cluster) servableLocked(g *RemoteWaiter) bool {
	return g.want > 0 && g.until > s.engine.Elapsed() && g.Topic.Pulled() && !s.engine.Ended
}

// dropRemoteWaiterLocked forgets a remote waiter that is not being served.
func (s *Cluster) dropRemoteWaiterLocked(g *RemoteWaiter) {
	if g.Place != nil {
		g.Topic.Reservers.Leave(&g.Turn)
	}
	delete(s.Peers.remoteWaiters, g.key)
	g.Topic.Pins--
}

// dropRemoteWaiters forgets remote waiters whose demands were not renewed.
func (s *Cluster) dropRemoteWaiters() {
	s.engine.Mu.Lock()
	defer func() { s.engine.Unlock() }()
	seen := 0
	for _, g := range s.Peers.remoteWaiters {
		if !g.served && !s.servableLocked(g) {
			s.dropRemoteWaiterLocked(g)
		}
		if seen++; seen%engine.AtOnce == 0 {
			s.engine.Unlock()
			s.engine.Mu.Lock()
		}
	}
}

// serveRemoteWaiterLocked is called when a remote waiter's turn has come.
func (s *Cluster) serveRemoteWaiterLocked(g *RemoteWaiter) {
	g.served = true
	if s.engine.Ended {
		return
	}
	s.engine.Life.Handlers.Add(1)
	go func() {
		defer s.engine.Life.Handlers.Done()
		s.serveRemoteWaiter(g)
	}()
}

// serveRemoteWaiter offers ready tasks to the remote waiter's node.
func (s *Cluster) serveRemoteWaiter(g *RemoteWaiter) {
	s.engine.Mu.Lock()
	may, want := s.servableLocked(g), g.want
	s.engine.Unlock()
	var ds []*engine.Delivery
	if may {
		ds = s.Serve(s.engine.Life.Context, g.Topic, g.key.node, want, g.key.lease)
	}
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	t := g.Topic
	t.Reservers.Leave(&g.Turn)
	if len(ds) > 0 {
		s.engine.WakeLocked(t) // for the tasks that are left
		query := Offer{g.run, t.Name, g.key.lease, s.EncodeDeliveries(ds)}
		g.Number = 0
		s.engine.Unlock()
		a, err := s.offer(g, query)
		s.engine.Mu.Lock()
		s.OfferedLocked(g, ds, query.Deliveries, a, err)
		if silent(err) {
			s.engine.WakeLocked(t) // for the tasks that have come back
			s.engine.Unlock()
			s.askAgain(g)
			s.engine.Mu.Lock()
		}
	}
	g.served = false
	if s.servableLocked(g) {
		t.Reservers.Join(&g.Turn)
	} else {
		s.dropRemoteWaiterLocked(g)
	}
	s.engine.WakeLocked(t)
}

func (s *Cluster) offer(g *RemoteWaiter, o Offer) (OfferReply, error) {
	ctx, cancel := context.WithTimeout(s.engine.Life.Context, AskWithin)
	defer cancel()
	return Call(ctx, s, g.key.node, OfferMethod, o)
}

// askAgainAfter spaces the offers without tasks to a node that has not answered one with tasks.
var askAgainAfter = recovery.Backoff{Min: 50 * time.Millisecond, Max: 250 * time.Millisecond}

// askAgain offers nothing to a node that has not answered an offer, until it answers or its demand
// is over. The answer says what it wants now. So an outage of the ledger delays tasks for as long
// as it lasts, and not until the demand is announced again.
func (s *Cluster) askAgain(g *RemoteWaiter) {
	for attempt := 0; s.engine.Rest(askAgainAfter.Delay(attempt)); attempt++ {
		s.engine.Mu.Lock()
		may, query := s.servableLocked(g), Offer{Run: g.run, Topic: g.Topic.Name, Lease: g.key.lease}
		s.engine.Unlock()
		if !may {
			return
		}
		a, err := s.offer(g, query)
		s.engine.Mu.Lock()
		s.OfferedLocked(g, nil, nil, a, err)
		s.engine.Unlock()
		if !silent(err) {
			return
		}
	}
}

// OfferedLocked processes the answer to an offer.
func (s *Cluster) OfferedLocked(g *RemoteWaiter, ds []*engine.Delivery, sent []WireDelivery, a OfferReply, err error) {
	unused := make(map[string]bool, len(a.Unused))
	for _, receipt := range a.Unused {
		unused[receipt] = true
	}
	unheard := errors.Is(err, relay.ErrUnheard) || errors.Is(err, relay.ErrOverloaded) || errors.Is(err, ErrNotUnderstood) || errors.Is(err, task.ErrClosed)
	var moved []string
	for i, d := range ds {
		if !unheard && !unused[sent[i].Receipt] {
			continue
		}
		s.Peers.Counts.ReservesGiven--
		if !s.engine.UndoDeliveryLocked(d) {
			moved = append(moved, sent[i].Receipt)
		}
	}
	s.ReturnToOwnerLocked(moved)
	switch {
	case silent(err): // see askAgain
	case err != nil, a.Demand.Serial == 0:
		g.want = 0 // until the node announces a demand again
	case a.Demand.Run == g.run && a.Demand.Serial > g.serial:
		g.serial, g.want, g.until = a.Demand.Serial, min(a.Demand.Want, task.MaxReserve), s.engine.Elapsed()+remoteWaiterFor
	}
}

// HandleOffer accepts deliveries that this node's receivers have been waiting for.
func (s *Cluster) HandleOffer(ctx context.Context, from string, o Offer) (OfferReply, error) {
	sent := s.engine.Elapsed()
	if deadline, ok := ctx.Deadline(); ok {
		sent = min(sent, deadline.Sub(s.engine.Started)-AskWithin)
	}
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	if s.engine.Ended {
		return OfferReply{}, task.ErrClosed
	}
	t := s.engine.TopicTable.ByName[o.Topic]
	ds := s.decodeDeliveries(from, o.Deliveries, sent, nil)
	if o.Run == s.Peers.Run {
		ds = s.serveFetchedLocked(t, o.Lease, ds)
	}
	var a OfferReply
	if w := s.Peers.demands[demandKey{t, o.Lease}]; w != nil && o.Run == s.Peers.Run {
		a.Demand = s.announceDemandLocked(w, from)
	}
	for _, d := range ds {
		a.Unused = append(a.Unused, d.Receipt())
	}
	return a, nil
}
