package respapi

import (
	"context"
	"slices"
	"time"
)

const (
	// takenWithin is how long a delivery waits for its receivers at most.
	takenWithin = 20 * time.Second
	// aheadBytes is how many bytes a receiver may not have confirmed when it is sent more. So what
	// is sent to a slow one is not far ahead of it.
	aheadBytes = 64 << 10
	// leastPause and mostPause are between two looks at how far receivers have got.
	leastPause, mostPause = time.Millisecond, 20 * time.Millisecond
	// stalledPause is between two looks at a receiver that takes nothing.
	stalledPause = 200 * time.Millisecond
	// doubtedEvery is how often what was perhaps not read is published again.
	doubtedEvery = time.Second
	// doseWithin bounds one attempt. After mostUnheard without a receiver there is a pause.
	doseWithin  = 4 * time.Second
	mostUnheard = 100
)

// hearings say which receivers were sent the events of a publication. Its methods but those of the
// server are called under the mutex of the hub; those for nil send everything.
type hearings struct {
	by    classes // eventReceiver or keyReceiver: which ones count; 0: there are none
	full  bool    // they have no room
	stuck []*subscriber
	of    map[*subscriber]*hearing
	order []*subscriber // those of of
}

// A hearing is what a receiver was sent.
type hearing struct {
	end   int64 // for output.state
	keys  []int // by keyReceiver: which ones; an eventReceiver gets all
	gone  bool  // it had left before it took them
	stuck bool  // it has not taken them for stuckAfter
}

// begin finds out who counts: receivers of the event, and without any those of channels of keys. It
// reports false if there are none, or they have no room: of receivers of the event the fastest sets
// the pace, of the others, each of which has its own keys, the slowest.
func (hs *hearings) begin(topic string, listeners, ofKeys []*entry) bool {
	hs.of = make(map[*subscriber]*hearing)
	for _, class := range []classes{eventReceiver, keyReceiver} {
		entries := listeners
		if hs.by = class; class == keyReceiver {
			entries = ofKeys
		}
		if hs.look(topic, entries) {
			return !hs.full
		}
	}
	hs.by = 0
	return false
}

// look looks for receivers among the subscribers of entries, and whether they have room.
func (hs *hearings) look(topic string, entries []*entry) (any bool) {
	var seen map[*subscriber]bool // it is made for the second one
	room, full := false, false
	for _, e := range entries {
		for _, u := range e.all {
			if seen[u] || e.want.receives != hs.by || u.receives() != hs.by || !u.hears(topic) {
				continue
			}
			any = true
			switch s := u.out.state(); {
			case s.stuck:
				hs.stuck = append(hs.stuck, u)
			case s.ahead >= aheadBytes:
				full = true
			case hs.by == eventReceiver:
				hs.full = false
				return true
			default:
				room = true
			}
			if seen == nil {
				seen = make(map[*subscriber]bool)
			}
			seen[u] = true
		}
	}
	hs.full = full || !room
	return any
}

// wants reports whether there is a receiver of a key. patterns and channel are the entries that
// hear of it on its own channel; channel may be nil.
func (hs *hearings) wants(topic string, patterns []*entry, channel *entry) bool {
	if hs == nil || hs.by == eventReceiver {
		return true
	}
	receives := func(u *subscriber) bool { return u.receives() == keyReceiver && u.hears(topic) }
	return channel != nil && slices.ContainsFunc(channel.all, receives) ||
		slices.ContainsFunc(patterns, func(e *entry) bool {
			return e.want.receives == keyReceiver && slices.ContainsFunc(e.all, receives)
		})
}

// add notes that a subscriber was sent the event of the i-th key.
func (hs *hearings) add(u *subscriber, i int) {
	if u.receives() != hs.by {
		return
	}
	g := hs.of[u]
	if g == nil {
		g = &hearing{}
		hs.of[u] = g
		hs.order = append(hs.order, u)
	}
	if hs.by == keyReceiver {
		g.keys = append(g.keys, i)
	}
}

// end notes how far each one has got when it has everything.
func (hs *hearings) end() {
	if hs != nil {
		for u, g := range hs.of {
			g.end, g.gone = u.end, u.gone
		}
	}
}

// publishHere publishes expired events to the subscribers of this node, as soon as a receiver of
// the topic has room for them. The result says of each whether a receiver has taken it. One that is
// slow has taken what it was sent, too: what it has not read when it ends is published again. If
// another node has a receiver of the event, that one is relied upon. elsewhere: another node
// perhaps has receivers, whose events monitors of this node hear as well. open: a receiver that has
// no room, stands still or has left meanwhile may want what was not taken.
func (s *Server) publishHere(ctx context.Context, topic string, keys []string, elsewhere bool) (got []bool, open bool) {
	got = make([]bool, len(keys))
	ctx, cancel := within(ctx, takenWithin)
	defer cancel()
	var heard hearings
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		heard = hearings{}
		s.hub.publishEvents(classExpired, topic, expiredEvent, keys, &heard)
		for _, u := range heard.stuck {
			s.stall(u)
		}
		switch {
		case heard.by == 0 && elsewhere: // monitors hear what receivers there get
			s.hub.publishEvents(classExpired, topic, expiredEvent, keys, nil)
			return got, false
		case heard.by == 0:
			return got, false
		}
		if !heard.full {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return got, true
		}
	}
	s.awaitTaken(ctx, &heard)
	s.keep(heard.settled(topic, keys, got))
	for _, g := range heard.of {
		open = open || g.gone || g.stuck
	}
	return got, open
}

// settled says which events receivers have taken. The doses are what is kept of these until it is
// known that they were read: what came on the channel of the event until one of all its receivers
// has read it, what came on channels of keys for each receiver. Nothing is settled by a receiver
// that is stuck: what it was sent is delivered again.
func (hs *hearings) settled(topic string, keys []string, got []bool) (all []*dose) {
	var by []*subscriber
	took := false
	for _, u := range hs.order {
		g := hs.of[u]
		if g.gone {
			continue
		}
		by = append(by, u)
		took = took || !g.stuck
		if hs.by == eventReceiver || g.stuck {
			continue
		}
		var its []string
		for _, i := range g.keys {
			its, got[i] = append(its, keys[i]), true
		}
		all = append(all, &dose{by: []*subscriber{u}, topic: topic, keys: its})
	}
	if hs.by == eventReceiver && took {
		for i := range got {
			got[i] = true
		}
		all = append(all, &dose{by: by, topic: topic, keys: keys})
	}
	return all
}

// keep keeps doses in case they were not read.
func (s *Server) keep(all []*dose) {
	h, others := s.hub, s.othersReceive()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range all {
		d.others = others
		s.counts.lost.Add(h.doses.add(d, time.Now()))
	}
}

// awaitTaken waits until a receiver has taken what it was sent. With channels of keys it waits for
// all. Those that take nothing are stalled. One that reads and has not taken all in takenWithin is
// not waited for any longer: it would never be done.
func (s *Server) awaitTaken(ctx context.Context, heard *hearings) {
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		waiting := 0
		var room <-chan struct{}
		for u, g := range heard.of {
			at := u.out.state()
			taken := at.taken >= g.end
			g.stuck = at.stuck && !taken
			switch {
			case g.gone:
			case taken && heard.by == eventReceiver:
				return
			case taken:
			case at.gone:
				g.gone = true
			case at.stuck:
				s.stall(u)
			default:
				room = u.out.progress()
				waiting++
			}
		}
		if waiting == 0 {
			return
		}
		select {
		case <-room:
		case <-time.After(pause): // no one tells what the client's machine has
		case <-ctx.Done():
			return
		}
	}
}

// within bounds how long a delivery waits. It leaves a quarter of the lease for its answer.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)*3/4)
	}
	return context.WithTimeout(ctx, d)
}

// stall has a subscriber be no receiver until it has taken what it was sent. What it has taken is
// in doubt meanwhile.
func (s *Server) stall(u *subscriber) {
	end, changed := s.setStalled(u, true)
	if !changed {
		return
	}
	s.background(func() {
		ticker := time.NewTicker(stalledPause)
		defer ticker.Stop()
		for at := u.out.state(); at.gone || at.taken < end; at = u.out.state() {
			if at.gone { // part says what is doubted
				return
			}
			select {
			case <-ticker.C:
			case <-s.ending.Done():
				return
			}
		}
		s.setStalled(u, false)
	})
}

// setStalled says whether a subscriber is stalled. end is that of what it was sent.
func (s *Server) setStalled(u *subscriber, stalled bool) (end int64, changed bool) {
	h, others := s.hub, s.othersReceive()
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, there := h.subscribers[u]; stalled && !there {
		return 0, false // part has said what is doubted
	}
	changed = u.stalled != stalled
	h.setLocked(u, func() { u.stalled = stalled })
	h.reviewLocked()
	if stalled {
		s.doubtLocked(others)
	} else {
		h.doses.trust(u)
		h.cameLocked()
	}
	return u.end, changed
}

// doubt has events published again that a subscriber has perhaps not read, which has ended. It
// returns how many they are.
func (s *Server) doubt(u *subscriber) (n int) {
	h, others := s.hub, s.othersReceive()
	h.mu.Lock()
	defer h.mu.Unlock()
	u.unread = true
	return s.doubtLocked(others)
}

// doubtLocked has events published again that are doubted now, and returns how many they are.
func (s *Server) doubtLocked(others bool) (n int) {
	n, lost := s.hub.doses.doubt(time.Now(), others)
	s.counts.lost.Add(lost)
	return n
}

// doubtRelied has events published again that were left to receivers of other nodes, once these
// have gone.
func (s *Server) doubtRelied() {
	h, others := s.hub, s.othersReceive()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.doses.relied || others {
		return
	}
	if n := s.doubtLocked(others); n > 0 {
		s.log.Warn("subscribers have perhaps not read their last events, nor have those of other nodes: they are published again", "events", n)
	}
}

// othersReceive reports whether other nodes have receivers of the event.
func (s *Server) othersReceive() bool { return s.peers.with(eventReceiver) != nil }

// publishDoubted publishes events again that were perhaps not read, once there is a receiver. Those
// without one go behind the others.
func (s *Server) publishDoubted() {
	ticker := time.NewTicker(doubtedEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.doubtRelied()
			for unheard := 0; unheard < mostUnheard && s.wanted()&anyReceiver != 0; {
				any, heard := s.publishDose()
				if !any {
					break
				}
				if !heard {
					unheard++
				}
			}
		case <-s.ending.Done():
			return
		}
	}
}

// publishDose publishes one dose again, if there is any. It reports whether there was a receiver of
// all of it.
func (s *Server) publishDose() (any, heard bool) {
	h := s.hub
	h.mu.Lock()
	d := h.doses.doubted.pop()
	h.mu.Unlock()
	if d == nil {
		return false, false
	}
	ctx, cancel := context.WithTimeout(s.ending, doseWithin)
	defer cancel()
	got, _ := s.publishExpired(ctx, d.topic, d.keys)
	var rest []string
	for i, key := range d.keys {
		if !got[i] {
			rest = append(rest, key)
		}
	}
	s.counts.again.Add(int64(len(d.keys) - len(rest)))
	if len(rest) == 0 {
		return true, true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.counts.lost.Add(h.doses.doubted.push(&dose{by: d.by, topic: d.topic, keys: rest}))
	return true, false
}

// tellUnpublished logs how many events are not published again, since the server ends.
func (s *Server) tellUnpublished() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if n := s.hub.doses.doubted.events; n > 0 {
		s.log.Warn("subscribers have perhaps not read their last events, and these are not published again: the server ends", "events", n)
	}
}
