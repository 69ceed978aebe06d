package tasks_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
)

func TestLeaseRunsOut(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.topic("x", tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
		r.must(tasks.Request{ID: "t", Topic: "x"})
		ds, err := r.Reserve(t.Context(), "x", 1, 0, time.Minute)
		if err != nil || len(ds) != 1 {
			t.Fatalf("Reserve = %v, %v", ds, err)
		}
		if left := ds[0].LeaseUntil.Sub(r.clock.now()); left != time.Minute {
			t.Errorf("a lease of %v", left)
		}
		pass(time.Minute - time.Millisecond)
		r.wantEnd(recovery.Pending, tasks.Delivering)
		pass(2 * time.Second)
		if task := r.get("t"); task.Attempt != 1 || task.LastError != "the lease ran out" {
			t.Errorf("afterwards %+v", task)
		}
		pass(time.Second)
		if d := r.pull("x", "t")[0]; d.Attempt != 2 {
			t.Errorf("attempt %d", d.Attempt)
		}
		if c, s := r.counts("x"), r.Stats(); c.LeaseExpired != 1 || c.Failed != 1 || s.LeasesReturned != 1 || s.Rescued != 0 {
			t.Errorf("counts %+v, %+v", c, s)
		}
		r.checkConsistency()
	})
}

func TestExtend(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.topic("x", tasks.TopicSettings{Lease: 10 * time.Second})
		d := r.one("t", "x")
		for range 10 {
			pass(8 * time.Second)
			a := r.settle(tasks.Verdict{Verb: tasks.Extend}, d)
			if a.Err != nil || a.LeaseUntil.Sub(r.clock.now()) != 10*time.Second {
				t.Fatalf("Extend: %+v", a)
			}
		}
		r.ack(d)
	})
}

// A lease runs on the monotonic clock: a step of the wall clock does not end it.
func TestLeaseAndClockStep(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		d := r.one("t", "x")
		for _, step := range []time.Duration{time.Hour, -2 * time.Hour} {
			r.clock.step(step)
			pass(5 * time.Second)
			r.wantEnd(recovery.Pending, tasks.Delivering)
		}
		r.ack(d)
	})
}

// A handler that overruns its lease has lost the task: it is delivered again, and what
// the first one says in the end does not count.
func TestHandlerOverrunsItsLease(t *testing.T) {
	for name, end := range map[string]error{"success": nil, "failure": errors.New("late"), "death": tasks.Kill(errors.New("late"))} {
		t.Run(name, func(t *testing.T) {
			bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
				r.topic("x", tasks.TopicSettings{Lease: 10 * time.Second, Concurrency: 2})
				var calls atomic.Int32
				r.handle("x", func(ctx context.Context, d *tasks.Delivery) error {
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
				pass(time.Minute)
				if calls.Load() != 2 {
					t.Errorf("%d deliveries", calls.Load())
				}
				r.wantEnd(recovery.Nowhere, 0)
				if c := r.counts("x"); c.Delivered != 1 || c.Failed != 1 || c.LeaseExpired != 1 || c.Died != 0 {
					t.Errorf("counts %+v", c)
				}
				r.checkConsistency()
			})
		})
	}
}

// A deliverer whose receiver settles by receipt leaves the delivery open.
func TestSettledLater(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		receipts := make(chan tasks.Delivery, 10)
		r.handle("x", func(_ context.Context, d *tasks.Delivery) error {
			receipts <- *d
			if d.ID == "at-once" {
				r.ack(*d) // before the deliverer has returned
			}
			return tasks.ErrLater
		})
		r.must(tasks.Request{ID: "at-once", Topic: "x"})
		r.must(tasks.Request{ID: "t", Topic: "x"})
		pass(time.Second)
		r.wantEnd(recovery.Pending, tasks.Delivering)
		for range 2 {
			if d := <-receipts; d.ID == "t" {
				r.ack(d)
			}
		}
		r.wantEnd(recovery.Nowhere, 0)
		if c := r.counts("x"); c.Delivered != 2 {
			t.Errorf("counts %+v", c)
		}
		r.must(tasks.Request{ID: "lost", Topic: "x"})
		pass(time.Minute)
		if task := r.get("lost"); task.Attempt < 1 || task.LastError != "the lease ran out" {
			t.Errorf("the lease did not run out: %+v", task)
		}
		r.checkConsistency()
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
