package engine

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Waiter is a receiver that asks for a topic's tasks here, or stands for the receivers of another
// node. But for Late it is guarded by Engine.mu while it stands in a queue.
type Waiter struct {
	dispatch.Turn
	Late    bool        // the time to wait is over
	Fetched []*Delivery // from other nodes
	topic   *Topic      // in whose queue it stands, or was woken; nil if in none
}

// NewWaiter returns a receiver that takes so many tasks, and that does not wait if it is late.
func NewWaiter(limit int, late bool) *Waiter {
	w := &Waiter{Turn: dispatch.Turn{Limit: limit}, Late: late}
	w.Owner = w
	return w
}

// leaveLocked takes a receiver off the queue in which it stands, or has stood until it was woken.
// It returns the topic, whose ready tasks may be another receiver's then; nil if it stood in none.
func (w *Waiter) leaveLocked() *Topic {
	t := w.topic
	if t != nil {
		t.Reservers.Leave(&w.Turn)
		w.topic = nil
	}
	return t
}

// Give gives deliveries of another node to the sleeping receivers of a topic that share want, to
// the one that has waited longest first. It returns those that are left, and those whose leases are
// over.
func (s *Engine) Give(topic string, want *atomic.Int64, ds []*Delivery) (left []*Delivery) {
	now := s.Elapsed()
	over := func(d *Delivery) bool { return d.Lease.Until <= now }
	if slices.ContainsFunc(ds, over) {
		left = slices.DeleteFunc(slices.Clone(ds), func(d *Delivery) bool { return !over(d) })
		ds = slices.DeleteFunc(slices.Clone(ds), over)
	}
	s.mu.Lock()
	defer s.unlock()
	t := s.TopicTable.ByName[topic]
	if t == nil || s.Ended {
		return append(left, ds...)
	}
	for e := t.Reservers.Queue.Front(); e != nil && len(ds) > 0; {
		p := e.Value.(*dispatch.Turn)
		e = e.Next()
		if p.Want == want {
			n := min(p.Limit, len(ds))
			p.Owner.(*Waiter).Fetched = ds[:n:n]
			t.Reservers.Give(p)
			ds = ds[n:]
		}
	}
	return append(left, ds...)
}

// Stopped reports whether no receiver may have a topic's tasks for the time being.
func (s *Engine) Stopped(topic string) bool {
	s.mu.Lock()
	defer s.unlock()
	t := s.TopicTable.ByName[topic]
	return t != nil && t.Stopped()
}

// Pull hands ready tasks of a topic to a receiver, which leaves the queue if it stands there.
// Errors: as of tasks.Scheduler.Reserve.
func (s *Engine) Pull(ctx context.Context, name string, reserved bool, place *Waiter, lease time.Duration) ([]*Delivery, error) {
	ctx, cancel := s.Within(ctx)
	defer cancel()
	b := beginning{by: dispatch.ByReceiver, lease: lease, limit: place.Limit, place: place, name: name, receiver: task.ReceiverOf(ctx), reserved: reserved}
	return s.run(ctx, &b), b.err
}

// Queue puts a receiver to sleep until it is its turn to look again, or until it was given
// deliveries. It reports false if neither came in time. demand, which may be nil, returns what
// the receiver shares with others and what begins to ask other nodes. Both are called with the lock
// held. Errors: as of tasks.Scheduler.Reserve.
func (s *Engine) Queue(ctx context.Context, name string, reserved bool, place *Waiter, over <-chan time.Time, demand func(stopped bool) (want *atomic.Int64, ask func() <-chan struct{})) (woken bool, err error) {
	s.mu.Lock()
	t, err := s.PullableLocked(name, reserved)
	if err != nil {
		s.unlock()
		return false, err
	}
	var ask func() <-chan struct{}
	if demand != nil {
		place.Want, ask = demand(t.Stopped())
	}
	place.topic = t
	t.Reservers.Join(&place.Turn)
	s.WakeLocked(t) // for tasks that became ready while the lock was released
	var search <-chan struct{}
	if ask != nil {
		search = ask()
	}
	s.unlock()
	woken = place.wait(ctx, s.Life.Closing, over, search)
	s.mu.Lock()
	defer s.unlock()
	switch {
	case len(place.Fetched) > 0:
		woken = true
	case woken:
		return true, nil // Pull takes it off the queue
	}
	place.leaveLocked()
	if !woken {
		s.WakeLocked(t) // if it has just been woken, another receiver should be
	}
	return woken, nil
}

// wait reports whether the receiver's turn has come. While other nodes are being asked, it waits
// for their answers even if the receiver's time is over: what they have is worth the moment.
func (w *Waiter) wait(ctx context.Context, closing <-chan struct{}, over <-chan time.Time, search <-chan struct{}) bool {
	if !w.Late {
		select {
		case <-w.Ready:
			return true
		case <-over:
			w.Late = true
		case <-ctx.Done():
			return false
		case <-closing:
			return false
		}
	}
	if search == nil {
		return false
	}
	select {
	case <-w.Ready:
		return true
	case <-search:
	case <-ctx.Done():
	case <-closing:
	}
	return false
}

// PullableLocked returns a topic from which a receiver may take tasks. Errors: as of
// tasks.Scheduler.Reserve.
func (s *Engine) PullableLocked(name string, reserved bool) (*Topic, error) {
	if s.Ended {
		return nil, task.ErrClosed
	}
	t, err := s.TopicLocked(name, reserved)
	switch {
	case err != nil:
		return nil, err
	case t.unread():
		return nil, errSettingsUnread
	case !t.Pulled():
		return nil, task.ErrHandled
	}
	t.asked = true
	if s.Dispatch.Room() <= 0 {
		s.Dispatch.Hold(&t.Line)
		return nil, fmt.Errorf("%w: %d deliveries are open", task.ErrOverloaded, s.Dispatch.LeasedOut+s.Dispatch.ReservedInFlight)
	}
	return t, nil
}

// A RemoteTurn stands in a topic's queue for receivers of another node, which ask for one length of
// lease. It takes the lock itself.
type RemoteTurn struct {
	engine *Engine
	place  Waiter
	node   string
	topic  string
	lease  time.Duration // 0: the topic's
	served bool          // from its turn to Leave; guarded by Engine.mu
}

// NewRemoteTurn returns a turn that stands in no queue. serve is called with the lock held when it
// has come; the turn has left the queue then, and Leave has to follow, perhaps after Pull.
func NewRemoteTurn(s *Engine, node, topic string, lease time.Duration, serve func()) *RemoteTurn {
	r := &RemoteTurn{engine: s, node: node, topic: topic, lease: lease}
	r.place.Serve = func() {
		r.served = true
		serve()
	}
	return r
}

// Join has the receivers wait for their turn, unless they do already, or are being served. It
// reports false if no receiver may.
func (r *RemoteTurn) Join() bool {
	s := r.engine
	s.mu.Lock()
	defer s.unlock()
	if r.place.topic != nil || r.served {
		return true
	}
	t, err := s.TopicLocked(r.topic, false)
	if err != nil || !t.Pulled() || s.Ended {
		return false
	}
	r.place.topic = t
	t.Reservers.Join(&r.place.Turn)
	s.WakeLocked(t)
	return true
}

// Leave ends that the receivers wait, if they do.
func (r *RemoteTurn) Leave() {
	r.engine.mu.Lock()
	defer r.engine.unlock()
	r.served = false
	if t := r.place.leaveLocked(); t != nil {
		r.engine.WakeLocked(t)
	}
}

// Pull hands ready tasks to the receivers, which do not wait any more then. It returns none if
// there are none, or if no receiver may have them.
func (r *RemoteTurn) Pull(ctx context.Context, limit int) []*Delivery {
	ctx, cancel := r.engine.Within(ctx)
	defer cancel()
	b := beginning{by: dispatch.ByRemoteWaiter(r.node), lease: r.lease, limit: limit, place: &r.place, name: r.topic}
	return r.engine.run(ctx, &b)
}
