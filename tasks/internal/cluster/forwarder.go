package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// A forwarder sends settlements to the nodes that have the tasks, for callers that do not wait:
//
//   - A late verdict is that of a handler of this process, of a delivery whose shard has left
//     meanwhile. The owner of the shard honours it if the delivery was handed over with its
//     lease, or if it has not begun the same attempt again.
//   - An outcome is that of a delivery that this node has made for another one.
//   - A return is that of a delivery that no receiver has seen.
//
// There is a queue for each target. While one batch is on its way the next gathers, so that many
// settlements share a message. A settlement that fails is sent again, with growing pauses, until it
// does not matter any more. If it is dropped then, the lease of the delivery runs out at the owner.
//
// It may be called with Engine.mu held, and calls nothing that waits under its own mutex.
// After Close has begun, only what counts as a handler may send to a node: sendAll, which it
// starts then, has to be waited for. A settlement for the owner of a shard waits for
// SendLastVerdicts.
type forwarder struct {
	Dropped atomic.Int64 // settlements that found their queue full

	mu     sync.Mutex // guards everything below, and the queues
	queues map[target]*settleQueue
	bytes  int           // that the settlements take up
	warned time.Duration // when a log line last told of dropped ones
}

// A target is where settlements go.
type target struct {
	node    string           // that has begun the deliveries; empty: the owner of the shard
	shardID recovery.ShardID // 0: the owner is found by the id of the task
}

// A settlement is on its way to the node that has the task.
type settlement struct {
	OffloadOutcome
	until time.Duration // then it does not matter any more
}

// A settleQueue has the settlements for one target.
type settleQueue struct {
	target
	waiting []settlement // until they have arrived, those that are being sent among them
	bytes   int          // that they take up
	sending bool         // a goroutine runs sendAll
}

const (
	// settlementsAtOnce is how many go in one message.
	settlementsAtOnce = task.MaxReserve
	// verdictsAtOnce is how many different verdicts are sent at the same time.
	verdictsAtOnce = 16
	// maxForwarded bounds the memory of the settlements, and maxQueued that of one queue: a node
	// that does not answer leaves room for those that do. Each settlement takes up forwardedSize
	// and its texts.
	maxForwarded, maxQueued, forwardedSize = 64 << 20, 16 << 20, 128
	// warnEvery is the time between two log lines about dropped settlements.
	warnEvery = 10 * time.Second
	// lastPause is between two attempts while Close waits.
	lastPause = 5 * time.Millisecond
)

func sizeOf(some ...settlement) (size int) {
	for i := range some {
		size += forwardedSize + len(some[i].Receipt) + len(some[i].Reason)
	}
	return size
}

// forward sends a settlement to its target.
func (s *Cluster) forward(to target, o settlement) {
	f := &s.Forward
	f.mu.Lock()
	defer f.mu.Unlock()
	q, size := f.queues[to], sizeOf(o)
	if f.bytes+size > maxForwarded || q != nil && q.bytes+size > maxQueued {
		s.dropLocked(to)
		return
	}
	if q == nil {
		q = &settleQueue{target: to}
		if f.queues == nil {
			f.queues = make(map[target]*settleQueue)
		}
		f.queues[to] = q
	}
	q.waiting = append(q.waiting, o)
	q.bytes, f.bytes = q.bytes+size, f.bytes+size
	if !q.sending {
		q.sending = s.engine.Life.Handle(func() { s.sendAll(q) })
	}
	if !q.sending && to.node != "" {
		q.sending = true
		s.engine.Life.Handlers.Go(func() { s.sendAll(q) })
	}
}

// dropLocked counts a settlement for which there is no room.
func (s *Cluster) dropLocked(to target) {
	f := &s.Forward
	dropped, now := f.Dropped.Add(1), s.engine.Elapsed()
	if dropped > 1 && now-f.warned < warnEvery {
		return
	}
	f.warned = now
	s.engine.Config.Log.Warn("too many settlements wait for another node; tasks may be delivered again",
		"node", s.engine.Config.Node, "to", to.node, "shard", to.shardID, "dropped", dropped)
}

// sendAll sends until the queue is empty. Settlements that fail while Close runs are left to
// SendLastVerdicts, or, if they are for a node, sent again as long as handlers have time.
func (s *Cluster) sendAll(q *settleQueue) {
	var backoff recovery.Backoff
	for attempt := 0; ; attempt++ {
		more, failed := s.sendSome(s.engine.Life.Context, q)
		switch {
		case !more:
			return
		case !failed:
			attempt = -1
		case q.node != "":
			_ = backoff.Wait(s.engine.Life.Context, attempt)
		case !s.engine.Life.Rest(backoff.Delay(attempt)):
			s.Forward.mu.Lock()
			q.sending = false
			s.Forward.mu.Unlock()
			return
		}
	}
}

// SendLastVerdicts sends what is left for the owners of shards when the handlers have had their
// time. It tries each owner at least once, however little time is left.
func (s *Cluster) SendLastVerdicts(ctx context.Context) {
	for {
		var all sync.WaitGroup
		left := s.Forward.ToOwners()
		for _, q := range s.Forward.idleToOwners() {
			all.Go(func() { s.sendQueue(ctx, q) })
		}
		all.Wait()
		if left == 0 {
			return
		}
		select {
		case <-time.After(lastPause):
		case <-ctx.Done():
			if left = s.Forward.ToOwners(); left > 0 {
				s.engine.Config.Log.Warn("settlements have not arrived at other nodes before the end; their tasks may be delivered again",
					"node", s.engine.Config.Node, "settlements", left)
			}
			return
		}
	}
}

// sendQueue sends a queue until it is empty, a batch fails, or one call has had its time.
func (s *Cluster) sendQueue(ctx context.Context, q *settleQueue) {
	ctx, cancel := s.engine.Within(context.WithoutCancel(ctx))
	defer cancel()
	for more, failed := true, false; more && !failed && ctx.Err() == nil; {
		more, failed = s.sendSome(ctx, q)
	}
}

// idleToOwners returns the queues for owners of shards that are not being sent.
func (f *forwarder) idleToOwners() (idle []*settleQueue) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for to, q := range f.queues {
		if !q.sending && to.node == "" {
			idle = append(idle, q)
		}
	}
	return idle
}

// Queues returns how many queues there are.
func (f *forwarder) Queues() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queues)
}

// ToOwners returns how many settlements have not arrived at the owners of shards.
func (f *forwarder) ToOwners() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for to, q := range f.queues {
		if to.node == "" {
			n += len(q.waiting)
		}
	}
	return n
}

// sendSome sends the first of a queue once, in one batch. It reports whether there were any, and
// whether some are to be sent again: these stay first in the queue.
func (s *Cluster) sendSome(ctx context.Context, q *settleQueue) (more, failed bool) {
	f := &s.Forward
	f.mu.Lock()
	some := q.waiting[:min(len(q.waiting), settlementsAtOnce)]
	if len(some) == 0 {
		delete(f.queues, q.target)
	}
	f.mu.Unlock()
	if len(some) == 0 {
		return false, false
	}
	errs := s.settleAtTarget(ctx, q.target, some)
	var left []settlement
	now, later := s.engine.Elapsed(), q.node == "" || ctx.Err() == nil
	for i, err := range errs {
		switch o := &some[i]; {
		case err == nil:
		case later && o.until > now && (errors.Is(err, task.ErrUnavailable) || errors.Is(err, task.ErrUnknown) || errors.Is(err, task.ErrReplaying)):
			left = append(left, *o)
		case o.Verb != task.Return: // whose task is ready when its lease is over, if it is not now
			s.engine.Config.Log.Warn("a delivery could not be settled at the node that holds its task now; it may be delivered again", "node", s.engine.Config.Node, "to", q.node, "error", err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	arrived := sizeOf(some...) - sizeOf(left...)
	q.bytes, f.bytes = q.bytes-arrived, f.bytes-arrived
	q.waiting = q.waiting[len(some)-len(left):]
	copy(q.waiting, left)
	return true, len(left) > 0
}

// settleAtTarget sends settlements once. Settlements that the node which has begun the deliveries
// does not confirm go to the owner of the shard, which may be another node by now.
func (s *Cluster) settleAtTarget(ctx context.Context, to target, some []settlement) []error {
	errs := make([]error, len(some))
	if to.node != "" {
		s.tellOutcomes(ctx, to.node, some, errs)
	}
	type verdict struct {
		verb   task.Verb
		reason string
		delay  time.Duration // -1: none
	}
	alike := make(map[verdict][]int)
	for i := range some {
		if o := &some[i]; to.node == "" || errs[i] != nil {
			v := verdict{o.Verb, o.Reason, -1}
			if o.Delay != nil {
				v.delay = *o.Delay
			}
			alike[v] = append(alike[v], i)
		}
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	var all errgroup.Group
	all.SetLimit(verdictsAtOnce)
	for _, which := range alike {
		all.Go(func() error {
			s.settleAtOwner(ctx, to.shardID, some, which, errs)
			return nil
		})
	}
	_ = all.Wait()
	return errs
}

// tellOutcomes reports settlements to the node that has begun the deliveries.
func (s *Cluster) tellOutcomes(ctx context.Context, node string, some []settlement, errs []error) {
	told := OutcomesQuery{make([]OffloadOutcome, len(some))}
	for i := range some {
		told.Outcomes[i] = some[i].OffloadOutcome
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	a, err := Call(ctx, s, node, OutcomesMethod, told)
	if err == nil && len(a.Faults) != len(some) {
		err = fmt.Errorf("%w: node %s has answered for %d of %d outcomes", task.ErrUnknown, node, len(a.Faults), len(some))
	}
	for i := range errs {
		if errs[i] = err; err == nil && a.Faults[i].Code != "" {
			errs[i] = a.Faults[i].Err(node, false)
		}
	}
}

// settleAtOwner settles those of the settlements that which names, of one verdict, at the node
// that owns their shard.
func (s *Cluster) settleAtOwner(ctx context.Context, shardID recovery.ShardID, some []settlement, which []int, errs []error) {
	receipts := make([]string, len(which))
	for k, i := range which {
		receipts[k] = some[i].Receipt
	}
	var answers []task.Settled
	err := errNoPeers
	if s.peerCalls.Settle != nil {
		answers, err = s.peerCalls.Settle(ctx, shardID, some[which[0]].verdict(), receipts)
	}
	for k, i := range which {
		if errs[i] = err; err == nil {
			errs[i] = answers[k].Err
		}
	}
}
