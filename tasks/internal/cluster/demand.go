package cluster

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Demand is how many tasks the waiting receivers of a topic at this node want from the others. A
// receiver that finds nothing ready at its node waits, and a task may become ready at any node. So
// the waiting receivers of a topic have one Demand together, for each length of lease that they ask
// for. Their node announces it to the other nodes:
//
//   - First the node asks the others for ready tasks, one after another and then more at a
//     time, until there are enough. So receivers with little to do do not have every node
//     send them something.
//   - A node that has nothing keeps the Demand as a remote waiter, which stands in the
//     topic's queue of receivers like a receiver of that node. When a task is ready and it is
//     the remote waiter's turn, the node offers the task to the node of the Demand. That one
//     serves the receivers that have waited longest, and returns what no receiver waits for.
//   - A Demand is renewed every few seconds, all of a node's demands in one message. Nothing
//     else is sent while nothing is ready, however many receivers wait.
//
// A node forgets a Demand that is not renewed. Lost messages cost time; at worst a task is
// ready again when its lease is over.
type Demand struct {
	demandKey
	// want is how many tasks the sleeping receivers would take. It changes under Engine.mu.
	want atomic.Int64

	// Guarded by demands.mu:
	announced map[string]announcement
	last      string        // the node that was asked last
	search    chan struct{} // closed when the running search is over; nil if none runs
	unused    int           // how many times in a row no receiver was found waiting
}

// A demandKey identifies a demand.
type demandKey struct {
	topic string
	lease time.Duration // that the receivers ask for; 0: the topic's
}

// demands are those of this node, and the nodes that may hear of them. A receiver enters its demand
// while it joins the queue in which it has found nothing: Engine.Queue calls Demand, counts what
// the receiver wants, and has the other nodes searched, all under Engine.mu. So mu is taken under
// Engine.mu, and under mu neither the engine nor another node is called.
type demands struct {
	mu     sync.Mutex    // guards everything below
	list   []*peer       // by name
	listed time.Duration // when; 0: never
	serial uint64        // of the last message about a demand
	byKey  map[demandKey]*Demand
}

// An announcement is the last message about a demand to another node.
type announcement struct {
	serial uint64
	at     time.Duration // when it was sent
}

const (
	// RenewEvery is how often a demand is announced again.
	RenewEvery = 5 * time.Second
	// remoteWaiterFor is how long a demand holds that is not renewed.
	remoteWaiterFor = 3 * RenewEvery
	// A demand without a receiver is withdrawn after so many rounds in a row.
	unusedTimes = 2
	// So many demands go in one message.
	demandsAtOnce = 500
)

// ReserveMethod asks for ready tasks. If there are none, the demand stays at the node.
var ReserveMethod = Method[DemandMessage, ReserveReply]{Name: "reserve", writes: true}

// DemandsMethod renews demands; Want 0 withdraws one.
var DemandsMethod = Method[demandsMessage, struct{}]{Name: "wishes"}

// A DemandMessage announces a demand. A message with a lower serial is older
// and does not count any more.
type DemandMessage struct {
	Run    uint32 // of the process that counts the serials
	Serial uint64
	Topic  string
	Lease  time.Duration `json:",omitempty"` // 0: the topic's
	Want   int
}

type demandsMessage struct {
	Demands []DemandMessage `json:"Wishes"`
}

// A ReserveReply has the tasks that were ready. Without any, the demand stays at the node.
type ReserveReply struct {
	Topic      string
	Lease      time.Duration         `json:",omitempty"`
	Deliveries []engine.WireDelivery `json:",omitempty"`
}

func (x *demands) find(key demandKey) *Demand {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.byKey[key]
}

// enter returns the demand that a topic's receivers have together.
func (x *demands) enter(key demandKey) *Demand {
	x.mu.Lock()
	defer x.mu.Unlock()
	w := x.byKey[key]
	if w == nil {
		w = &Demand{demandKey: key, announced: make(map[string]announcement)}
		x.byKey[key] = w
	}
	return w
}

// Demand returns what Engine.Queue calls to enter the demand of receivers of a topic that ask for a
// lease.
func (s *Cluster) Demand(topic string, lease time.Duration) func(stopped bool) (*atomic.Int64, func() <-chan struct{}) {
	return func(stopped bool) (*atomic.Int64, func() <-chan struct{}) {
		w := s.Peers.demands.enter(demandKey{topic, lease})
		return &w.want, func() <-chan struct{} { return s.startSearch(w, stopped) }
	}
}

// announceLocked makes the message that announces a demand to a node. demands.mu is held.
func (s *Cluster) announceLocked(w *Demand, node string) DemandMessage {
	x := &s.Peers.demands
	x.serial++
	said := DemandMessage{s.Peers.Run, x.serial, w.topic, w.lease, min(int(w.want.Load()), task.MaxReserve)}
	if said.Want > 0 {
		w.announced[node] = announcement{said.Serial, s.engine.Elapsed()}
	} else {
		delete(w.announced, node)
	}
	return said
}

// answerOffer returns the demand that an offer was made for, for the node that has made it; none if
// there is no such demand any more.
func (s *Cluster) answerOffer(key demandKey, node string) (said DemandMessage) {
	x := &s.Peers.demands
	x.mu.Lock()
	defer x.mu.Unlock()
	if w := x.byKey[key]; w != nil {
		said = s.announceLocked(w, node)
	}
	return said
}

// startSearch makes a demand known to all nodes. It returns a channel that is closed when the nodes
// that did not know it have answered; nil if all know it. It may be called with Engine.mu held.
func (s *Cluster) startSearch(w *Demand, stopped bool) <-chan struct{} {
	x := &s.Peers.demands
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byKey[w.demandKey] = w // renew may have dropped it before its receiver was counted
	switch {
	case w.search != nil:
		return w.search
	case w.want.Load() == 0 || stopped:
		return nil
	}
	list := x.listed == 0 || s.engine.Elapsed()-x.listed >= PeersEvery
	if !list && s.uninformedLocked(w, 1) == nil {
		return nil
	}
	over := make(chan struct{})
	if !s.engine.Life.Go(func() { s.search(w, list) }) {
		return nil
	}
	w.search = over
	return over
}

func (s *Cluster) search(w *Demand, list bool) {
	if list {
		s.listPeers()
	}
	for width := 1; ; width *= 2 {
		next, said := s.nextOfSearch(w, width)
		if len(next) == 0 {
			return
		}
		var all sync.WaitGroup
		for i, n := range next {
			all.Go(func() {
				if s.engine.Life.Enter() { // Close returns what the answer brings
					defer s.engine.Life.Handlers.Done()
					s.requestTasks(w, n, said[i])
				}
			})
		}
		all.Wait()
	}
}

// nextOfSearch returns the nodes that a search asks next, and what it says to each. Without any it
// ends the search: a receiver that joins later begins another one.
func (s *Cluster) nextOfSearch(w *Demand, width int) (next []*peer, said []DemandMessage) {
	x := &s.Peers.demands
	x.mu.Lock()
	defer x.mu.Unlock()
	next = s.uninformedLocked(w, width)
	if len(next) == 0 || w.want.Load() == 0 || s.engine.IsClosing() {
		close(w.search)
		w.search = nil
		return nil, nil
	}
	w.last = next[len(next)-1].name
	for _, n := range next {
		said = append(said, s.announceLocked(w, n.name))
	}
	return next, said
}

// uninformedLocked returns up to limit nodes that should know of a demand and do not,
// beginning after the node that was asked last. demands.mu is held.
func (s *Cluster) uninformedLocked(w *Demand, limit int) (next []*peer) {
	all, now := s.Peers.demands.list, s.engine.Elapsed()
	first := 0
	for first < len(all) && all[first].name <= w.last {
		first++
	}
	for i := range all {
		n := all[(first+i)%len(all)]
		if _, knows := w.announced[n.name]; knows || n.retryAt > now {
			continue
		}
		if next = append(next, n); len(next) == limit {
			break
		}
	}
	return next
}

// requestTasks asks one node for tasks.
func (s *Cluster) requestTasks(w *Demand, n *peer, said DemandMessage) {
	ctx, cancel := context.WithTimeout(s.engine.Life.Context, AskWithin)
	defer cancel()
	asked := s.engine.Elapsed()
	a, err := Call(ctx, s, n.name, ReserveMethod, said)
	if err == nil && len(a.Deliveries) > 0 {
		s.fetched(n.name, &a, asked)
	}
	x := &s.Peers.demands
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case err != nil:
		n.retryAt = s.engine.Elapsed() + AskWithin
	case len(a.Deliveries) == 0:
		return // the node keeps the demand
	}
	if w.announced[n.name].serial == said.Serial {
		delete(w.announced, n.name)
	}
}

// fetched gives deliveries, which a node was asked for at the time asked, to the waiting
// receivers, and returns the others to that node.
func (s *Cluster) fetched(from string, a *ReserveReply, asked time.Duration) {
	s.ReturnUnused(s.serveFetched(demandKey{a.Topic, a.Lease}, engine.DecodeDeliveries(s.engine, from, a.Deliveries, asked, nil)))
}

// serveFetched gives deliveries of another node to the receivers of a demand, to the one that has
// waited longest first. It returns those without a receiver and those whose leases are over.
func (s *Cluster) serveFetched(key demandKey, ds []*engine.Delivery) (left []*engine.Delivery) {
	w := s.Peers.demands.find(key)
	if w == nil {
		return ds
	}
	left = s.engine.Give(key.topic, &w.want, ds)
	s.Peers.Counts.ReservesTaken.Add(int64(len(ds) - len(left)))
	return left
}

// renewDemands renews this node's demands at the other nodes.
func (s *Cluster) renewDemands() {
	told, uninformed := s.renew()
	for _, w := range uninformed { // nodes that have joined since
		s.startSearch(w, s.engine.Stopped(w.topic))
	}
	for node, all := range told {
		for len(all) > 0 {
			n := min(len(all), demandsAtOnce)
			send(s, node, DemandsMethod, demandsMessage{all[:n]})
			all = all[n:]
		}
	}
}

// renew returns what is to be said to which node, and the demands that a node does not know. It
// drops those of which no node knows and that no receiver has.
func (s *Cluster) renew() (told map[string][]DemandMessage, uninformed []*Demand) {
	told = make(map[string][]DemandMessage)
	x := &s.Peers.demands
	x.mu.Lock()
	defer x.mu.Unlock()
	now, seen := s.engine.Elapsed(), 0
	for key, w := range x.byKey {
		if seen++; seen%demandsAtOnce == 0 { // receivers that join wait for it, under Engine.mu
			x.mu.Unlock()
			runtime.Gosched()
			x.mu.Lock()
			if x.byKey[key] != w {
				continue
			}
		}
		wanted := w.want.Load() > 0
		if w.unused++; wanted {
			w.unused = 0
			if s.uninformedLocked(w, 1) != nil {
				uninformed = append(uninformed, w)
			}
		}
		for node, st := range w.announced {
			if w.unused >= unusedTimes || wanted && now-st.at >= RenewEvery {
				told[node] = append(told[node], s.announceLocked(w, node))
			}
		}
		if !wanted && len(w.announced) == 0 && w.search == nil {
			delete(x.byKey, key)
		}
	}
	return told, uninformed
}

// Received returns deliveries of other nodes for a receiver, or gives them back if the receiver
// has left.
func (s *Cluster) Received(ctx context.Context, ds []*engine.Delivery) []*engine.Delivery {
	if ctx.Err() == nil {
		return ds
	}
	s.ReturnUnused(ds)
	return nil
}
