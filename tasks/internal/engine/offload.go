package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/ranking"
	"github.com/lapsehq/lapse/tasks/task"
)

// Way returns a function that names how a topic's tasks are delivered: a node with the same name
// can deliver them. The name is empty if there is no receiver. The function needs no lock.
func (t *Topic) Way() func() string {
	kind, byKind, delivery := string(t.Kind()), t.Handler != nil, t.Settings.Delivery
	if t.Deliverer == nil {
		kind, byKind = "", true
	}
	return func() string {
		if byKind {
			return kind
		}
		sum := sha256.Sum256(bytes.TrimSpace(delivery))
		return kind + "/" + hex.EncodeToString(sum[:8])
	}
}

// A BacklogTopic is one of which other nodes may deliver a part.
type BacklogTopic struct {
	Topic string
	Way   string // see Topic.Way
	Ready int
}

// BacklogTopics returns so many topics that are announced during a backlog: those with ready tasks,
// and those whose workers are busy. The latter may just have taken all that was ready, and an
// offload ends when its topic is not announced.
func BacklogTopics(s *Engine, limit int) (most []BacklogTopic) {
	type candidate struct {
		BacklogTopic
		way func() string
	}
	all := ranking.Smallest[candidate]{Limit: limit, Compare: func(a, b candidate) int { return b.Ready - a.Ready }}
	s.EachTopic(func(t *Topic) {
		if ready := t.Takeable(); t.Pushed && (ready > 0 || t.Busy > 0) {
			all.Add(candidate{BacklogTopic{Topic: t.Name, Ready: ready}, t.Way()})
		}
	})
	for _, c := range all.Sorted() {
		c.Way = c.way()
		most = append(most, c.BacklogTopic)
	}
	return most
}

// PullOff hands ready tasks of a topic to the workers of another node, which deliver it in a way.
// It reports false if this node has no backlog, unless the node helps always, or if it does not
// have that topic delivered in that way.
func (s *Engine) PullOff(ctx context.Context, node, topic, way string, always bool, limit int) ([]*Delivery, bool) {
	s.mu.Lock()
	t := s.TopicTable.ByName[topic]
	gives := (s.Dispatch.Raised || always) && t != nil && t.Pushed && t.Way()() == way && !s.Ended
	s.unlock()
	if !gives {
		return nil, false
	}
	ctx, cancel := s.Within(ctx)
	defer cancel()
	return s.run(ctx, &beginning{topic: t, by: dispatch.ByRemoteWorker(node), limit: limit}), true
}

// An Offloading has the workers of this node deliver tasks of a topic for another one, after their
// own. It takes the lock itself.
type Offloading struct {
	engine *Engine
	topic  *Topic
	way    string
}

// BeginOffloading returns nil if this node does not deliver a topic in a way.
func BeginOffloading(s *Engine, topic, way string) *Offloading {
	s.mu.Lock()
	defer s.unlock()
	t := s.TopicTable.ByName[topic]
	if _, ok := s.Config.Resolved[topic]; t == nil && ok {
		t = s.AddTopicLocked(topic)
	}
	o := &Offloading{s, t, way}
	if t == nil || !o.deliversLocked() {
		return nil
	}
	t.Offloads++
	return o
}

func (o *Offloading) deliversLocked() bool {
	return !o.engine.Ended && o.topic.Deliverer != nil && o.topic.Way()() == o.way
}

// Room returns how many more tasks there is room for. A node that helps takes them if its own
// backlog is less than half of Config.SweepBacklog, another one if it is idle. took is how long a
// delivery takes; 0: not known. Room reports whether any tasks are left to deliver, or more may
// come: not if the workers do not deliver the topic in that way any more.
func (o *Offloading) Room(open, helps bool, took time.Duration) (want int, more bool) {
	s, t := o.engine, o.topic
	s.mu.Lock()
	defer s.unlock()
	s.returnStaleLocked(t)
	if !o.deliversLocked() || !open && t.Offloaded == 0 {
		return 0, false
	}
	if !open || t.Stopped() || t.Rests() || s.Dispatch.Raised {
		return 0, true
	}
	places := s.Config.MaxDeliveries
	switch {
	case helps:
		if s.Dispatch.Backlog >= max(s.Config.SweepBacklog/2, 1) {
			return 0, true
		}
	case s.Dispatch.Backlog > 0:
		return 0, true
	default:
		places /= 2
	}
	waiting := t.Waiting()
	limit := max(t.Settings.Concurrency, s.Dispatch.RaisedFor(&t.Line))
	want = min(limit-t.Busy, places-s.Dispatch.Workers, task.MaxReserve) - waiting
	if took != 0 && took <= t.Settings.Lease/8 {
		want += limit / 4 // ahead, so that a worker finds the next one at once: not for long
	}
	if t.Lacks() {
		want = min(want, 1-waiting) // to see whether there is a receiver again
	}
	return max(0, t.Allowed(want+waiting)-waiting), true
}

// Take gives the workers deliveries of tasks of the other node.
func (o *Offloading) Take(ds []*Delivery) {
	o.engine.mu.Lock()
	defer o.engine.unlock()
	o.topic.keepOffloaded(append(o.topic.offloaded, ds...))
	o.engine.WakeLocked(o.topic)
}

// End returns the deliveries that no worker has begun, unless another Offloading of the topic goes
// on, which they may be of.
func (o *Offloading) End() (left []*Delivery) {
	o.engine.mu.Lock()
	defer o.engine.unlock()
	o.topic.Offloads--
	if o.topic.Offloads == 0 || !o.deliversLocked() {
		left = o.topic.offloaded
		o.topic.keepOffloaded(nil)
	}
	return left
}

// takeOffloadedLocked takes deliveries of other nodes' tasks for a worker.
func (s *Engine) takeOffloadedLocked(t *Topic, places int) []*Delivery {
	if t.Stopped() || s.Ended {
		return nil
	}
	s.returnStaleLocked(t)
	n := dispatch.ByWorker.Allowed(&t.Line, min(places, len(t.offloaded)))
	var ds, unfit []*Delivery
	for _, d := range t.offloaded[:n] {
		if d.OwnSettings() != nil && t.missesTarget(string(d.Target.Kind)) != "" {
			unfit = append(unfit, d)
			continue
		}
		d.Source.Began = s.Elapsed()
		ds = append(ds, d)
	}
	t.keepOffloaded(t.offloaded[n:])
	if len(unfit) > 0 {
		s.Cluster.ReturnUnused(unfit)
	}
	n = len(ds)
	dispatch.ByWorker.Spend(&t.Line, n)
	t.Busy += n
	if t.AsyncSettle {
		s.Dispatch.ReservedInFlight += n
	}
	if t.Limited() && n > 0 {
		s.WakeLocked(t) // it may have to rest from now on
	}
	return ds
}

// returnStaleLocked returns offloaded deliveries that have waited here for a quarter of their
// leases: their receiver is to have time. It returns all while there is no receiver.
func (s *Engine) returnStaleLocked(t *Topic) {
	now, n := s.Elapsed(), 0
	for n < len(t.offloaded) && (t.Stopped() || t.Rests() || t.offloaded[n].Lease.Until-now < t.offloaded[n].Source.Lease/4*3) {
		n++
	}
	s.Cluster.ReturnUnused(t.offloaded[:n])
	t.keepOffloaded(t.offloaded[n:])
}

func (t *Topic) keepOffloaded(ds []*Delivery) {
	if len(ds) == 0 {
		ds = nil
	}
	t.offloaded, t.Offloaded = ds, len(ds)
}
