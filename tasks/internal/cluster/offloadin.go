package cluster

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// An offload takes tasks of one topic from a node that has a backlog: it asks for as many as
// there are free places for, and the workers of this node deliver them after its own. It ends
// when there is nothing left to take, or when the backlog was not announced again for some time.
//
// A node that helps by Config.SweepHelper takes tasks if its own backlog is less than half of
// Config.SweepBacklog. Others do when they are idle: when none of their own tasks waits and less
// than half of their places for deliveries are taken.
type offload struct {
	*engine.Offloading
	key  offloadKey
	way  string
	news chan struct{} // a place may have become free

	until atomic.Int64 // when it ends unless the backlog is announced again, on the monotonic clock
	took  atomic.Int64 // how long the last deliveries took, on average, in ns; 0: not known
}

// An offloadKey identifies an offload.
type offloadKey struct{ node, topic string }

// offloads are those of this node for others, and what it has told of its own backlog. Under mu
// neither the engine nor another node is called. An offload that has found nothing more to do ends
// only if it was not announced again meanwhile.
type offloads struct {
	announced atomic.Bool // the other nodes were told of a backlog here

	mu    sync.Mutex // guards everything below
	byKey map[offloadKey]*offload
}

// Len returns how many there are.
func (x *offloads) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.byKey)
}

const (
	// offloadFor is how long an offload lasts after the last announcement of the backlog. It is
	// longer than any period of the sweep.
	offloadFor = 65 * time.Second
	// offloadOver is the end of an offload that is over until the backlog is announced again.
	offloadOver = -1
	// An offload that has no room, or finds nothing to take, looks again after so long.
	offloadPause, offloadPauseMax = 20 * time.Millisecond, 500 * time.Millisecond
)

// handleBacklog processes the announcement of another node's backlog.
func (s *Cluster) handleBacklog(_ context.Context, from string, told backlogMessage) (none struct{}, err error) {
	if s.engine.IsClosing() {
		return none, task.ErrClosed
	}
	now := s.engine.Elapsed()
	for _, b := range s.Peers.Offloads.announce(from, told.Topics, now) {
		s.beginOffload(offloadKey{from, b.Topic}, b.Way, now)
	}
	return none, nil
}

// announce has the offloads for a node go on whose topics it announces, and ends the others. It
// returns the topics without one.
func (x *offloads) announce(node string, topics []engine.BacklogTopic, now time.Duration) (others []engine.BacklogTopic) {
	named := make(map[string]bool, len(topics))
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, b := range topics {
		switch h := x.byKey[offloadKey{node, b.Topic}]; {
		case h == nil:
			others = append(others, b)
		case h.way == b.Way:
			named[b.Topic] = true
			h.until.Store(int64(now + offloadFor))
			h.notify()
		}
	}
	for key, h := range x.byKey {
		if key.node == node && !named[key.topic] {
			h.until.Store(offloadOver)
			h.notify()
		}
	}
	return others
}

// beginOffload begins an offload if workers of this node can deliver the topic, unless another call
// has begun it.
func (s *Cluster) beginOffload(key offloadKey, way string, now time.Duration) {
	o := engine.BeginOffloading(s.engine, key.topic, way)
	if o == nil {
		return
	}
	h := &offload{Offloading: o, key: key, way: way, news: make(chan struct{}, 1)}
	h.until.Store(int64(now + offloadFor))
	x := &s.Peers.Offloads
	x.mu.Lock()
	begins := x.byKey[key] == nil && s.engine.Life.Handle(func() { s.runOffload(h) })
	if begins {
		x.byKey[key] = h
	}
	x.mu.Unlock()
	if !begins {
		s.ReturnUnused(o.End())
	}
}

func (h *offload) notify() {
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// open reports whether more tasks may be taken.
func (h *offload) open(now time.Duration) bool { return time.Duration(h.until.Load()) >= now }

// end forgets an offload that was open or not, unless it was announced again since.
func (x *offloads) end(h *offload, open bool, now time.Duration) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !open && h.open(now) {
		return false
	}
	delete(x.byKey, h.key)
	return true
}

// runOffload takes tasks of another node as long as there is room for them here.
func (s *Cluster) runOffload(h *offload) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for length := offloadPause; ; {
		open := h.open(s.engine.Elapsed())
		want, more := h.Room(open, s.helps(), time.Duration(h.took.Load()))
		if !more && s.Peers.Offloads.end(h, open, s.engine.Elapsed()) {
			for _, d := range h.End() { // also if Close has begun
				s.returnTo(target{node: d.Source.Node}, d.Receipt())
			}
			return
		}
		asked := want > 0
		if asked && s.offloadOnce(h, want) {
			length = offloadPause
			continue
		}
		// Room may come with the end of the next delivery, tasks only with time.
		pause.Reset(length)
		news := h.news
		if asked {
			length, news = min(2*length, offloadPauseMax), nil
		}
		select {
		case <-news:
		case <-pause.C:
		case <-s.engine.Life.Closing:
		}
	}
}

// offloadOnce asks for tasks once. It reports whether it got any.
func (s *Cluster) offloadOnce(h *offload, want int) bool {
	ctx, cancel := context.WithTimeout(s.engine.Life.Context, AskWithin)
	defer cancel()
	asked := s.engine.Elapsed()
	a, err := Call(ctx, s, h.key.node, OffloadMethod, offloadQuery{h.key.topic, h.way, want, s.helpsByClock()})
	if err != nil || a.Over {
		h.until.Store(offloadOver)
	}
	s.Peers.Counts.OffloadedIn.Add(int64(len(a.Deliveries)))
	h.Take(engine.DecodeDeliveries(s.engine, h.key.node, a.Deliveries, asked, h))
	return len(a.Deliveries) > 0
}

// EndOffloadedLocked ends a delivery that was made for another node.
func (s *Cluster) EndOffloadedLocked(d *engine.Delivery, v task.Judgement) {
	h := d.Source.Work.(*offload)
	took := int64(s.engine.Elapsed() - d.Source.Began)
	before := cmp.Or(h.took.Load(), took)
	h.took.Store(before + (took-before)/8)
	h.notify()
	if v.Verb == 0 {
		return // its receipt settles it
	}
	told := outcomeOf(d.Receipt(), v.Verdict())
	if !s.settleAdoptedLocked(d.ID, &told) {
		s.forward(target{node: d.Source.Node}, settlement{told, d.Lease.Until})
	}
}

// settleAdoptedLocked settles a delivery of a task that this node has taken over meanwhile, before
// a worker here delivers it again. It reports false if there is none.
func (s *Cluster) settleAdoptedLocked(id string, told *OffloadOutcome) bool {
	key := []byte(id)
	if _, known := s.engine.Store.FindHashed(s.engine.Store.Hash(key), key); !known {
		return false
	}
	p := s.engine.NewSettling(told.Receipt)
	if p.Answer.Err == nil {
		v := told.verdict()
		s.engine.SettleLocked(&v, &p, nil, 0, nil)
	}
	return p.Answer.Err == nil
}
