package tasks

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// An exchange is what a scheduler has to do with the other nodes on behalf of its own
// receivers and theirs. Guarded by Scheduler.mu.
type exchange struct {
	peers    []*peer       // in order of their names
	listed   time.Duration // when; 0: never
	run      uint32        // random: tells what this process says of its wishes from what earlier ones did
	serial   uint64        // of what this node has said last of a wish
	wishes   map[*wish]struct{}
	guests   map[*guest]struct{}
	helps    map[helpKey]*help
	outboxes map[string]*outbox // by node
	counts   exchangeCounts
}

func newExchange() exchange {
	return exchange{
		run:      rand.Uint32(),
		wishes:   make(map[*wish]struct{}),
		guests:   make(map[*guest]struct{}),
		helps:    make(map[helpKey]*help),
		outboxes: make(map[string]*outbox),
	}
}

// exchangeCounts are what has passed between this node and others since Open.
type exchangeCounts struct {
	reservesGiven, reservesTaken int64
	helpGiven, helpTaken         int64
	returned                     int64
}

// A peer is another node that is alive.
type peer struct {
	name, incarnation string
	deaf              bool          // its version does not know what it would be asked
	rest              time.Duration // until then nobody asks it: it has just failed to answer
}

const (
	// exchangeEvery is how often a node looks after its wishes and its guests.
	exchangeEvery = time.Second
	// askWithin bounds a question for tasks, and the rest of a peer that has not
	// answered one.
	askWithin = time.Second
)

// solitary tells that there are no other nodes. It costs next to nothing.
func (s *Scheduler) solitary() bool { return s.shared == nil || s.shared.ledger.Standing().Alone }

// exchangeLoop looks after what passes between this node and others, until Close.
func (s *Scheduler) exchangeLoop() {
	tick := time.NewTicker(exchangeEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.exchangeOnce()
		case <-s.closing:
			return
		}
	}
}

func (s *Scheduler) exchangeOnce() {
	s.dropGuests()
	s.mu.Lock()
	waiting := len(s.exchange.wishes) > 0
	s.unlock()
	if waiting {
		s.listPeers()
		s.renewWishes()
	}
}

// listPeers lists the other nodes that are alive, as the watch over their heartbeats has seen
// them: Redis is not asked. A process that took another's name knows nothing of what the one
// before was told.
func (s *Scheduler) listPeers() {
	ctx, cancel := s.within(s.ctx)
	defer cancel()
	nodes, err := s.shared.ledger.Peers(ctx)
	s.mu.Lock()
	defer s.unlock()
	x := &s.exchange
	x.listed = s.elapsed()
	if err != nil {
		return // those of before will do
	}
	before := make(map[string]*peer, len(x.peers))
	for _, n := range x.peers {
		before[n.name] = n
	}
	x.peers = x.peers[:0:0]
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
		x.peers = append(x.peers, known)
	}
	slices.SortFunc(x.peers, func(a, b *peer) int { return strings.Compare(a.name, b.name) })
	for name := range before {
		for w := range x.wishes {
			delete(w.asked, name)
		}
	}
}

// tell tells another node something, or all if node is empty. It may get lost.
func tell[Q any](s *Scheduler, node string, v question[Q, struct{}], what Q) {
	body, err := json.Marshal(what)
	if err == nil {
		err = s.shared.relay.Tell(node, v.verb, body)
	}
	if err != nil {
		s.cfg.Log.Debug("something was not told to other nodes", "verb", v.verb, "to", node, "error", err)
	}
}

// late is handed an answer that has come when nobody waited for it any more, to what was
// asked then. What it carries goes where it belongs.
func (s *Scheduler) late(node, verb string, answer []byte, asked time.Time) {
	switch verb {
	case reserveQuestion.verb:
		if a := lateAnswer[fetched](answer); a != nil {
			s.bring(node, a, asked.Sub(s.started))
		}
	case offerQuestion.verb:
		if a := lateAnswer[offered](answer); a != nil {
			if _, err := s.answerReturn(s.ctx, node, returnAsk{a.Back}); err != nil {
				s.returnMoved(a.Back)
			}
		}
	case helpQuestion.verb:
		if a := lateAnswer[helped](answer); a != nil {
			s.mu.Lock()
			defer s.unlock()
			s.giveBackLocked(s.unpack(node, a.Deliveries, asked.Sub(s.started), nil))
		}
	}
}

func lateAnswer[A any](body []byte) *A {
	var r reply[A]
	if json.Unmarshal(body, &r) != nil {
		return nil
	}
	return r.Answer
}
