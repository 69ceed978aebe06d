package respapi

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// stalledAfter is how long a delivery waits for a subscriber that takes nothing.
	stalledAfter = 2 * time.Second
	// takenWithin is how long it waits for all of them at most.
	takenWithin = 20 * time.Second
	// doubtful is for how long, and for how many bytes, a client has perhaps not read what its
	// machine has. More bytes than that do not wait there.
	doubtful      = time.Minute
	doubtfulBytes = 16 << 20
	doseOverhead  = 64 // bytes of memory of a key beside itself
	// doubtedEvery is how often what was perhaps not read is published again.
	doubtedEvery = time.Second
)

// hearings say who was sent the events of a publication.
type hearings map[*subscriber]*hearing

// A hearing is what a subscriber was sent.
type hearing struct {
	end   int64 // for output.taken
	keys  []int // which count as received by it
	taken bool
}

// add notes that a subscriber was sent the event of the i-th key. One that is stalled is not waited
// for.
func (h hearings) add(u *subscriber, i int, receives bool) {
	if u.stalled {
		return
	}
	g := h[u]
	if g == nil {
		g = &hearing{}
		h[u] = g
	}
	if receives {
		g.keys = append(g.keys, i)
	}
}

// receivers returns how many of them count.
func (h hearings) receivers() (n int) {
	for _, g := range h {
		if len(g.keys) > 0 {
			n++
		}
	}
	return n
}

// publishHere publishes expired events to the subscribers of this node. The result says of each
// whether one that counts has taken it. Those that have taken nothing for stalledAfter are stalled:
// they do not count until they have taken what they were sent.
func (s *Server) publishHere(ctx context.Context, topic string, keys []string) (got []bool) {
	got = make([]bool, len(keys))
	heard := make(hearings)
	s.hub.publishEvents(classExpired, topic, expiredEvent, keys, heard)
	alone := heard.receivers() == 1 && s.peers.with(anyReceiver) == nil
	s.awaitTaken(ctx, heard)
	for u, g := range heard {
		if !g.taken || len(g.keys) == 0 {
			continue
		}
		those := make([]string, len(g.keys))
		for n, i := range g.keys {
			got[i], those[n] = true, keys[i]
		}
		if alone {
			s.counts.lost.Add(s.hub.addDose(&dose{by: u, at: time.Now(), topic: topic, keys: those}))
		}
	}
	return got
}

// awaitTaken waits until all have taken what they were sent that are not stalled.
func (s *Server) awaitTaken(ctx context.Context, heard hearings) {
	ctx, cancel := within(ctx, takenWithin)
	defer cancel()
	var group sync.WaitGroup
	for u, g := range heard {
		await := func() {
			g.taken = u.out.taken(ctx, g.end, stalledAfter)
			if !g.taken && ctx.Err() == nil {
				s.stall(u)
			}
		}
		if len(heard) == 1 {
			await()
		} else {
			group.Go(await)
		}
	}
	group.Wait()
}

// within bounds how long a delivery waits. It leaves a quarter of the lease for its answer.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok {
		d = min(d, time.Until(end)*3/4)
	}
	return context.WithTimeout(ctx, d)
}

// stall has a subscriber count no more until it has taken what it was sent.
func (s *Server) stall(u *subscriber) {
	end, changed := s.hub.setStalled(u, true)
	if !changed {
		return
	}
	s.background(func() {
		if u.out.taken(s.ending, end, 0) {
			s.hub.setStalled(u, false)
		}
	})
}

// setStalled says whether a subscriber is stalled. end is that of what it was sent.
func (h *hub) setStalled(u *subscriber, stalled bool) (end int64, changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, there := h.subscribers[u]; stalled && !there {
		return 0, false // part has said what is doubted
	}
	changed = u.stalled != stalled
	h.setLocked(u, func() { u.stalled = stalled })
	h.reviewLocked()
	return u.end, changed
}

// A dose is what a subscriber has taken that was the only one to hear of it. If the subscriber has
// perhaps not read it, it is published again.
type dose struct {
	by    *subscriber
	at    time.Time
	topic string
	keys  []string
}

// doubted reports whether the subscriber has perhaps not read the dose.
func (d *dose) doubted() bool { return d.by.stalled || d.by.unread }

// bytes returns how much memory a dose takes up, about.
func (d *dose) bytes() (n int) {
	for _, key := range d.keys {
		n += doseOverhead + len(key)
	}
	return n
}

// addDose keeps a dose as long as it is not known whether it was read. It returns how many events
// it gives up for that.
func (h *hub) addDose(d *dose) (lost int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doses, h.doseBytes = append(h.doses, d), h.doseBytes+d.bytes()
	for n := len(h.doses); n > 0; n-- {
		first := h.doses[0]
		switch {
		case h.doseBytes > doubtfulBytes && first.doubted():
			lost += int64(len(first.keys))
		case h.doseBytes > doubtfulBytes:
		case first.doubted() || d.at.Sub(first.at) < doubtful:
			return lost
		}
		h.dropLocked(0)
	}
	return lost
}

// dropLocked drops a dose.
func (h *hub) dropLocked(i int) {
	h.doseBytes -= h.doses[i].bytes()
	h.doses = slices.Delete(h.doses, i, i+1)
}

// doubted returns how many events are to be published again.
func (h *hub) doubted() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.doses {
		if d.doubted() {
			n += len(d.keys)
		}
	}
	return n
}

// part notes that a subscriber has ended and perhaps not read what it took. It returns how many
// events are doubted for that.
func (h *hub) part(u *subscriber) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	u.unread = true
	for _, d := range h.doses {
		if d.by == u {
			n += len(d.keys)
		}
	}
	return n
}

// takeDoubted returns a dose that is doubted, and drops it; nil: there is none.
func (h *hub) takeDoubted() *dose {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.IndexFunc(h.doses, (*dose).doubted)
	if i < 0 {
		return nil
	}
	d := h.doses[i]
	h.dropLocked(i)
	return d
}

// publishDoubted publishes the doses again that are doubted, once another subscriber counts.
func (s *Server) publishDoubted() {
	ticker := time.NewTicker(doubtedEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.publishDoses()
		case <-s.ending.Done():
			if n := s.hub.doubted(); n > 0 {
				s.log.Warn("a subscriber has perhaps not read its last events, and they are not published again: the server ends", "events", n)
			}
			return
		}
	}
}

func (s *Server) publishDoses() {
	for s.wanted()&anyReceiver != 0 {
		d := s.hub.takeDoubted()
		if d == nil {
			return
		}
		got := s.publishExpired(s.ending, d.topic, d.keys)
		var rest []string
		for i, key := range d.keys {
			if !got[i] {
				rest = append(rest, key)
			}
		}
		s.counts.again.Add(int64(len(d.keys) - len(rest)))
		if d.keys = rest; len(rest) > 0 {
			s.counts.lost.Add(s.hub.addDose(d))
			return
		}
	}
}
