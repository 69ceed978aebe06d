package engine

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
)

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
