package tasks

import (
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/relay"
)

// A guest stands in a topic's queue for the receivers that wait at another node. Its turn
// comes when it has waited longest, as if it waited here; it is served as much as those
// receivers would take together. Then it stands at the end of the queue.
type guest struct {
	turn
	topic  *topic
	key    guestKey
	run    uint32
	serial uint64
	want   int
	until  time.Duration // on the monotonic clock
	served bool          // its turn has come, and somebody sees to it
}

// A guestKey tells guests of a topic apart.
type guestKey struct {
	node  string
	lease time.Duration
}

// offerQuestion offers deliveries that a wish has been waiting for.
var offerQuestion = question[offer, offered]{verb: "offer", writes: true}

type offer struct {
	Run        uint32 // that the wish is of
	Topic      string
	Lease      time.Duration `json:",omitempty"`
	Deliveries []carried
}

type offered struct {
	Back []string // receipts of those that nobody waits for
	Wish wished   // what holds from now on; Serial 0: nothing
}

// answerReserve serves the receivers of another node, or lets them wait as a guest.
func (s *Scheduler) answerReserve(ctx context.Context, from string, ask wished) (fetched, error) {
	if !validName(ask.Topic) || ask.Want < 1 || ask.Want > MaxReserve || ask.Lease != 0 && (ask.Lease < MinLease || ask.Lease > MaxLease) {
		return fetched{}, errNotUnderstood
	}
	s.mu.Lock()
	defer s.unlock()
	answer := fetched{Topic: ask.Topic, Lease: ask.Lease}
	t, err := s.pullableLocked(ask.Topic, false)
	if err == nil {
		answer.Deliveries = s.carry(s.serveLocked(ctx, t, from, ask.Want, ask.Lease))
	}
	if len(answer.Deliveries) == 0 {
		s.hearWishLocked(from, ask)
	}
	return answer, nil
}

// serveLocked begins deliveries for a guest. It may give the lock up meanwhile.
func (s *Scheduler) serveLocked(ctx context.Context, t *topic, node string, want int, lease time.Duration) []*Delivery {
	ctx, cancel := s.within(ctx)
	defer cancel()
	ds := s.beginLocked(ctx, t, want, lease, taker{aGuest, node})
	s.exchange.counts.reservesGiven += int64(len(ds))
	return ds
}

// answerWishes takes note of wishes that stand.
func (s *Scheduler) answerWishes(_ context.Context, from string, told wishesTold) (none struct{}, err error) {
	s.mu.Lock()
	defer s.unlock()
	for _, w := range told.Wishes {
		if validName(w.Topic) {
			s.hearWishLocked(from, w)
		}
	}
	return none, nil
}

// hearWishLocked takes note of what a node says of a wish.
func (s *Scheduler) hearWishLocked(from string, w wished) {
	if s.ended {
		return
	}
	key := guestKey{from, w.Lease}
	var g *guest
	if t := s.topics[w.Topic]; t != nil {
		g = t.guests[key]
	}
	switch {
	case g != nil && g.run == w.Run && w.Serial < g.serial:
		return
	case g == nil && w.Want <= 0:
		return
	case g == nil:
		t, err := s.topicLocked(w.Topic, false)
		if err != nil || !t.pulled() {
			return // it is told again
		}
		g = &guest{topic: t, key: key}
		g.serve = func() { s.serveGuestLocked(g) }
		if t.guests == nil {
			t.guests = make(map[guestKey]*guest)
		}
		t.guests[key] = g
		s.exchange.guests[g] = struct{}{}
	}
	g.run, g.serial, g.want, g.until = w.Run, w.Serial, min(w.Want, MaxReserve), s.elapsed()+guestFor
	switch {
	case g.served: // whoever sees to it goes by what was said last
	case g.want <= 0:
		s.dismissLocked(g)
	case g.place == nil:
		g.topic.reservers.join(&g.turn)
		s.wakeLocked(g.topic)
	}
}

// welcomeLocked tells that a guest may be served.
func (s *Scheduler) welcomeLocked(g *guest) bool {
	return g.want > 0 && g.until > s.elapsed() && g.topic.pulled() && !s.ended
}

// dismissLocked forgets a guest that nobody serves.
func (s *Scheduler) dismissLocked(g *guest) {
	if g.place != nil {
		g.topic.reservers.leave(&g.turn)
	}
	delete(g.topic.guests, g.key)
	delete(s.exchange.guests, g)
}

// dropGuests forgets those whose wishes nobody has renewed.
func (s *Scheduler) dropGuests() {
	s.mu.Lock()
	defer func() { s.unlock() }()
	seen := 0
	for g := range s.exchange.guests {
		if !g.served && !s.welcomeLocked(g) {
			s.dismissLocked(g)
		}
		if seen++; seen%atOnce == 0 {
			s.unlock()
			s.mu.Lock()
		}
	}
}

// serveGuestLocked is called when a guest's turn has come.
func (s *Scheduler) serveGuestLocked(g *guest) {
	g.served = true
	if s.ended {
		return
	}
	s.handlers.Add(1)
	go func() {
		defer s.handlers.Done()
		s.serveGuest(g)
	}()
}

// serveGuest offers the guest's node what is ready.
func (s *Scheduler) serveGuest(g *guest) {
	s.mu.Lock()
	defer s.unlock()
	t := g.topic
	t.reservers.leave(&g.turn)
	var ds []*Delivery
	if s.welcomeLocked(g) {
		ds = s.serveLocked(s.ctx, t, g.key.node, g.want, g.key.lease)
	}
	if len(ds) > 0 {
		s.wakeLocked(t) // for what it has left
		question := offer{g.run, t.name, g.key.lease, s.carry(ds)}
		g.number = 0
		s.unlock()
		ctx, cancel := context.WithTimeout(s.ctx, askWithin)
		a, err := ask(ctx, s, g.key.node, offerQuestion, question)
		cancel()
		s.mu.Lock()
		s.offeredLocked(g, ds, question.Deliveries, a, err)
	}
	g.served = false
	if s.welcomeLocked(g) {
		t.reservers.join(&g.turn)
	} else {
		s.dismissLocked(g)
	}
	s.wakeLocked(t)
}

// offeredLocked is told what has become of an offer.
func (s *Scheduler) offeredLocked(g *guest, ds []*Delivery, carried []carried, a offered, err error) {
	back := make(map[string]bool, len(a.Back))
	for _, receipt := range a.Back {
		back[receipt] = true
	}
	unheard := errors.Is(err, relay.ErrUnheard) || errors.Is(err, relay.ErrOverloaded) || errors.Is(err, errNotUnderstood) || errors.Is(err, ErrClosed)
	var moved []string
	for i, d := range ds {
		if !unheard && !back[carried[i].Receipt] {
			continue
		}
		s.exchange.counts.reservesGiven--
		if !s.takeBackLocked(d) {
			moved = append(moved, carried[i].Receipt)
		}
	}
	s.returnMovedLocked(moved)
	switch {
	case err != nil, a.Wish.Serial == 0:
		g.want = 0 // until it says something again
	case a.Wish.Run == g.run && a.Wish.Serial > g.serial:
		g.serial, g.want, g.until = a.Wish.Serial, min(a.Wish.Want, MaxReserve), s.elapsed()+guestFor
	}
}

// answerOffer takes what this node's receivers have been waiting for.
func (s *Scheduler) answerOffer(ctx context.Context, from string, o offer) (offered, error) {
	sent := s.elapsed()
	if deadline, ok := ctx.Deadline(); ok {
		sent = min(sent, deadline.Sub(s.started)-askWithin)
	}
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return offered{}, ErrClosed
	}
	t := s.topics[o.Topic]
	ds := s.unpack(from, o.Deliveries, sent, nil)
	if o.Run == s.exchange.run {
		ds = s.bringLocked(t, o.Lease, ds)
	}
	var a offered
	if t != nil && t.wishes[o.Lease] != nil && o.Run == s.exchange.run {
		a.Wish = s.sayLocked(t.wishes[o.Lease], from)
	}
	for _, d := range ds {
		a.Back = append(a.Back, d.receipt)
	}
	s.exchange.counts.returned += int64(len(ds))
	return a, nil
}
