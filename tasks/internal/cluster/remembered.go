package cluster

import (
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// UpdatesAtOnce is how many entries are changed at once in the background.
const UpdatesAtOnce = 1000

// What the node remembers of ids for a while. Each kind has a mutex of its own, under which nothing
// else is called, and at most keptTombstones entries.

const (
	// RemoveAfter is how long the entry of a task outlives it: a cancel that is repeated at
	// another node meanwhile is led to the node that remembers the first.
	RemoveAfter = 10 * time.Second
	// keptTombstones is how many entries wait for that, and how many cancels are remembered.
	keptTombstones = 1 << 16
)

// A fifo is first in, first out, and forgets its first when it is full.
type fifo[T any] struct{ items []T }

func (q *fifo[T]) push(v T) (lost T, full bool) {
	if full = len(q.items) == keptTombstones; full {
		lost, q.items = q.items[0], q.items[1:]
	}
	q.items = append(q.items, v)
	return lost, full
}

// A Tombstone is a directory entry whose task is gone.
type Tombstone struct {
	ID    string
	Entry recovery.DirectoryEntry
	since time.Duration // on the monotonic clock
}

// tombstones wait until their entries may be removed.
type tombstones struct {
	mu    sync.Mutex // guards everything below
	queue fifo[Tombstone]
}

func (t *tombstones) push(some ...Tombstone) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range some {
		t.queue.push(one)
	}
}

// take removes up to UpdatesAtOnce whose time has come.
func (t *tombstones) take(now time.Duration) []Tombstone {
	t.mu.Lock()
	defer t.mu.Unlock()
	items, n := t.queue.items, 0
	for n < min(len(items), UpdatesAtOnce) && now-items[n].since >= RemoveAfter {
		n++
	}
	t.queue.items = items[n:]
	return items[:n:n]
}

// lately has ids with a value each.
type lately[V any] struct {
	mu    sync.Mutex // guards everything below
	byID  map[string]V
	queue fifo[string]
}

func (r *lately[V]) find(id string) (v V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok = r.byID[id]
	return v, ok
}

// put reports whether the id is new.
func (r *lately[V]) put(id string, v V) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = make(map[string]V)
	}
	_, again := r.byID[id]
	if !again {
		if lost, full := r.queue.push(id); full {
			delete(r.byID, lost)
		}
	}
	r.byID[id] = v
	return !again
}

// forget removes the first ones, as long as old says so.
func (r *lately[V]) forget(old func(V) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue.items) > 0 && old(r.byID[r.queue.items[0]]) {
		delete(r.byID, r.queue.items[0])
		r.queue.items = r.queue.items[1:]
	}
}

// A recentCancel is the cancel of the task of an id that was created at a time, in Unix ns.
type recentCancel struct {
	at      time.Duration
	created int64
}

// AddRecentCancel remembers that another node has cancelled the task of an id.
func (s *Cluster) AddRecentCancel(id string, created int64) {
	s.Fleet.recentCancels.put(id, recentCancel{s.engine.Elapsed(), created})
}

// recentCancel returns when the task of an id was created of which another node has confirmed a
// cancel lately. It counts only as long as the directory is sure to have the entry of a later task
// of the id, see CancelledBefore.
func (s *Cluster) recentCancel(id string) (created int64, ok bool) {
	c, ok := s.Fleet.recentCancels.find(id)
	return c.created, ok && s.engine.Elapsed()-c.at < RemoveAfter
}
