package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// The time of a call runs from its first wait on, and a call that never waits has no timer.
func TestWithinRunsFromTheFirstWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Engine{Config: task.Checked{Config: task.Config{AnswerWithin: time.Second}}}
		ctx, cancel := s.Within(t.Context())
		defer cancel()
		time.Sleep(time.Hour)
		if ctx.(*bounded).timed.Load() != nil || ctx.Err() != nil {
			t.Fatal("a call that has not waited has a timer")
		}
		begun := time.Now()
		<-ctx.Done()
		if took := time.Since(begun); took != time.Second || !errors.Is(context.Cause(ctx), ErrLate) {
			t.Errorf("the first wait has ended after %v with %v", took, context.Cause(ctx))
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
