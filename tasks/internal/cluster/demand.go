package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
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
	Want      int // tasks that the sleeping receivers would take
	announced map[string]announcement
	last      string        // the node that was asked last
	search    chan struct{} // closed when the running search is over; nil if none runs
	unused    int           // how many times in a row no receiver was found waiting
}

// A demandKey identifies a demand.
type demandKey struct {
	topic *engine.Topic
	lease time.Duration // that the receivers ask for; 0: the topic's
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
	Lease      time.Duration  `json:",omitempty"`
	Deliveries []WireDelivery `json:",omitempty"`
}

// DemandLocked returns the demand that a topic's receivers have together.
func (s *Cluster) DemandLocked(t *engine.Topic, lease time.Duration) *Demand {
	key := demandKey{t, lease}
	w := s.Peers.demands[key]
	if w == nil {
		w = &Demand{demandKey: key, announced: make(map[string]announcement)}
		s.Peers.demands[key] = w
		t.Pins++
	}
	return w
}

// announceDemandLocked makes the message that announces a demand to a node.
func (s *Cluster) announceDemandLocked(w *Demand, node string) DemandMessage {
	s.Peers.serial++
	said := DemandMessage{s.Peers.Run, s.Peers.serial, w.topic.Name, w.lease, min(w.Want, task.MaxReserve)}
	if said.Want > 0 {
		w.announced[node] = announcement{said.Serial, s.engine.Elapsed()}
	} else {
		delete(w.announced, node)
	}
	return said
}

// SearchLocked makes a demand known to all nodes. It returns a channel that is closed when the
// nodes that did not know it have answered; nil if all know it.
func (s *Cluster) SearchLocked(w *Demand) <-chan struct{} {
	switch {
	case w.search != nil:
		return w.search
	case w.Want == 0 || s.engine.Ended || w.topic.Stopped():
		return nil
	}
	listed := s.Peers.listed
	if listed != 0 && s.engine.Elapsed()-listed < PeersEvery && s.uninformedLocked(w, 1) == nil {
		return nil
	}
	w.search = make(chan struct{})
	s.engine.Life.Background.Go(func() { s.search(w, listed == 0 || s.engine.Elapsed()-listed >= PeersEvery) })
	return w.search
}

func (s *Cluster) search(w *Demand, list bool) {
	if list {
		s.listPeers()
	}
	for width := 1; ; width *= 2 {
		s.engine.Mu.Lock()
		next := s.uninformedLocked(w, width)
		if len(next) == 0 || w.Want == 0 || s.engine.Ended {
			close(w.search)
			w.search = nil
			s.engine.Unlock()
			return
		}
		w.last = next[len(next)-1].name
		var all sync.WaitGroup
		for _, n := range next {
			said := s.announceDemandLocked(w, n.name)
			s.engine.Life.Handlers.Add(1) // Close returns what the answer brings
			all.Go(func() {
				defer s.engine.Life.Handlers.Done()
				s.requestTasks(w, n, said)
			})
		}
		s.engine.Unlock()
		all.Wait()
	}
}

// uninformedLocked returns up to limit nodes that should know of a demand and do not,
// beginning after the node that was asked last.
func (s *Cluster) uninformedLocked(w *Demand, limit int) (next []*peer) {
	all, now := s.Peers.list, s.engine.Elapsed()
	first := 0
	for first < len(all) && all[first].name <= w.last {
		first++
	}
	for i := range all {
		n := all[(first+i)%len(all)]
		if _, knows := w.announced[n.name]; knows || n.unsupported || n.retryAt > now {
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
		s.serveFetched(n.name, &a, asked)
	}
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	switch {
	case errors.Is(err, ErrNotUnderstood):
		n.unsupported = true
	case err != nil:
		n.retryAt = s.engine.Elapsed() + AskWithin
	case len(a.Deliveries) == 0:
		return // the node keeps the demand
	}
	if w.announced[n.name].serial == said.Serial {
		delete(w.announced, n.name)
	}
}

// serveFetched gives deliveries, which a node was asked for at the time asked, to the waiting
// receivers, and returns the others to that node.
func (s *Cluster) serveFetched(from string, a *ReserveReply, asked time.Duration) {
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	s.ReturnUnusedLocked(s.serveFetchedLocked(s.engine.TopicTable.ByName[a.Topic], a.Lease, s.decodeDeliveries(from, a.Deliveries, asked, nil)))
}

// serveFetchedLocked gives deliveries of another node to the waiting receivers, to the one that
// has waited longest first. It returns those without a receiver and those whose leases are over.
func (s *Cluster) serveFetchedLocked(t *engine.Topic, lease time.Duration, ds []*engine.Delivery) (left []*engine.Delivery) {
	w := s.Peers.demands[demandKey{t, lease}]
	if w == nil || s.engine.Ended {
		return ds
	}
	ds, left = s.splitByLease(ds)
	for e := t.Reservers.Queue.Front(); e != nil && len(ds) > 0; {
		p := e.Value.(*dispatch.Turn)
		e = e.Next()
		if p.Want == &w.Want {
			n := min(p.Limit, len(ds))
			s.Peers.Counts.ReservesTaken += int64(n)
			t.GiveLocked(p, ds[:n:n])
			ds = ds[n:]
		}
	}
	return append(left, ds...)
}

// renewDemands renews this node's demands at the other nodes.
func (s *Cluster) renewDemands() {
	told := make(map[string][]DemandMessage)
	s.engine.Mu.Lock()
	now, seen := s.engine.Elapsed(), 0
	for key, w := range s.Peers.demands {
		if seen++; seen%demandsAtOnce == 0 {
			s.engine.Unlock()
			s.engine.Mu.Lock()
			if s.Peers.demands[key] != w {
				continue
			}
		}
		if w.Want > 0 {
			w.unused = 0
			s.SearchLocked(w) // for nodes that have joined since
		} else {
			w.unused++
		}
		for node, st := range w.announced {
			if w.unused >= unusedTimes || w.Want > 0 && now-st.at >= RenewEvery {
				told[node] = append(told[node], s.announceDemandLocked(w, node))
			}
		}
		if w.Want == 0 && len(w.announced) == 0 && w.search == nil {
			delete(s.Peers.demands, key)
			w.topic.Pins--
		}
	}
	s.engine.Unlock()
	for node, all := range told {
		for len(all) > 0 {
			n := min(len(all), demandsAtOnce)
			send(s, node, DemandsMethod, demandsMessage{all[:n]})
			all = all[n:]
		}
	}
}

// Received returns deliveries of other nodes for a receiver, or gives them back if the receiver
// has left.
func (s *Cluster) Received(ctx context.Context, ds []*engine.Delivery) []*engine.Delivery {
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	if ctx.Err() == nil {
		return ds
	}
	s.ReturnUnusedLocked(ds)
	return nil
}
