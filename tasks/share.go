package tasks

import (
	"container/heap"
	"math"
	"time"

	"golang.org/x/time/rate"
)

// A worker takes one of Config.MaxDeliveries places, or several if it delivers batches.
// While there are enough, a topic has as many as its concurrency allows. When they are
// all taken, topics share them by weight: those that want more are contenders, and a worker
// that has finished a delivery gives its place up if a contender has a better claim to it.
//
// The better claim is that of the topic with fewer places for its weight: so a topic with
// receivers that hang holds no more than its share, however long they take. Between
// equals it is that of the topic which has had fewer passes for its weight, as in stride
// scheduling (Waldspurger and Weihl, "Stride Scheduling", 1995): so a single place, too,
// goes round by weight, and no topic starves.
type contenders []*topic

// A share is what a topic's claim to a place is judged by: the smaller one comes first.
type share struct{ places, passes float64 }

func (c share) before(o share) bool {
	return c.places < o.places || c.places == o.places && c.passes < o.passes
}

// share is that of a topic as it would be with some places less.
func (t *topic) share(less int) share {
	return share{float64(t.workers-less) / float64(t.settings.Weight), t.passes}
}

func (c contenders) Len() int           { return len(c) }
func (c contenders) Less(i, j int) bool { return c[i].share(0).before(c[j].share(0)) }
func (c contenders) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].contending, c[j].contending = i+1, j+1
}
func (c *contenders) Push(x any) {
	t := x.(*topic)
	*c = append(*c, t)
	t.contending = len(*c)
}
func (c *contenders) Pop() any {
	old := *c
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*c = old[:len(old)-1]
	t.contending = 0
	return t
}

// placesLeftLocked is how many places more a topic may have.
func (s *engine) placesLeftLocked(t *topic) int {
	return max(t.settings.Concurrency-t.workers, min(s.raisedLocked(t)-t.workers, s.cfg.MaxInFlight-s.workers-s.leasedOut))
}

// wantsLocked tells that a topic could use one more worker.
func (s *engine) wantsLocked(t *topic) bool {
	if t.stopped() || s.ended || s.paused || t.deliverer == nil || t.asyncSettle && s.roomLocked() <= 0 {
		return false
	}
	wanted := t.busy + t.allowed(t.waiting())
	return t.workers < min(t.settings.Concurrency, wanted) ||
		t.workers < min(s.raisedLocked(t), wanted) && s.workers+s.leasedOut < s.cfg.MaxInFlight
}

// contendLocked makes a topic a contender, or finds its place among them anew. A topic that has
// not been one for long does not make up for it: it begins where the others are.
func (s *engine) contendLocked(t *topic) {
	if t.contending != 0 {
		heap.Fix(&s.contenders, t.contending-1)
		return
	}
	t.passes = max(t.passes, s.passes)
	heap.Push(&s.contenders, t)
}

// placeLocked gives free places to the contenders.
func (s *engine) placeLocked() {
	for s.workers < s.cfg.MaxDeliveries {
		t := s.foremostLocked()
		if t == nil {
			return
		}
		s.passes = max(s.passes, t.passes)
		s.startWorkerLocked(t)
		heap.Fix(&s.contenders, 0)
	}
}

// foremostLocked returns the contender with the best claim, or nil if there is none. Those before
// it that want nothing any more leave.
func (s *engine) foremostLocked() *topic {
	for len(s.contenders) > 0 {
		t := s.contenders[0]
		if s.wantsLocked(t) {
			return t
		}
		heap.Pop(&s.contenders)
		s.wakeLocked(t) // it may have to wait for MaxInFlight, or its rate, instead
	}
	return nil
}

// countPassesLocked counts deliveries, and tells how many of its places their worker keeps: the
// others are better given to other topics, and have been.
func (s *engine) countPassesLocked(t *topic, deliveries, places int) (kept int) {
	if len(s.contenders) == 0 {
		return places
	}
	t.passes += float64(deliveries) / float64(t.settings.Weight)
	for places > 0 && s.outsharedLocked(t) {
		places--
		t.workers--
		s.workers--
		s.placeLocked()
	}
	if places > 0 {
		s.wakeLocked(t) // it may want back what it has given
	}
	return places
}

// outsharedLocked reports whether a contender has a better claim to a place of a topic.
func (s *engine) outsharedLocked(t *topic) bool {
	if t.contending != 0 {
		heap.Fix(&s.contenders, t.contending-1)
	}
	other := s.foremostLocked()
	return other != nil && other != t && other.share(0).before(t.share(1))
}

// A topic's rate is a bucket of tokens: every delivery that begins takes one, of those
// that are pulled too. A topic whose bucket is empty rests: no worker looks at its queue
// until a timer says that there is a token again.

// limit gives a topic the bucket of its settings. What the bucket holds stays in it:
// settings that are set again and again are not a burst each.
func (t *topic) limit() {
	r := t.settings.Rate
	switch {
	case r == Rate{}:
		t.limiter = nil
	case t.limiter == nil:
		t.limiter = rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst)
	default:
		t.limiter.SetLimit(rate.Limit(r.PerSecond))
		t.limiter.SetBurst(r.Burst)
	}
	if t.rest != nil {
		t.rest.Stop()
		t.rest = nil
	}
}

// allowed is how many of n deliveries of a topic may begin now.
func (t *topic) allowed(n int) int {
	if t.limiter == nil {
		return n
	}
	return max(0, min(n, int(t.limiter.Tokens())))
}

// spend takes the tokens of deliveries that begin.
func (t *topic) spend(n int) {
	if t.limiter != nil {
		t.limiter.AllowN(time.Now(), n)
	}
}

// restLocked wakes a topic that has no token when it has one.
func (s *engine) restLocked(t *topic) {
	if t.rest != nil {
		return
	}
	missing := 1 - t.limiter.Tokens()
	pause := time.Duration(math.Ceil(missing/float64(t.limiter.Limit())*float64(time.Second))) + time.Microsecond
	t.rest = time.AfterFunc(pause, func() {
		s.mu.Lock()
		defer s.unlock()
		t.rest = nil
		s.wakeLocked(t)
	})
}

// A consumer is what takes ready tasks off a topic's queue.
type consumer struct {
	kind consumerKind
	node string // that it belongs to, if that is another one
}

type consumerKind uint8

const (
	aWorker       consumerKind = iota // of this process
	aReceiver                         // that has called Reserve here
	aRemoteWaiter                     // receivers that wait at another node
	aRemoteWorker                     // workers of another node, during a backlog here
)

var (
	byWorker   = consumer{kind: aWorker}
	byReceiver = consumer{kind: aReceiver}
)

// leases reports whether only a receipt can settle what it takes: that counts against
// MaxInFlight.
func (k consumer) leases() bool { return k.kind != aWorker }

// fits tells that the topic's tasks are for this consumer.
func (k consumer) fits(t *topic) bool {
	return t.pulled() == (k.kind == aReceiver || k.kind == aRemoteWaiter)
}

// allowed is how many of n deliveries may begin now. A rate holds per node: what a helper
// takes counts against its own.
func (k consumer) allowed(t *topic, n int) int {
	if k.kind == aRemoteWorker {
		return n
	}
	return t.allowed(n)
}

func (k consumer) spend(t *topic, n int) {
	if k.kind != aRemoteWorker {
		t.spend(n)
	}
}

// bytes bounds the records that it takes at once, give or take one task: what goes to another
// node or to a receiver is one message.
func (k consumer) bytes() int {
	if k.leases() {
		return MaxPageBytes
	}
	return math.MaxInt
}
