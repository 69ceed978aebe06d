package tasks

import (
	"context"
	"time"
)

// A help is what this node does for one topic of a node that has a backlog: it asks for
// as many tasks as it has places for, and its workers deliver them after its own. It ends
// when there is nothing left to help with, or when nothing was heard of the backlog for
// some time.
//
// Who helps: a node whose own backlog is less than half of Config.SweepBacklog, if
// Config.SweepHelper is set. Others help when they are idle: when none of their own tasks waits
// and less than half of their places for deliveries are taken.
type help struct {
	key   helpKey
	topic *topic
	way   string
	until time.Duration // when it ends unless the backlog is heard of again
	over  bool
	took  time.Duration // how long deliveries take, on average of the last ones; 0: not known
	news  chan struct{} // a place may have become free
}

// A helpKey names what is helped with.
type helpKey struct{ node, topic string }

const (
	// helpFor is for how long a node helps after it has heard of a backlog. It is longer
	// than any period of the sweep.
	helpFor = 65 * time.Second
	// A help that has no room, or finds nothing to do, looks again after so long.
	helpPause, helpPauseMax = 20 * time.Millisecond, 500 * time.Millisecond
)

// answerBacklog takes note of another node's backlog.
func (s *Scheduler) answerBacklog(_ context.Context, from string, told backlogTold) (none struct{}, err error) {
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return none, ErrClosed
	}
	named := make(map[string]bool, len(told.Topics))
	for _, b := range told.Topics {
		t := s.topics[b.Topic]
		if _, ok := s.cfg.brought[b.Topic]; t == nil && ok {
			t = s.addTopic(b.Topic)
		}
		if t == nil || t.deliverer == nil || t.way() != b.Way {
			continue
		}
		named[b.Topic] = true
		key := helpKey{from, b.Topic}
		h := s.peers.helps[key]
		if h == nil {
			h = &help{key: key, topic: t, way: b.Way, news: make(chan struct{}, 1)}
			s.peers.helps[key] = h
			t.helps++
			s.handlers.Add(1)
			go s.help(h)
		}
		h.until, h.over = s.elapsed()+helpFor, false
		h.look()
	}
	for key, h := range s.peers.helps {
		if key.node == from && !named[key.topic] {
			h.over = true
			h.look()
		}
	}
	return none, nil
}

func (h *help) look() {
	select {
	case h.news <- struct{}{}:
	default:
	}
}

// help takes tasks of another node as long as there is room for them here.
func (s *Scheduler) help(h *help) {
	defer s.handlers.Done()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for length := helpPause; ; {
		s.mu.Lock()
		s.returnStaleLocked(h.topic)
		want, more := s.helpWantLocked(h)
		if !more {
			delete(s.peers.helps, h.key)
			h.topic.helps--
			left := h.topic.brought
			h.topic.brought = nil
			s.unlock()
			s.returnUnused(left)
			return
		}
		s.unlock()
		asked := want > 0
		if asked && s.helpOnce(h, want) {
			length = helpPause
			continue
		}
		// Room may come with the next delivery that is over, tasks only with time.
		pause.Reset(length)
		news := h.news
		if asked {
			length, news = min(2*length, helpPauseMax), nil
		}
		select {
		case <-news:
		case <-pause.C:
		case <-s.closing:
		}
	}
}

// helpOnce asks for tasks once. It reports whether there were some.
func (s *Scheduler) helpOnce(h *help, want int) bool {
	ctx, cancel := context.WithTimeout(s.ctx, askWithin)
	asked := s.elapsed()
	a, err := ask(ctx, s, h.key.node, helpQuestion, helpAsk{h.topic.name, h.way, want})
	cancel()
	s.mu.Lock()
	defer s.unlock()
	ds := s.decodeDeliveries(h.key.node, a.Deliveries, asked, h)
	if err != nil || a.Over {
		h.over = true // until the backlog is heard of again
	}
	s.peers.counts.helpGiven += int64(len(ds))
	h.topic.brought = append(h.topic.brought, ds...)
	s.wakeLocked(h.topic)
	return len(ds) > 0
}

// helpWantLocked is how many tasks there is room for now. It reports false if the help is
// to end.
func (s *Scheduler) helpWantLocked(h *help) (want int, more bool) {
	t := h.topic
	if s.ended || t.deliverer == nil || t.way() != h.way {
		return 0, false
	}
	if (h.over || h.until < s.elapsed()) && len(t.brought) == 0 {
		return 0, false
	}
	if h.over || t.stopped() || s.sweep.raised {
		return 0, true
	}
	places := s.cfg.MaxDeliveries
	switch {
	case s.cfg.SweepHelper:
		if s.backlog >= max(s.cfg.SweepBacklog/2, 1) {
			return 0, true
		}
	case s.backlog > 0:
		return 0, true
	default:
		places /= 2
	}
	waiting := t.waiting()
	limit := max(t.settings.Concurrency, s.raisedLocked(t))
	want = min(limit-t.busy, places-s.workers, MaxReserve) + h.ahead(limit) - waiting
	return max(0, t.allowed(want+waiting)-waiting), true
}

// ahead is how many tasks to have here beyond those that there are places for, so that a
// worker finds the next one at once: none if they would wait for a good part of their lease.
func (h *help) ahead(limit int) int {
	if h.took == 0 || h.took > h.topic.settings.Lease/8 {
		return 0
	}
	return limit / 4
}

// takeBroughtLocked takes deliveries of other nodes' tasks for a worker.
func (s *Scheduler) takeBroughtLocked(t *topic, places int) []*Delivery {
	if t.stopped() || s.ended {
		return nil
	}
	s.returnStaleLocked(t)
	n := t.allowed(min(places, len(t.brought)))
	ds := t.brought[:n:n]
	for _, d := range ds {
		d.source.began = s.elapsed()
	}
	if t.brought = t.brought[n:]; len(t.brought) == 0 {
		t.brought = nil
	}
	t.spend(n)
	t.busy += n
	if t.later {
		s.pledged += n
	}
	if t.limiter != nil && n > 0 {
		s.wakeLocked(t) // it may have to rest from now on
	}
	return ds
}

// returnStaleLocked gives back what was brought and has waited here for a quarter of its
// lease: the receiver is to have time.
func (s *Scheduler) returnStaleLocked(t *topic) {
	now, n := s.elapsed(), 0
	for n < len(t.brought) && (t.stopped() || t.brought[n].lease.until-now < t.brought[n].source.lease/4*3) {
		n++
	}
	s.returnUnusedLocked(t.brought[:n])
	t.brought = t.brought[n:]
}

// waiting is how many tasks wait for a worker of this process.
func (t *topic) waiting() int { return t.queue.live + len(t.brought) }
