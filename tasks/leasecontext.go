package tasks

import (
	"context"
	"sync"
	"time"
)

// A leaseContext is the context of one attempt: it ends with the lease, with the
// attempt, or with the scheduler. What that takes (a timer, and a place in the
// scheduler's context) is made when the deliverer first asks for it. Most handlers are
// over in no time and never do, and making it would be a seventh of the work of a
// delivery.
type leaseContext struct {
	parent   context.Context
	deadline time.Time // with a monotonic reading

	mu     sync.Mutex // guards the rest
	ended  bool
	inner  context.Context
	cancel context.CancelFunc
}

// end is called when the attempt is over.
func (c *leaseContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *leaseContext) get() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithDeadline(c.parent, c.deadline)
		if c.ended {
			c.cancel()
		}
	}
	return c.inner
}

// Deadline implements context.Context.
func (c *leaseContext) Deadline() (time.Time, bool) { return c.deadline, true }

// Done implements context.Context.
func (c *leaseContext) Done() <-chan struct{} { return c.get().Done() }

// Err implements context.Context.
func (c *leaseContext) Err() error { return c.get().Err() }

// Value implements context.Context. It asks the inner context, by which package
// context knows its own: contexts made of this one need no goroutine.
func (c *leaseContext) Value(key any) any { return c.get().Value(key) }
