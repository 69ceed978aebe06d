package tasks

import (
	"context"
	"errors"
	"sync"
	"time"
)

// A receiver that finds nothing ready here waits, and what it waits for may become ready
// at any node. So a topic's receivers have one wish together (for each length of lease
// that they ask for), which is made known to the other nodes:
//
//   - First they are asked, one after another and then more at a time, whether they have
//     something ready, until there is enough: so that receivers with little to do do not
//     have every node send them something.
//   - A node that has nothing keeps the wish: there it is a guest, which stands in the
//     topic's queue of receivers like one that waits at that node. When something is ready
//     and it is the guest's turn, the node offers it to this one, which gives it to those
//     who have waited longest, and gives back what nobody waits for any more.
//   - A wish that stands is renewed every few seconds, all of a node's wishes in one
//     message. Nothing else is sent while nothing is ready, however many receivers wait.
//
// A wish is forgotten where it is not renewed; lost messages cost time, and at worst a
// task is ready again when its lease is over.
type wish struct {
	topic  *topic
	lease  time.Duration
	demand int // tasks that those who sleep would take
	asked  map[string]standing
	last   string        // the node that was asked last
	search chan struct{} // closed when the search that runs is over; nil if none does
	unused int           // how many times in a row nobody was found waiting
}

// standing is what a node knows of a wish.
type standing struct {
	serial uint64
	at     time.Duration // when it was told
}

const (
	renewEvery = 5 * time.Second
	// guestFor is how long a wish stands that is not renewed.
	guestFor = 3 * renewEvery
	// A wish that nobody has had so many times in a row is taken back.
	unusedTimes = 2
	// So many wishes go in one message.
	wishesAtOnce = 500
)

// reserveQuestion asks for ready tasks. If there are none, the wish stands.
var reserveQuestion = question[wished, fetched]{verb: "reserve", writes: true}

// wishesQuestion tells of wishes that stand; Want 0 takes one back.
var wishesQuestion = question[wishesTold, struct{}]{verb: "wishes"}

// A wished is what a node says of a wish. What it said earlier, with a lower serial, does
// not count any more.
type wished struct {
	Run    uint32 // of the process, whose serials these are
	Serial uint64
	Topic  string
	Lease  time.Duration `json:",omitempty"` // 0: the topic's
	Want   int
}

type wishesTold struct{ Wishes []wished }

type fetched struct {
	Topic      string
	Lease      time.Duration `json:",omitempty"`
	Deliveries []carried     `json:",omitempty"`
}

// wishLocked returns the wish that a topic's receivers have together.
func (s *Scheduler) wishLocked(t *topic, lease time.Duration) *wish {
	w := t.wishes[lease]
	if w == nil {
		w = &wish{topic: t, lease: lease, asked: make(map[string]standing)}
		if t.wishes == nil {
			t.wishes = make(map[time.Duration]*wish)
		}
		t.wishes[lease] = w
		s.exchange.wishes[w] = struct{}{}
	}
	return w
}

// sayLocked makes what a node is told of a wish.
func (s *Scheduler) sayLocked(w *wish, node string) wished {
	s.exchange.serial++
	said := wished{s.exchange.run, s.exchange.serial, w.topic.name, w.lease, min(w.demand, MaxReserve)}
	if said.Want > 0 {
		w.asked[node] = standing{said.Serial, s.elapsed()}
	} else {
		delete(w.asked, node)
	}
	return said
}

// searchLocked sees to it that all nodes know of a wish. It returns what is closed when
// those that did not have answered; nil if all do.
func (s *Scheduler) searchLocked(w *wish) <-chan struct{} {
	switch {
	case w.search != nil:
		return w.search
	case w.demand == 0 || s.ended || w.topic.stopped():
		return nil
	}
	listed := s.exchange.listed
	if listed != 0 && s.elapsed()-listed < exchangeEvery && s.unaskedLocked(w, 1) == nil {
		return nil
	}
	w.search = make(chan struct{})
	s.background.Go(func() { s.search(w, listed == 0 || s.elapsed()-listed >= exchangeEvery) })
	return w.search
}

func (s *Scheduler) search(w *wish, list bool) {
	if list {
		s.listPeers()
	}
	for width := 1; ; width *= 2 {
		s.mu.Lock()
		next := s.unaskedLocked(w, width)
		if len(next) == 0 || w.demand == 0 || s.ended {
			close(w.search)
			w.search = nil
			s.unlock()
			return
		}
		w.last = next[len(next)-1].name
		var all sync.WaitGroup
		for _, n := range next {
			said := s.sayLocked(w, n.name)
			all.Go(func() { s.askFor(w, n, said) })
		}
		s.unlock()
		all.Wait()
	}
}

// unaskedLocked returns up to limit nodes that should know of a wish and do not, those
// after the one that was asked last.
func (s *Scheduler) unaskedLocked(w *wish, limit int) (next []*peer) {
	all, now := s.exchange.peers, s.elapsed()
	first := 0
	for first < len(all) && all[first].name <= w.last {
		first++
	}
	for i := range all {
		n := all[(first+i)%len(all)]
		if _, knows := w.asked[n.name]; knows || n.deaf || n.rest > now {
			continue
		}
		if next = append(next, n); len(next) == limit {
			break
		}
	}
	return next
}

// askFor asks one node for tasks.
func (s *Scheduler) askFor(w *wish, n *peer, said wished) {
	ctx, cancel := context.WithTimeout(s.ctx, askWithin)
	defer cancel()
	asked := s.elapsed()
	a, err := ask(ctx, s, n.name, reserveQuestion, said)
	if err == nil && len(a.Deliveries) > 0 {
		s.bring(n.name, &a, asked)
	}
	s.mu.Lock()
	defer s.unlock()
	switch {
	case errors.Is(err, errNotUnderstood):
		n.deaf = true
	case err != nil:
		n.rest = s.elapsed() + askWithin
	case len(a.Deliveries) == 0:
		return // it stands there
	}
	if w.asked[n.name].serial == said.Serial {
		delete(w.asked, n.name)
	}
}

// bring gives deliveries that a node was asked for at some time to those who wait, and the
// others back.
func (s *Scheduler) bring(from string, a *fetched, asked time.Duration) {
	s.mu.Lock()
	defer s.unlock()
	s.giveBackLocked(s.bringLocked(s.topics[a.Topic], a.Lease, s.unpack(from, a.Deliveries, asked, nil)))
}

// bringLocked gives deliveries of another node to those who wait, who have waited longest
// first, and returns those that nobody waits for, or whose leases are over.
func (s *Scheduler) bringLocked(t *topic, lease time.Duration, ds []*Delivery) (left []*Delivery) {
	if t == nil || t.wishes[lease] == nil || s.ended {
		return ds
	}
	w := t.wishes[lease]
	ds, left = s.leased(ds)
	for e := t.reservers.queue.Front(); e != nil && len(ds) > 0; {
		p := e.Value.(*turn)
		e = e.Next()
		if p.wish == w {
			n := min(p.limit, len(ds))
			s.exchange.counts.reservesTaken += int64(n)
			t.reservers.bring(p, ds[:n:n])
			ds = ds[n:]
		}
	}
	return append(left, ds...)
}

// renewWishes tells the other nodes which wishes still stand.
func (s *Scheduler) renewWishes() {
	told := make(map[string][]wished)
	s.mu.Lock()
	now, seen := s.elapsed(), 0
	for w := range s.exchange.wishes {
		if seen++; seen%wishesAtOnce == 0 {
			s.unlock()
			s.mu.Lock()
			if _, stands := s.exchange.wishes[w]; !stands {
				continue
			}
		}
		if w.demand > 0 {
			w.unused = 0
			s.searchLocked(w) // nodes that have come since
		} else {
			w.unused++
		}
		for node, st := range w.asked {
			if w.unused >= unusedTimes || w.demand > 0 && now-st.at >= renewEvery {
				told[node] = append(told[node], s.sayLocked(w, node))
			}
		}
		if w.demand == 0 && len(w.asked) == 0 && w.search == nil {
			delete(w.topic.wishes, w.lease)
			delete(s.exchange.wishes, w)
		}
	}
	s.unlock()
	for node, all := range told {
		for len(all) > 0 {
			n := min(len(all), wishesAtOnce)
			tell(s, node, wishesQuestion, wishesTold{all[:n]})
			all = all[n:]
		}
	}
}
