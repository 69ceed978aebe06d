package tasks

import "sync"

// A flight computes something for all callers that wait for it at the same time. One
// computation runs at a time; those who come while it runs share the next one, so that each
// gets what was computed after it had called.
type flight[T any] struct {
	mu            sync.Mutex  // guards what follows
	running, next *landing[T] // the last computation that has begun, and the one after it
}

// A landing is the result of one computation.
type landing[T any] struct {
	done  chan struct{}
	value T
}

// do returns the result of compute, called by this caller or by another one. The result is
// shared: it must not be changed.
func (f *flight[T]) do(compute func() T) T {
	f.mu.Lock()
	if l := f.next; l != nil {
		f.mu.Unlock()
		<-l.done
		return l.value
	}
	l := &landing[T]{done: make(chan struct{})}
	before := f.running
	f.next = l
	f.mu.Unlock()
	if before != nil {
		<-before.done
	}
	f.mu.Lock()
	f.running, f.next = l, nil
	f.mu.Unlock()
	defer close(l.done)
	l.value = compute()
	return l.value
}
