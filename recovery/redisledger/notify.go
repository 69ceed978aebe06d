package redisledger

import (
	"context"
	"sync"

	"github.com/lapsehq/lapse/recovery"
)

// notices calls memory back, without a lock and from a goroutine of its own: however long memory
// takes, this process sends heartbeats and watches the other nodes.
type notices struct {
	wake chan struct{} // holds one token when there are notices

	mu      sync.Mutex // guards everything below
	watcher recovery.Watcher
	queue   []func(w recovery.Watcher)
	status  string // memory's last status
	asked   bool   // memory is being asked for its status
}

// add queues a notice. Notices are delivered in their order.
func (n *notices) add(notice func(w recovery.Watcher)) {
	n.mu.Lock()
	n.queue = append(n.queue, notice)
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run delivers notices until ctx ends.
func (n *notices) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
			n.deliver(ctx)
		}
	}
}

func (n *notices) deliver(ctx context.Context) {
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

// watch sets what is called.
func (n *notices) watch(w recovery.Watcher) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.watcher = w
}

// takesShards reports whether memory takes shards of other nodes.
func (n *notices) takesShards() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.watcher.Gained != nil
}

// askStatus queues a call for memory's status. The heartbeat after that sends it.
func (n *notices) askStatus() {
	n.mu.Lock()
	ask := n.watcher.Status != nil && !n.asked
	n.asked = n.asked || ask
	n.mu.Unlock()
	if !ask {
		return
	}
	n.add(func(w recovery.Watcher) {
		var status []byte
		if w.Status != nil { // the watcher may have been replaced since
			status = w.Status()
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.status, n.asked = string(status), false
	})
}

// lastStatus is memory's last status.
func (n *notices) lastStatus() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status
}

// doubted notifies memory that the directory may have lost entries.
func (n *notices) doubted() {
	n.add(func(w recovery.Watcher) {
		if w.Doubted != nil {
			w.Doubted()
		}
	})
}
