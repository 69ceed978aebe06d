package engine_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A touchy error cannot say what it is unless there is one.
type touchy struct{ text string }

func (e *touchy) Error() string { return e.text }

// Whatever a handler does in place of returning a proper error is one failed attempt:
// the process goes on, and so does its topic.
func TestImproperHandlers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f     tasks.HandlerFunc
		state tasks.State
		text  string
	}{
		"Kill of nil": {
			func(context.Context, *tasks.Delivery) error { return tasks.Kill(nil) },
			tasks.Dead, "no reason given",
		},
		"RetryAfter of nil": {
			func(context.Context, *tasks.Delivery) error { return tasks.RetryAfter(nil, time.Hour) },
			tasks.Pending, "no reason given",
		},
		"typed nil": {
			func(context.Context, *tasks.Delivery) error { var e *touchy; return e },
			tasks.Pending, "panic: runtime error: invalid memory address or nil pointer dereference",
		},
		"Kill of a typed nil": {
			func(context.Context, *tasks.Delivery) error { var e *touchy; return tasks.Kill(e) },
			tasks.Pending, "panic: runtime error: invalid memory address or nil pointer dereference",
		},
		"Goexit": {
			func(context.Context, *tasks.Delivery) error { runtime.Goexit(); return nil },
			tasks.Pending, "the handler ended its goroutine",
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", tasks.TopicSettings{Concurrency: 1, Retry: tasks.Retry{MinBackoff: time.Hour, MaxBackoff: time.Hour}})
				r.MustHandle("x", func(ctx context.Context, d *tasks.Delivery) error {
					if d.ID == "t" && d.Attempt == 1 {
						return c.f(ctx, d)
					}
					return nil
				})
				r.Must(tasks.Request{ID: "t", Topic: "x"})
				r.Must(tasks.Request{ID: "next", Topic: "x"})
				rig.Pass(time.Millisecond)
				if task := r.MustGet("t"); task.State != c.state || task.LastError != c.text || task.Attempt != 1 {
					t.Errorf("%v after %d attempts: %q", task.State, task.Attempt, task.LastError)
				}
				r.InLedger("next", recovery.Nowhere)
				if counts := r.Counts("x"); counts.Failed != 1 || counts.Delivered != 1 {
					t.Errorf("counts %+v", counts)
				}
				rig.Pass(2 * time.Hour)
				if c.state != tasks.Dead {
					r.InLedger("t", recovery.Nowhere)
				}
				r.CheckConsistency()
			})
		})
	}
}

// A handler that ends its goroutine each time takes no worker with it.
func TestGoexitKeepsItsPlace(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Concurrency: 2, Retry: tasks.Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			if d.Attempt <= 3 {
				runtime.Goexit()
			}
			return nil
		})
		for range 10 {
			r.Must(tasks.Request{Topic: "x"})
		}
		rig.Pass(5 * time.Second)
		if c := r.Counts("x"); c.Delivered != 10 || c.Failed != 30 || c.LeaseExpired != 0 {
			t.Errorf("counts %+v", c)
		}
		r.CheckConsistency()
	})
}
