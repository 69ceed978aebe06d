package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A call that never waits has no timer, and yet a deadline.
func TestWithinStartsItsTimerAtTheFirstWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Engine{Config: task.Checked{Config: task.Config{AnswerWithin: time.Second}}}
		begun := time.Now()
		for _, look := range []func(context.Context){
			func(ctx context.Context) { <-ctx.Done() },
			func(context.Context) { time.Sleep(time.Second) },
		} {
			ctx, cancel := s.Within(t.Context())
			defer cancel()
			if d, ok := ctx.Deadline(); !ok || d.Sub(begun) != time.Second || ctx.Err() != nil || ctx.Value(0) != nil {
				t.Errorf("the deadline is %v, %v, the error %v", d, ok, ctx.Err())
			}
			if ctx.(*bounded).timed != nil {
				t.Error("a call that has not waited has a timer")
			}
			look(ctx)
			if took := time.Since(begun); took != time.Second || !errors.Is(ctx.Err(), context.DeadlineExceeded) || !errors.Is(context.Cause(ctx), ErrLate) {
				t.Errorf("it has ended after %v with %v, %v", took, ctx.Err(), context.Cause(ctx))
			}
			begun = time.Now()
		}
	})
}

// A wait ends with what it waits for, with the time of the call, or with its caller.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Engine{Config: task.Checked{Config: task.Config{AnswerWithin: time.Second}}}
		begun, never, over := time.Now(), make(chan struct{}), make(chan struct{})
		close(over)
		ctx, cancel := s.Within(t.Context())
		defer cancel()
		if err := wait(ctx, over); err != nil {
			t.Errorf("it is over: %v", err)
		}
		if err := wait(ctx, never); !errors.Is(err, ErrLate) || time.Since(begun) != time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		gone := errors.New("the caller has gone")
		parent, leave := context.WithCancelCause(t.Context())
		ctx, cancel = s.Within(parent)
		defer cancel()
		child, end := context.WithCancel(ctx)
		defer end()
		leave(gone)
		if err := wait(ctx, never); !errors.Is(err, gone) {
			t.Errorf("its caller has left: %v", err)
		}
		if err := wait(child, never); !errors.Is(err, gone) {
			t.Errorf("the caller of its caller has left: %v", err)
		}
	})
}

// The parent's deadline holds if it is sooner.
func TestWithinKeepsTheDeadlineOfItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()
		ctx, cancel := (&Engine{Config: task.Checked{Config: task.Config{AnswerWithin: time.Hour}}}).Within(parent)
		defer cancel()
		if d, _ := ctx.Deadline(); time.Until(d) != time.Minute {
			t.Errorf("the deadline is in %v", time.Until(d))
		}
		<-parent.Done()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(context.Cause(ctx), ErrLate) {
			t.Errorf("it has ended with %v, %v", ctx.Err(), context.Cause(ctx))
		}
	})
}

// A call that has ended ends what still goes by its context, whether it has waited or not.
func TestWithinEndsWithItsCall(t *testing.T) {
	for _, waited := range []bool{false, true} {
		ctx, cancel := (&Engine{Config: task.Checked{Config: task.Config{AnswerWithin: time.Hour}}}).Within(t.Context())
		if waited {
			ctx.Done()
		}
		child, free := context.WithCancel(ctx)
		defer free()
		cancel()
		<-ctx.Done()
		<-child.Done()
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("the error is %v", ctx.Err())
		}
	}
}
