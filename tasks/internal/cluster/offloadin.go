package cluster

import (
	"context"
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
	key   offloadKey
	topic *engine.Topic
	way   string
	until time.Duration // when it ends unless the backlog is announced again
	over  bool
	took  time.Duration // how long the last deliveries took, on average; 0: not known
	news  chan struct{} // a place may have become free
}

// An offloadKey identifies an offload.
type offloadKey struct{ node, topic string }

const (
	// offloadFor is how long an offload lasts after the last announcement of the backlog. It is
	// longer than any period of the sweep.
	offloadFor = 65 * time.Second
	// An offload that has no room, or finds nothing to take, looks again after so long.
	offloadPause, offloadPauseMax = 20 * time.Millisecond, 500 * time.Millisecond
)

// handleBacklog processes the announcement of another node's backlog.
func (s *Cluster) handleBacklog(_ context.Context, from string, told backlogMessage) (none struct{}, err error) {
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	if s.engine.Ended {
		return none, task.ErrClosed
	}
	named := make(map[string]bool, len(told.Topics))
	for _, b := range told.Topics {
		t := s.engine.TopicTable.ByName[b.Topic]
		if _, ok := s.engine.Config.Resolved[b.Topic]; t == nil && ok {
			t = s.engine.AddTopicLocked(b.Topic)
		}
		if t == nil || t.Deliverer == nil || wayOf(t) != b.Way {
			continue
		}
		named[b.Topic] = true
		key := offloadKey{from, b.Topic}
		h := s.Peers.Offloads[key]
		if h == nil {
			h = &offload{key: key, topic: t, way: b.Way, news: make(chan struct{}, 1)}
			s.Peers.Offloads[key] = h
			t.Offloads++
			s.engine.Life.Handlers.Add(1)
			go s.runOffload(h)
		}
		h.until, h.over = s.engine.Elapsed()+offloadFor, false
		h.notify()
	}
	for key, h := range s.Peers.Offloads {
		if key.node == from && !named[key.topic] {
			h.over = true
			h.notify()
		}
	}
	return none, nil
}

func (h *offload) notify() {
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// runOffload takes tasks of another node as long as there is room for them here.
func (s *Cluster) runOffload(h *offload) {
	defer s.engine.Life.Handlers.Done()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for length := offloadPause; ; {
		s.engine.Mu.Lock()
		s.engine.ReturnStaleLocked(h.topic)
		want, more := s.offloadWantLocked(h)
		if !more {
			delete(s.Peers.Offloads, h.key)
			h.topic.Offloads--
			for _, d := range h.topic.DropOffloadedLocked() { // also if Close has begun
				s.returnLocked(target{node: d.Source.Node}, d.Receipt())
			}
			s.engine.Unlock()
			return
		}
		s.engine.Unlock()
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
	s.engine.Mu.Lock()
	byClock := s.helpsByClockLocked()
	s.engine.Mu.Unlock()
	asked := s.engine.Elapsed()
	a, err := Call(ctx, s, h.key.node, OffloadMethod, offloadQuery{h.topic.Name, h.way, want, byClock})
	cancel()
	s.engine.Mu.Lock()
	defer s.engine.Unlock()
	ds := s.decodeDeliveries(h.key.node, a.Deliveries, asked, h)
	if err != nil || a.Over {
		h.over = true // until the backlog is announced again
	}
	s.Peers.Counts.OffloadedIn += int64(len(ds))
	h.topic.AddOffloadedLocked(ds)
	s.engine.WakeLocked(h.topic)
	return len(ds) > 0
}

// offloadWantLocked returns how many tasks there is room for now. It reports false if the offload
// is to end.
func (s *Cluster) offloadWantLocked(h *offload) (want int, more bool) {
	t := h.topic
	if s.engine.Ended || t.Deliverer == nil || wayOf(t) != h.way {
		return 0, false
	}
	if (h.over || h.until < s.engine.Elapsed()) && t.Offloaded == 0 {
		return 0, false
	}
	if h.over || t.Stopped() || t.Rests() || s.engine.Dispatch.Raised {
		return 0, true
	}
	places := s.engine.Config.MaxDeliveries
	switch {
	case s.helpsLocked():
		if s.engine.Dispatch.Backlog >= max(s.engine.Config.SweepBacklog/2, 1) {
			return 0, true
		}
	case s.engine.Dispatch.Backlog > 0:
		return 0, true
	default:
		places /= 2
	}
	waiting := t.Waiting()
	limit := max(t.Settings.Concurrency, s.engine.Dispatch.RaisedFor(&t.Line))
	want = min(limit-t.Busy, places-s.engine.Dispatch.Workers, task.MaxReserve) + h.ahead(limit) - waiting
	if t.Lacks() {
		want = min(want, 1-waiting) // to see whether there is a receiver again
	}
	return max(0, t.Allowed(want+waiting)-waiting), true
}

// ahead returns how many tasks to have here beyond the free places, so that a worker finds the
// next one at once: none if they would wait for a good part of their lease.
func (h *offload) ahead(limit int) int {
	if h.took == 0 || h.took > h.topic.Settings.Lease/8 {
		return 0
	}
	return limit / 4
}

// endOffloadedLocked ends a delivery that was made for another node.
func (s *Cluster) endOffloadedLocked(d *engine.Delivery, v task.Judgement) {
	h := d.Source.Work.(*offload)
	took := s.engine.Elapsed() - d.Source.Began
	if h.took == 0 {
		h.took = took
	}
	h.took += (took - h.took) / 8
	h.notify()
	if v.Verb == 0 {
		return // its receipt settles it
	}
	told := outcomeOf(d.Receipt(), v.Verdict())
	if !s.settleAdoptedLocked(d.ID, &told) {
		s.forwardLocked(target{node: d.Source.Node}, settlement{told, d.Lease.Until})
	}
}

// settleAdoptedLocked settles a delivery of a task that this node has taken over meanwhile, before
// a worker here delivers it again. It reports false if there is none.
func (s *Cluster) settleAdoptedLocked(id string, told *OffloadOutcome) bool {
	key := []byte(id)
	if _, known := s.engine.Store.FindHashed(s.engine.Store.Hash(key), key); !known {
		return false
	}
	var p engine.Settling
	if p.Receipt, p.Answer.Err = s.engine.Signer.Parse(told.Receipt); p.Answer.Err == nil {
		v := told.verdict()
		s.engine.SettleLocked(&v, &p, nil, 0, nil)
	}
	return p.Answer.Err == nil
}
