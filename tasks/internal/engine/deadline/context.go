package deadline

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// A Kind is what contexts have in common.
type Kind struct {
	Cause  error     // of those whose deadline has passed; nil: context.DeadlineExceeded
	timers sync.Pool // of *time.Timer, which are stopped
}

// A Context is a context.Context with a deadline. It also ends with its parent, and with End.
type Context struct {
	context.Context // the parent
	deadline        time.Time
	kind            *Kind

	mu     sync.Mutex
	timed  context.Context    // what Done is of; nil: Done has not been called
	cancel context.CancelFunc // of timed; nil: it has none
}

// over is in the place of a timed context after End.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// New returns a context that ends at a time. The caller calls End.
func (k *Kind) New(parent context.Context, at time.Time) *Context {
	return &Context{Context: parent, deadline: at, kind: k}
}

// timedLocked returns the context with its timer, which it starts if need be.
func (c *Context) timedLocked() context.Context {
	if c.timed == nil {
		c.timed, c.cancel = context.WithDeadlineCause(c.Context, c.deadline, c.kind.Cause)
	}
	return c.timed
}

// End ends the context.
func (c *Context) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed == nil {
		c.timed = over
	} else if c.cancel != nil {
		c.cancel()
	}
}

// Done implements context.Context.
func (c *Context) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.timedLocked().Done()
}

// Deadline implements context.Context.
func (c *Context) Deadline() (time.Time, bool) {
	if d, ok := c.Context.Deadline(); ok && d.Before(c.deadline) {
		return d, true
	}
	return c.deadline, true
}

// Err implements context.Context.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timed != nil || !time.Now().Before(c.deadline) {
		return c.timedLocked().Err()
	}
	return c.Context.Err()
}

// Value implements context.Context. It asks the timed context, by which package context knows its
// own: contexts made of this one need no goroutine.
func (c *Context) Value(key any) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		return c.timed.Value(key)
	}
	return c.Context.Value(key)
}

// Wait waits for done, or until ctx ends, whose cause it returns then. For a Context it needs a
// timer alone, and no place among the children of the parent.
func Wait(ctx context.Context, done <-chan struct{}) error {
	c, ok := ctx.(*Context)
	if !ok {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	timer, used := c.kind.timers.Get().(*time.Timer)
	if used {
		timer.Reset(time.Until(c.deadline))
	} else {
		timer = time.NewTimer(time.Until(c.deadline))
	}
	defer func() {
		timer.Stop()
		select { // with GODEBUG=asynctimerchan=1 it may hold an old expiry
		case <-timer.C:
		default:
		}
		c.kind.timers.Put(timer)
	}()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return cmp.Or(c.kind.Cause, context.DeadlineExceeded)
	case <-c.Context.Done():
		return context.Cause(c.Context)
	}
}
