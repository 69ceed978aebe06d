package notice

import (
	"context"
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// A Queue calls memory back, without a lock and from a goroutine of its own: however long memory
// takes, this process sends heartbeats and watches the other nodes.
type Queue struct {
	wake chan struct{} // holds one token when there are notices

	mu      sync.Mutex // guards everything below
	watcher recovery.Watcher
	queue   []func(w recovery.Watcher)
	status  string // memory's last status
	asked   bool   // memory is being asked for its status
}

// New makes an empty queue.
func New() *Queue { return &Queue{wake: make(chan struct{}, 1)} }

// Add queues a notice. Notices are delivered in their order.
func (n *Queue) Add(notice func(w recovery.Watcher)) {
	n.mu.Lock()
	n.queue = append(n.queue, notice)
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// Run delivers notices until ctx ends.
func (n *Queue) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
			n.Deliver(ctx)
		}
	}
}

// Deliver delivers the notices that are queued, until ctx ends.
func (n *Queue) Deliver(ctx context.Context) {
	n.mu.Lock()
	queue, w := n.queue, n.watcher
	n.queue = nil
	n.mu.Unlock()
	for _, notice := range queue {
		if ctx.Err() != nil {
			return
		}
		notice(w)
	}
}

// Watch sets what is called.
func (n *Queue) Watch(w recovery.Watcher) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watcher = w
}

// TakesShards reports whether memory takes shards of other nodes.
func (n *Queue) TakesShards() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.watcher.Acquired != nil
}

// AskStatus queues a call for memory's status. The heartbeat after that sends it.
func (n *Queue) AskStatus() {
	n.mu.Lock()
	ask := n.watcher.Status != nil && !n.asked
	n.asked = n.asked || ask
	n.mu.Unlock()
	if !ask {
		return
	}
	n.Add(func(w recovery.Watcher) {
		var status []byte
		if w.Status != nil { // the watcher may have been replaced since
			status = w.Status()
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.status, n.asked = string(status), false
	})
}

// LastStatus is memory's last status.
func (n *Queue) LastStatus() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status
}

// Doubted notifies memory that the directory may have lost entries.
func (n *Queue) Doubted() {
	n.Add(func(w recovery.Watcher) {
		if w.Doubted != nil {
			w.Doubted()
		}
	})
}
