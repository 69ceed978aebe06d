package engine

import (
	"container/heap"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/lapsehq/lapse/tasks/task"
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
type contenders []*Topic

// A share is what a topic's claim to a place is judged by: the smaller one comes first.
type share struct{ places, passes float64 }

func (c share) before(o share) bool {
	return c.places < o.places || c.places == o.places && c.passes < o.passes
}

// share is that of a topic as it would be with some places less.
func (t *Topic) share(less int) share {
	return share{float64(t.Workers-less) / float64(t.Settings.Weight), t.allotment.passes}
}

func (c contenders) Len() int           { return len(c) }
func (c contenders) Less(i, j int) bool { return c[i].share(0).before(c[j].share(0)) }
func (c contenders) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].allotment.contending, c[j].allotment.contending = i+1, j+1
}
func (c *contenders) Push(x any) {
	t := x.(*Topic)
	*c = append(*c, t)
	t.allotment.contending = len(*c)
}
func (c *contenders) Pop() any {
	old := *c
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*c = old[:len(old)-1]
	t.allotment.contending = 0
	return t
}

// placesLeftLocked is how many places more a topic may have.
func (s *Engine) placesLeftLocked(t *Topic) int {
	return max(t.Settings.Concurrency-t.Workers, min(s.RaisedLocked(t)-t.Workers, s.Config.MaxInFlight-s.Dispatch.Workers-s.Dispatch.LeasedOut))
}

// wantsLocked tells that a topic could use one more worker.
func (s *Engine) wantsLocked(t *Topic) bool {
	if t.Stopped() || s.Ended || s.Dispatch.paused || t.Deliverer == nil || t.AsyncSettle && s.roomLocked() <= 0 {
		return false
	}
	wanted := t.Busy + t.Allowed(t.Waiting())
	return t.Workers < min(t.Settings.Concurrency, wanted) ||
		t.Workers < min(s.RaisedLocked(t), wanted) && s.Dispatch.Workers+s.Dispatch.LeasedOut < s.Config.MaxInFlight
}

// contendLocked makes a topic a contender, or finds its place among them anew. A topic that has
// not been one for long does not make up for it: it begins where the others are.
func (s *Engine) contendLocked(t *Topic) {
	if t.allotment.contending != 0 {
		heap.Fix(&s.Dispatch.Contenders, t.allotment.contending-1)
		return
	}
	t.allotment.passes = max(t.allotment.passes, s.Dispatch.passes)
	heap.Push(&s.Dispatch.Contenders, t)
}

// placeLocked gives free places to the contenders.
func (s *Engine) placeLocked() {
	for s.Dispatch.Workers < s.Config.MaxDeliveries {
		t := s.foremostLocked()
		if t == nil {
			return
		}
		s.Dispatch.passes = max(s.Dispatch.passes, t.allotment.passes)
		s.startWorkerLocked(t)
		heap.Fix(&s.Dispatch.Contenders, 0)
	}
}

// foremostLocked returns the contender with the best claim, or nil if there is none. Those before
// it that want nothing any more leave.
func (s *Engine) foremostLocked() *Topic {
	for len(s.Dispatch.Contenders) > 0 {
		t := s.Dispatch.Contenders[0]
		if s.wantsLocked(t) {
			return t
		}
		heap.Pop(&s.Dispatch.Contenders)
		s.WakeLocked(t) // it may have to wait for MaxInFlight, or its rate, instead
	}
	return nil
}

// countPassesLocked counts deliveries, and tells how many of its places their worker keeps: the
// others are better given to other topics, and have been.
func (s *Engine) countPassesLocked(t *Topic, deliveries, places int) (kept int) {
	if len(s.Dispatch.Contenders) == 0 {
		return places
	}
	t.allotment.passes += float64(deliveries) / float64(t.Settings.Weight)
	for places > 0 && s.outsharedLocked(t) {
		places--
		t.Workers--
		s.Dispatch.Workers--
		s.placeLocked()
	}
	if places > 0 {
		s.WakeLocked(t) // it may want back what it has given
	}
	return places
}

// outsharedLocked reports whether a contender has a better claim to a place of a topic.
func (s *Engine) outsharedLocked(t *Topic) bool {
	if t.allotment.contending != 0 {
		heap.Fix(&s.Dispatch.Contenders, t.allotment.contending-1)
	}
	other := s.foremostLocked()
	return other != nil && other != t && other.share(0).before(t.share(1))
}

// A topic's rate is a bucket of tokens: every delivery that begins takes one, of those
// that are pulled too. A topic whose bucket is empty rests: no worker looks at its queue
// until a timer says that there is a token again.

// limit gives a topic the bucket of its settings. What the bucket holds stays in it:
// settings that are set again and again are not a burst each.
func (t *Topic) limit() {
	r := t.Settings.Rate
	switch {
	case r == task.Rate{}:
		t.allotment.limiter = nil
	case t.allotment.limiter == nil:
		t.allotment.limiter = rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst)
	default:
		t.allotment.limiter.SetLimit(rate.Limit(r.PerSecond))
		t.allotment.limiter.SetBurst(r.Burst)
	}
	if t.allotment.rest != nil {
		t.allotment.rest.Stop()
		t.allotment.rest = nil
	}
}

// Allowed is how many of n deliveries of a topic may begin now.
func (t *Topic) Allowed(n int) int {
	if t.allotment.limiter == nil {
		return n
	}
	return max(0, min(n, int(t.allotment.limiter.Tokens())))
}

// spend takes the tokens of deliveries that begin.
func (t *Topic) spend(n int) {
	if t.allotment.limiter != nil {
		t.allotment.limiter.AllowN(time.Now(), n)
	}
}

// restLocked wakes a topic that has no token when it has one.
func (s *Engine) restLocked(t *Topic) {
	if t.allotment.rest != nil {
		return
	}
	missing := 1 - t.allotment.limiter.Tokens()
	pause := time.Duration(math.Ceil(missing/float64(t.allotment.limiter.Limit())*float64(time.Second))) + time.Microsecond
	t.allotment.rest = time.AfterFunc(pause, func() {
		s.Mu.Lock()
		defer s.Unlock()
		t.allotment.rest = nil
		s.WakeLocked(t)
	})
}

// A Consumer is what takes ready tasks off a topic's queue.
type Consumer struct {
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
	byWorker   = Consumer{kind: aWorker}
	byReceiver = Consumer{kind: aReceiver}
)

// ByRemoteWaiter returns the consumer that the receivers of another node are.
func ByRemoteWaiter(node string) Consumer { return Consumer{aRemoteWaiter, node} }

// ByRemoteWorker returns the consumer that the workers of another node are, during a backlog here.
func ByRemoteWorker(node string) Consumer { return Consumer{aRemoteWorker, node} }

// leases reports whether only a receipt can settle what it takes: that counts against
// MaxInFlight.
func (k Consumer) leases() bool { return k.kind != aWorker }

// fits tells that the topic's tasks are for this consumer.
func (k Consumer) fits(t *Topic) bool {
	return t.Pulled() == (k.kind == aReceiver || k.kind == aRemoteWaiter)
}

// allowed is how many of n deliveries may begin now. A rate holds per node: what a helper
// takes counts against its own.
func (k Consumer) allowed(t *Topic, n int) int {
	if k.kind == aRemoteWorker {
		return n
	}
	return t.Allowed(n)
}

func (k Consumer) spend(t *Topic, n int) {
	if k.kind != aRemoteWorker {
		t.spend(n)
	}
}

// bytes bounds the records that it takes at once, give or take one task: what goes to another
// node or to a receiver is one message.
func (k Consumer) bytes() int {
	if k.leases() {
		return task.MaxPageBytes
	}
	return math.MaxInt
}
