package deadline

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var errLate = errors.New("late")

// A call that never waits has no timer, and yet a deadline.
func TestTimerStartsAtTheFirstWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &Kind{Cause: errLate}
		begun := time.Now()
		for _, look := range []func(context.Context){
			func(ctx context.Context) { <-ctx.Done() },
			func(context.Context) { time.Sleep(time.Second) },
		} {
			ctx := calls.New(t.Context(), time.Now().Add(time.Second))
			defer ctx.End()
			if d, ok := ctx.Deadline(); !ok || d.Sub(begun) != time.Second || ctx.Err() != nil || ctx.Value(0) != nil {
				t.Errorf("the deadline is %v, %v, the error %v", d, ok, ctx.Err())
			}
			if ctx.timed != nil {
				t.Error("a call that has not waited has a timer")
			}
			look(ctx)
			if took := time.Since(begun); took != time.Second || !errors.Is(ctx.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(ctx), errLate) {
				t.Errorf("it has ended after %v with %v, %v", took, ctx.Err(), context.Cause(ctx))
			}
			begun = time.Now()
		}
	})
}

// A wait ends with what it waits for, with the time of the call, or with its caller.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := &Kind{Cause: errLate}
		begun, never, over := time.Now(), make(chan struct{}), make(chan struct{})
		close(over)
		ctx := calls.New(t.Context(), time.Now().Add(time.Second))
		defer ctx.End()
		if err := Wait(ctx, over); err != nil {
			t.Errorf("it is over: %v", err)
		}
		if err := Wait(ctx, never); !errors.Is(err, errLate) || time.Since(begun) != time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		gone := errors.New("the caller has gone")
		parent, leave := context.WithCancelCause(t.Context())
		ctx = calls.New(parent, time.Now().Add(time.Second))
		defer ctx.End()
		child, end := context.WithCancel(ctx)
		defer end()
		leave(gone)
		if err := Wait(ctx, never); !errors.Is(err, gone) {
			t.Errorf("its caller has left: %v", err)
		}
		if err := Wait(child, never); !errors.Is(err, gone) {
			t.Errorf("the caller of its caller has left: %v", err)
		}
	})
}

// The parent's deadline holds if it is sooner.
func TestDeadlineOfTheParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		ctx := (&Kind{Cause: errLate}).New(parent, time.Now().Add(time.Hour))
		defer ctx.End()
		if d, _ := ctx.Deadline(); time.Until(d) != time.Minute {
			t.Errorf("the deadline is in %v", time.Until(d))
		}
		<-parent.Done()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(ctx), errLate) {
			t.Errorf("it has ended with %v, %v", ctx.Err(), context.Cause(ctx))
		}
	})
}

// A call that has ended ends what still goes by its context, whether it has waited or not.
func TestEnd(t *testing.T) {
	for _, waited := range []bool{false, true} {
		ctx := new(Kind).New(t.Context(), time.Now().Add(time.Hour))
		if waited {
			ctx.Done()
		}
		child, free := context.WithCancel(ctx)
		defer free()
		ctx.End()
		<-ctx.Done()
		<-child.Done()
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("the error is %v", ctx.Err())
		}
	}
}

// What package context does with a context of another make works as with its own.
func TestAsOfPackageContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		parent, stop := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		defer stop()
		leases := new(Kind)
		fresh := func(d time.Duration) *Context { return leases.New(parent, time.Now().Add(d)) }

		c := fresh(time.Second)
		child, cancel := context.WithCancel(c)
		defer cancel()
		if c.Err() != nil || child.Err() != nil || c.Value(key{}) != "v" || child.Value(key{}) != "v" {
			t.Errorf("at first: %v, %v, %v", c.Err(), child.Err(), c.Value(key{}))
		}
		if deadline, ok := child.Deadline(); !ok || !deadline.Equal(time.Now().Add(time.Second)) {
			t.Errorf("deadline %s", deadline)
		}
		<-child.Done()
		if !errors.Is(c.Err(), context.DeadlineExceeded) || !errors.Is(child.Err(), context.DeadlineExceeded) {
			t.Errorf("after the lease: %v, %v", c.Err(), child.Err())
		}
		c.End()

		c = fresh(time.Hour)
		child, cancel = context.WithTimeout(c, time.Minute)
		defer cancel()
		c.End()
		<-child.Done()
		if !errors.Is(c.Err(), context.Canceled) || !errors.Is(child.Err(), context.Canceled) {
			t.Errorf("after the attempt: %v, %v", c.Err(), child.Err())
		}

		c = fresh(time.Hour)
		c.End()
		if <-c.Done(); !errors.Is(c.Err(), context.Canceled) {
			t.Errorf("asked after the attempt: %v", c.Err())
		}

		if c = fresh(-time.Second); !errors.Is(c.Err(), context.DeadlineExceeded) {
			t.Errorf("asked after the lease: %v", c.Err())
		}
		c.End()

		c = fresh(time.Hour)
		called := make(chan struct{})
		context.AfterFunc(c, func() { close(called) })
		stop()
		<-called
		if !errors.Is(c.Err(), context.Canceled) {
			t.Errorf("after the end of the scheduler: %v", c.Err())
		}
		c.End()
	})
}
