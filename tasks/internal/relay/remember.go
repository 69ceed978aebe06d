package relay

import (
	"slices"
	"time"
)

// sweepEvery is the time between two sweeps of what may be forgotten.
const sweepEvery = time.Second

// For how long a silent peer is remembered. A call that comes even later than that might be
// executed again.
const (
	peerTime     = time.Hour
	peerTimeMany = 2 * MaxTime // if there are more than manyPeers
	manyPeers    = 4096
)

// A peer is another process that has sent something.
type peer struct {
	process
	remembered map[uint64]*remembered // by the calls' ids
	seen       uint64                 // when, on our clock

	// The difference between our clock and the peer's stamp: of the last message, the least of
	// this period, which began then, and of the period before. delay is by how much the last
	// difference exceeds the least: the message was in flight for so much longer than the quickest.
	difference, least, before int64
	began                     uint64
	delay                     uint64

	inbox   []Call // notifications that wait for their turn, see Config.InOrder
	unread  int    // how many there are, with those that were taken out and are not answered yet
	bytes   int    // of their bodies
	reading bool   // a goroutine answers them
}

// clockPeriod bounds for how long the quickest message serves as a measure of later ones: clocks
// drift, and that of a machine that is being moved stands still for a second or two.
const clockPeriod = uint64(time.Minute / time.Millisecond)

// peerLocked returns the sender of a message that has just come.
func (r *Relay) peerLocked(h header) *peer {
	now := r.clock()
	difference := int64(now) - int64(h.sent)
	p := r.peers[h.process]
	if p == nil {
		p = &peer{process: h.process, remembered: map[uint64]*remembered{}, least: difference, before: difference, began: now}
		r.peers[h.process] = p
	}
	p.seen, p.difference = now, difference
	if now-p.began > clockPeriod {
		p.before, p.least, p.began = p.least, difference, now
	}
	p.least = min(p.least, difference)
	p.delay = uint64(difference - min(p.before, p.least))
	return p
}

// believe treats the last message as one without a delay.
func (p *peer) believe() { p.least, p.before, p.delay = p.difference, p.difference, 0 }

func (p *peer) withdrawn(id uint64) {
	if h := p.remembered[id]; h != nil && h.status == working && h.withdraw != nil {
		h.withdraw()
	}
}

// rememberLocked remembers a call until its last copy must have come, or returns nil if it
// cannot.
func (r *Relay) rememberLocked(p *peer, q *call, now uint64) *remembered {
	if r.stats.Remembered >= r.cfg.MaxRemembered {
		return nil
	}
	h := &remembered{peer: p, id: q.id, status: working}
	p.remembered[q.id] = h
	r.stats.Remembered++
	second := int64((now+q.ttl)/1000) + 2
	r.due[second] = append(r.due[second], h)
	return h
}

// keepLocked keeps an answer, and drops the oldest ones beyond the bound.
func (r *Relay) keepLocked(h *remembered) {
	if len(h.answer) == 0 {
		return
	}
	r.answers = append(r.answers, h)
	r.stats.RememberedBytes += len(h.answer)
	dropped := 0
	for _, old := range r.answers {
		if r.stats.RememberedBytes <= r.cfg.MaxBytes {
			break
		}
		if !old.gone {
			r.stats.RememberedBytes -= len(old.answer)
			old.status, old.answer, old.gone = lost, nil, true
		}
		dropped++
	}
	r.answers = slices.Delete(r.answers, 0, dropped)
}

func (r *Relay) sweep() {
	defer close(r.swept)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-r.life.Done():
			return
		case <-tick.C:
			r.sweepOnce()
		}
	}
}

// sweepOnce forgets calls that can have no more copies.
func (r *Relay) sweepOnce() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.clock()
	second := int64(now / 1000)
	for s, all := range r.due {
		if s > second {
			continue
		}
		delete(r.due, s)
		for _, h := range all {
			if h.status == working {
				r.due[second+1] = append(r.due[second+1], h)
				continue
			}
			r.forgetLocked(h)
		}
	}
	r.answers = slices.DeleteFunc(r.answers, func(h *remembered) bool { return h.gone })
	for id, a := range r.abandoned {
		if a.until <= now {
			delete(r.abandoned, id)
		}
	}
	idle := peerTime
	if len(r.peers) > manyPeers {
		idle = peerTimeMany
	}
	for process, p := range r.peers {
		if len(p.remembered) == 0 && now-p.seen > uint64(idle.Milliseconds()) {
			delete(r.peers, process)
		}
	}
}

func (r *Relay) forgetLocked(h *remembered) {
	delete(h.peer.remembered, h.id)
	r.stats.Remembered--
	if !h.gone {
		r.stats.RememberedBytes -= len(h.answer)
		h.answer, h.gone = nil, true
	}
}
