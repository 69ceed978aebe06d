package client

import "sync"

// A gatherer makes calls out of what many goroutines hand in, by natural batching: a
// call takes whatever has gathered while the last one was under way. There is no timer,
// so that a lone caller waits for nobody; and no goroutine while there is nothing to do.
//
// It bounds how much goes into a call and how many calls are under way, but not what
// gathers: that is up to those who add.
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

// add hands in v. It reports false once the gatherer is closed.
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

// next takes what makes up the next call. With nil, the worker is counted off.
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

// idle is closed once no call is under way, and so nothing waits for one.
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

// close makes add refuse.
func (g *gatherer[T]) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}
