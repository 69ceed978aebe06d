package tasks

import (
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/relay"
	"github.com/lapsehq/lapse/tasks/task"
)

// A remoteWaiter stands in a topic's queue for the receivers that wait at another node. Its turn
// comes when it has waited longest, as if it waited here. It is served as much as those
// receivers would take together. Then it stands at the end of the queue.
type remoteWaiter struct {
	engine.Turn
	topic  *engine.Topic
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

// offerMethod offers deliveries to the node of a demand.
var offerMethod = method[offer, offerReply]{name: "offer", writes: true}

type offer struct {
	Run        uint32 // of the process that has the demand
	Topic      string
	Lease      time.Duration `json:",omitempty"`
	Deliveries []wireDelivery
}

type offerReply struct {
	Back []string      // receipts of those that no receiver waits for
	Wish demandMessage // the demand from now on; Serial 0: none
}

// handleReserve serves the receivers of another node, or keeps their demand as a remote waiter.
func (s *cluster) handleReserve(ctx context.Context, from string, ask demandMessage) (reserveReply, error) {
	if !task.ValidName(ask.Topic) || ask.Want < 1 || ask.Want > MaxReserve || ask.Lease != 0 && (ask.Lease < MinLease || ask.Lease > MaxLease) {
		return reserveReply{}, errNotUnderstood
	}
	answer := reserveReply{Topic: ask.Topic, Lease: ask.Lease}
	s.engine.Mu.Lock()
	t, err := s.engine.PullableLocked(ask.Topic, false)
	s.engine.Unlock()
	if err == nil {
		answer.Deliveries = s.encodeDeliveries(s.serve(ctx, t, from, ask.Want, ask.Lease))
	}
	if len(answer.Deliveries) == 0 {
		s.engine.Mu.Lock()
		defer s.engine.Unlock()
		s.updateRemoteWaiterLocked(from, ask)
	}
	return answer, nil
}

// serve begins deliveries for a remote waiter.
func (s *cluster) serve(ctx context.Context, t *engine.Topic, node string, want int, lease time.Duration) []*engine.Delivery {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	ds := s.engine.Begin(ctx, t, want, lease, engine.ByRemoteWaiter(node))
	if len(ds) > 0 {
		s.engine.Mu.Lock()
		defer s.engine.Unlock()
		s.peers.counts.reservesGiven += int64(len(ds))
	}
	return ds
}

// handleDemands records the demands of another node.
func (s *cluster) handleDemands(_ context.Context, from string, told demandsMessage) (none struct{}, err error) {
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	for _, w := range told.Wishes {
		if task.ValidName(w.Topic) {
			s.updateRemoteWaiterLocked(from, w)
		}
	}
	return none, nil
}

// updateRemoteWaiterLocked records what a node announces of a demand.
func (s *cluster) updateRemoteWaiterLocked(from string, w demandMessage) {
	if s.engine.Ended {
		return
	}
	key := remoteWaiterKey{from, w.Topic, w.Lease}
	g := s.peers.remoteWaiters[key]
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
		g = &remoteWaiter{topic: t, key: key}
		g.Serve = func() { s.serveRemoteWaiterLocked(g) }
		s.peers.remoteWaiters[key] = g
		t.Pins++
	}
	g.run, g.serial, g.want, g.until = w.Run, w.Serial, min(w.Want, MaxReserve), s.engine.Elapsed()+remoteWaiterFor
	switch {
	case g.served: // serveRemoteWaiter goes by the latest message
	case g.want <= 0:
		s.dropRemoteWaiterLocked(g)
	case g.Place == nil:
		g.topic.Reservers.Join(&g.Turn)
		s.engine.WakeLocked(g.topic)
	}
}

// servableLocked reports whether a remote waiter may be served.
func (s *cluster) servableLocked(g *remoteWaiter) bool {
	return g.want > 0 && g.until > s.engine.Elapsed() && g.topic.Pulled() && !s.engine.Ended
}

// dropRemoteWaiterLocked forgets a remote waiter that is not being served.
func (s *cluster) dropRemoteWaiterLocked(g *remoteWaiter) {
	if g.Place != nil {
		g.topic.Reservers.Leave(&g.Turn)
	}
	delete(s.peers.remoteWaiters, g.key)
	g.topic.Pins--
}

// dropRemoteWaiters forgets remote waiters whose demands were not renewed.
func (s *cluster) dropRemoteWaiters() {
	s.engine.Mu.Lock()
	defer func() { s.engine.Unlock() }()
	seen := 0
	for _, g := range s.peers.remoteWaiters {
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
func (s *cluster) serveRemoteWaiterLocked(g *remoteWaiter) {
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
func (s *cluster) serveRemoteWaiter(g *remoteWaiter) {
	s.engine.Mu.Lock()
	may, want := s.servableLocked(g), g.want
	s.engine.Unlock()
	var ds []*engine.Delivery
	if may {
		ds = s.serve(s.engine.Life.Context, g.topic, g.key.node, want, g.key.lease)
	}
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	t := g.topic
	t.Reservers.Leave(&g.Turn)
	if len(ds) > 0 {
		s.engine.WakeLocked(t) // for the tasks that are left
		query := offer{g.run, t.Name, g.key.lease, s.encodeDeliveries(ds)}
		g.Number = 0
		s.engine.Unlock()
		ctx, cancel := context.WithTimeout(s.engine.Life.Context, askWithin)
		a, err := call(ctx, s, g.key.node, offerMethod, query)
		cancel()
		s.engine.Mu.Lock()
		s.offeredLocked(g, ds, query.Deliveries, a, err)
	}
	g.served = false
	if s.servableLocked(g) {
		t.Reservers.Join(&g.Turn)
	} else {
		s.dropRemoteWaiterLocked(g)
	}
	s.engine.WakeLocked(t)
}

// offeredLocked processes the answer to an offer.
func (s *cluster) offeredLocked(g *remoteWaiter, ds []*engine.Delivery, sent []wireDelivery, a offerReply, err error) {
	back := make(map[string]bool, len(a.Back))
	for _, receipt := range a.Back {
		back[receipt] = true
	}
	unheard := errors.Is(err, relay.ErrUnheard) || errors.Is(err, relay.ErrOverloaded) || errors.Is(err, errNotUnderstood) || errors.Is(err, ErrClosed)
	var moved []string
	for i, d := range ds {
		if !unheard && !back[sent[i].Receipt] {
			continue
		}
		s.peers.counts.reservesGiven--
		if !s.engine.UndoDeliveryLocked(d) {
			moved = append(moved, sent[i].Receipt)
		}
	}
	s.returnToOwnerLocked(moved)
	switch {
	case err != nil, a.Wish.Serial == 0:
		g.want = 0 // until the node announces a demand again
	case a.Wish.Run == g.run && a.Wish.Serial > g.serial:
		g.serial, g.want, g.until = a.Wish.Serial, min(a.Wish.Want, MaxReserve), s.engine.Elapsed()+remoteWaiterFor
	}
}

// handleOffer accepts deliveries that this node's receivers have been waiting for.
func (s *cluster) handleOffer(ctx context.Context, from string, o offer) (offerReply, error) {
	sent := s.engine.Elapsed()
	if deadline, ok := ctx.Deadline(); ok {
		sent = min(sent, deadline.Sub(s.engine.Started)-askWithin)
	}
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	if s.engine.Ended {
		return offerReply{}, ErrClosed
	}
	t := s.engine.TopicTable.ByName[o.Topic]
	ds := s.decodeDeliveries(from, o.Deliveries, sent, nil)
	if o.Run == s.peers.run {
		ds = s.serveFetchedLocked(t, o.Lease, ds)
	}
	var a offerReply
	if w := s.peers.demands[demandKey{t, o.Lease}]; w != nil && o.Run == s.peers.run {
		a.Wish = s.announceDemandLocked(w, from)
	}
	for _, d := range ds {
		a.Back = append(a.Back, d.Receipt())
	}
	s.peers.counts.returned += int64(len(ds))
	return a, nil
}
