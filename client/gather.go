package client

import "sync"

// A gatherer makes calls of values that many goroutines add, by natural batching: a call takes all
// values that were added during the previous one. There is no timer, so that a single caller does
// not wait for others. There is no goroutine while there is nothing to do.
//
// It bounds the size of a call and the number of concurrent calls, but not the number of values
// that wait: the callers of add bound those.
type gatherer[T any] struct {
	most int                   // calls at once
	fit  func(waiting []T) int // how many of the first ones make up a call, at least 1
	call func(batch []T)

	mu      sync.Mutex // guards everything below
	waiting []T
	calls   int // under way; each has a goroutine
	closed  bool
	idlers  []chan struct{} // closed when no call is under way
}

// add adds v. It reports false once the gatherer is closed.
func (g *gatherer[T]) add(v T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.waiting = append(g.waiting, v)
	if g.calls < g.most {
		g.calls++
		go g.work()
	}
	return true
}

// work makes calls until nothing is left.
func (g *gatherer[T]) work() {
	for batch := g.next(); batch != nil; batch = g.next() {
		g.call(batch)
	}
}

// next returns the values of the next call. If it returns nil, the worker no longer counts.
func (g *gatherer[T]) next() []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.waiting = nil
		if g.calls--; g.calls == 0 {
			for _, c := range g.idlers {
				close(c)
			}
			g.idlers = nil
		}
		return nil
	}
	n := g.fit(g.waiting)
	batch := g.waiting[:n:n]
	g.waiting = g.waiting[n:]
	return batch
}

// idle returns a channel that is closed once no call is under way and no value waits.
func (g *gatherer[T]) idle() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := make(chan struct{})
	if g.calls == 0 {
		close(c)
	} else {
		g.idlers = append(g.idlers, c)
	}
	return c
}

// close makes add report false.
func (g *gatherer[T]) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}
