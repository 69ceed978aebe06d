package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

func TestLeaseRunsOut(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
		r.Must(tasks.Request{ID: "t", Topic: "x"})
		ds, err := r.Reserve(t.Context(), "x", 1, 0, time.Minute)
		if err != nil || len(ds) != 1 {
			t.Fatalf("Reserve = %v, %v", ds, err)
		}
		if left := ds[0].LeaseUntil.Sub(r.Clock.Now()); left != time.Minute {
			t.Errorf("a lease of %v", left)
		}
		rig.Pass(time.Minute - time.Millisecond)
		wantEnd(r, recovery.Pending, tasks.Delivering)
		rig.Pass(2 * time.Second)
		if task := r.MustGet("t"); task.Attempt != 1 || task.LastError != "the lease ran out" {
			t.Errorf("afterwards %+v", task)
		}
		rig.Pass(time.Second)
		if d := r.Pull("x", "t")[0]; d.Attempt != 2 {
			t.Errorf("attempt %d", d.Attempt)
		}
		if c, s := r.Counts("x"), r.Stats(); c.LeaseExpired != 1 || c.Failed != 1 || s.LeasesReturned != 1 || s.Rescued != 0 {
			t.Errorf("counts %+v, %+v", c, s)
		}
		r.CheckConsistency()
	})
}

func TestExtend(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Lease: 10 * time.Second})
		d := r.One("t", "x")
		for range 10 {
			rig.Pass(8 * time.Second)
			a := r.SettleOne(tasks.Verdict{Verb: tasks.Extend}, d)
			if a.Err != nil || a.LeaseUntil.Sub(r.Clock.Now()) != 10*time.Second {
				t.Fatalf("Extend: %+v", a)
			}
		}
		r.Ack(d)
	})
}

// A lease runs on the monotonic clock: a step of the wall clock does not end it.
func TestLeaseAndClockStep(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		for _, step := range []time.Duration{time.Hour, -2 * time.Hour} {
			r.Clock.Step(step)
			rig.Pass(5 * time.Second)
			wantEnd(r, recovery.Pending, tasks.Delivering)
		}
		r.Ack(d)
	})
}

// A handler that overruns its lease has lost the task: it is delivered again, and what
// the first one says in the end does not count.
func TestHandlerOverrunsItsLease(t *testing.T) {
	for name, end := range map[string]error{"success": nil, "failure": errors.New("late"), "death": tasks.Kill(errors.New("late"))} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", tasks.TopicSettings{Lease: 10 * time.Second, Concurrency: 2})
				var calls atomic.Int32
				r.MustHandle("x", func(ctx context.Context, d *tasks.Delivery) error {
					calls.Add(1)
					if d.Attempt > 1 {
						time.Sleep(5 * time.Second)
						return nil
					}
					<-ctx.Done()
					if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
						t.Errorf("its context ended with %v", ctx.Err())
					}
					time.Sleep(5 * time.Second)
					return end
				})
				dueNow(r)
				rig.Pass(time.Minute)
				if calls.Load() != 2 {
					t.Errorf("%d deliveries", calls.Load())
				}
				wantEnd(r, recovery.Nowhere, 0)
				if c := r.Counts("x"); c.Delivered != 1 || c.Failed != 1 || c.LeaseExpired != 1 || c.Died != 0 {
					t.Errorf("counts %+v", c)
				}
				r.CheckConsistency()
			})
		})
	}
}

// A deliverer whose receiver settles by receipt leaves the delivery open.
func TestSettledLater(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		receipts := make(chan tasks.Delivery, 10)
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			receipts <- *d
			if d.ID == "at-once" {
				r.Ack(*d) // before the deliverer has returned
			}
			return tasks.ErrLater
		})
		r.Must(tasks.Request{ID: "at-once", Topic: "x"})
		r.Must(tasks.Request{ID: "t", Topic: "x"})
		rig.Pass(time.Second)
		wantEnd(r, recovery.Pending, tasks.Delivering)
		for range 2 {
			if d := <-receipts; d.ID == "t" {
				r.Ack(d)
			}
		}
		wantEnd(r, recovery.Nowhere, 0)
		if c := r.Counts("x"); c.Delivered != 2 {
			t.Errorf("counts %+v", c)
		}
		r.Must(tasks.Request{ID: "lost", Topic: "x"})
		rig.Pass(time.Minute)
		if task := r.MustGet("lost"); task.Attempt < 1 || task.LastError != "the lease ran out" {
			t.Errorf("the lease did not run out: %+v", task)
		}
		r.CheckConsistency()
	})
}

func TestBackoff(t *testing.T) {
	r := tasks.Retry{MaxAttempts: 20, MinBackoff: time.Second, MaxBackoff: 10 * time.Minute}
	for attempt, high := range map[uint32]time.Duration{1: 2 * time.Second, 2: 4 * time.Second, 5: 32 * time.Second, 10: 10 * time.Minute, 1000: 10 * time.Minute, 1 << 31: 10 * time.Minute} {
		// Full jitter: the draws fill all of the range.
		const draws, bins = 4000, 8
		var seen [bins]int
		for range draws {
			d := r.Pause(attempt)
			if d < time.Second || d > high {
				t.Fatalf("after attempt %d: %v, want from 1s to %v", attempt, d, high)
			}
			seen[min(bins-1, int(bins*(d-time.Second)/(high-time.Second+1)))]++
		}
		for i, n := range seen {
			if n < draws/bins/2 {
				t.Errorf("after attempt %d: %d of %d in part %d of %d", attempt, n, draws, i, bins)
			}
		}
	}
}

func TestBackoffBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Int64Range(int64(time.Millisecond), int64(24*time.Hour)).Draw(t, "min")
		high := rapid.Int64Range(low, int64(30*24*time.Hour)).Draw(t, "max")
		r := tasks.Retry{MinBackoff: time.Duration(low), MaxBackoff: time.Duration(high)}
		if d := r.Pause(rapid.Uint32().Draw(t, "attempt")); d < r.MinBackoff || d > r.MaxBackoff {
			t.Fatalf("%v is not from %v to %v", d, r.MinBackoff, r.MaxBackoff)
		}
	})
}
