package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// What a user may rely on, one test for each promise of the README, as far as
// this package keeps it. The others of this package look closer.

func TestPromise1NeverEarly(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		rig.Pass(456789 * time.Nanosecond) // not at the start of a millisecond
		var mu sync.Mutex
		delivered := 0
		check := func(d *tasks.Delivery) {
			mu.Lock()
			defer mu.Unlock()
			delivered++
			if now := r.Clock.Now(); now.Before(d.Due) || now.Before(d.Next) {
				t.Errorf("%s is delivered at %v, due %v, next %v", d.ID, now, d.Due, d.Next)
			}
		}
		r.MustHandle("handled", func(_ context.Context, d *tasks.Delivery) error {
			check(d)
			if d.Attempt < 3 {
				return errors.New("again")
			}
			return nil
		})
		asked := make(map[string]time.Time)
		for i := range 300 {
			due := r.Clock.Now().Add(time.Duration(i*i) * 12345678 * time.Nanosecond)
			id := fmt.Sprint("t", i)
			asked[id] = due
			topic := []string{"handled", "pulled"}[i%2]
			if task := r.Must(tasks.Request{ID: id, Topic: topic, Due: due}); task.Due.Before(due) || task.Due.Sub(due) > time.Millisecond {
				t.Fatalf("asked for %v, it is due %v", due, task.Due)
			}
		}
		for range 30 {
			rig.Pass(time.Minute)
			r.Clock.Step(-20 * time.Second)
			ds, err := r.Reserve(t.Context(), "pulled", tasks.MaxReserve, time.Second, 0)
			rig.Want(t, "Reserve", err, nil)
			for i := range ds {
				check(&ds[i])
				if r.Clock.Now().Before(asked[ds[i].ID]) {
					t.Errorf("%s is before the time that was asked for", ds[i].ID)
				}
				r.Ack(ds[i])
			}
		}
		if delivered != 150+3*150 {
			t.Errorf("%d deliveries", delivered)
		}
	})
}

func TestPromise2AcceptedMeansKept(t *testing.T) {
	t.Parallel()
	for name, options := range rig.Kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rig.New(t, tasks.Config{}, options...)
				accepted := make(map[string]bool)
				for i := range 50 {
					id := fmt.Sprint("t", i)
					switch i % 3 {
					case 0:
						r.Must(tasks.Request{ID: id, Topic: "x", Delay: time.Minute})
					case 1:
						results, err := r.ScheduleBatch(t.Context(), []tasks.Request{{ID: id, Topic: "x"}, {ID: id + "-b", Topic: "x"}})
						if err != nil || results[0].Err != nil || results[1].Err != nil {
							t.Fatal(err, results)
						}
						accepted[id+"-b"] = true
					case 2:
						r.Must(tasks.Request{ID: id, Topic: "x"})
						_, err := r.Replace(t.Context(), tasks.Request{ID: id, Topic: "x", Delay: time.Hour, Payload: []byte("new")})
						rig.Want(t, "Replace", err, nil)
					}
					accepted[id] = true
					r.Crash() // at once
				}
				rig.Pass(2 * time.Hour)
				ds, err := r.Reserve(t.Context(), "x", tasks.MaxReserve, 0, 0)
				rig.Want(t, "Reserve", err, nil)
				for _, d := range ds {
					delete(accepted, d.ID)
				}
				if len(accepted) != 0 {
					t.Errorf("lost: %v", accepted)
				}
				r.CheckConsistency()
			})
		})
	}
}

func TestPromise3AtLeastOnceAndNearlyAlwaysOnce(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		for i := range 30 {
			r.Must(tasks.Request{ID: fmt.Sprintf("t%02d", i), Topic: "x"})
		}
		ds, err := r.Reserve(t.Context(), "x", 20, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		for _, d := range ds[:10] {
			r.Ack(d) // recorded: final
		}
		r.Crash()
		rig.Pass(time.Second)
		again, err := r.Reserve(t.Context(), "x", tasks.MaxReserve, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		if len(again) != 20 {
			t.Fatalf("%d are delivered after the crash; 10 of 30 were acknowledged", len(again))
		}
		for _, d := range ds[10:] { // handed out again since
			rig.Want(t, "Ack", r.SettleOne(tasks.Verdict{Verb: tasks.Ack}, d).Err, tasks.ErrStale)
		}
		for _, d := range again {
			r.Ack(d)
		}
		r.Crash()
		rig.Pass(time.Hour)
		r.Pull("x")
	})
}

func TestPromise4DefiniteCancelAndReschedule(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		var delivered rig.Collection[string]
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			delivered.Add(d.ID)
			return nil
		})
		for _, id := range []string{"cancelled", "moved", "unknown"} {
			r.Must(tasks.Request{ID: id, Topic: "x", Delay: time.Minute})
		}
		for range 2 { // repeating it is safe
			rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		}
		task, err := r.Reschedule(t.Context(), "moved", tasks.Move{Delay: rig.Ptr(time.Hour)})
		rig.Want(t, "Reschedule", err, nil)
		_, release := r.Faulty.Hold(ledgertest.Apply)
		rig.Want(t, "Cancel without an answer", r.Cancel(t.Context(), "unknown"), tasks.ErrUnknown)
		rig.Pass(30 * time.Minute)
		release()
		rig.Pass(time.Minute)
		if len(delivered.List()) != 0 {
			t.Errorf("delivered %v at the old deadline", delivered.List())
		}
		rig.Pass(task.Due.Sub(r.Clock.Now()) + time.Millisecond)
		if !slices.Equal(delivered.List(), []string{"moved"}) {
			t.Errorf("delivered %v", delivered.List())
		}
		for _, id := range []string{"moved", "never-seen"} {
			rig.Want(t, "Cancel", r.Cancel(t.Context(), id), tasks.ErrNotFound)
		}
		r.One("out", "y")
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "out"), tasks.ErrDelivering)
	})
}

func TestPromise5AnOutageLosesNothing(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
		var attempts rig.Collection[int]
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			attempts.Add(d.Attempt)
			if late := r.Clock.Now().Sub(d.Next); late > time.Second {
				t.Errorf("attempt %d is late by %v", d.Attempt, late)
			}
			if d.Attempt < 4 {
				return errors.New("again")
			}
			return nil
		})
		r.Must(tasks.Request{ID: "t", Topic: "x", Delay: time.Minute})
		r.Faulty.Down()
		_, err := r.Schedule(t.Context(), tasks.Request{Topic: "x"})
		if !errors.Is(err, tasks.ErrUnknown) && !errors.Is(err, tasks.ErrUnavailable) {
			t.Errorf("Schedule during the outage = %v", err)
		}
		rig.Pass(10 * time.Minute) // on time, and retried on time
		if !slices.Equal(attempts.List(), []int{1, 2, 3, 4}) {
			t.Errorf("attempts during the outage: %v", attempts.List())
		}
		began := time.Now()
		_, err = r.Schedule(t.Context(), tasks.Request{Topic: "x"})
		rig.Want(t, "Schedule late in the outage", err, tasks.ErrUnavailable)
		if took := time.Since(began); took != 0 {
			t.Errorf("its answer took %v", took)
		}
		if rd := r.Readiness(); rd.LedgerOK || rd.Stalled < 9*time.Minute {
			t.Errorf("readiness %+v", rd)
		}
		r.InLedger("t", recovery.Pending)
		r.Faulty.Heal()
		rig.Pass(2 * time.Second)
		r.InLedger("t", recovery.Nowhere) // finished work is recorded later
		if rd := r.Readiness(); !rd.LedgerOK || !rd.Ready {
			t.Errorf("readiness afterwards %+v", rd)
		}
		r.CheckConsistency()
	})
}

func TestPromise6OverloadIsBounded(t *testing.T) {
	rig.Bubble(t, tasks.Config{MaxPending: 100}, func(t *testing.T, r *rig.Rig) {
		stuck := make(chan struct{})
		r.MustSetTopic("slow", tasks.TopicSettings{Lease: time.Hour})
		r.MustHandle("slow", func(context.Context, *tasks.Delivery) error { <-stuck; return nil })
		var quick rig.Collection[time.Time]
		r.MustHandle("quick", func(context.Context, *tasks.Delivery) error { quick.Add(r.Clock.Now()); return nil })
		accepted := 0
		for i := range 200 {
			_, err := r.Schedule(t.Context(), tasks.Request{ID: fmt.Sprint("t", i), Topic: "slow"})
			switch {
			case err == nil:
				accepted++
			case !errors.Is(err, tasks.ErrOverloaded):
				t.Fatal(err)
			}
		}
		if accepted != 100 {
			t.Errorf("%d accepted", accepted)
		}
		_ = r.Cancel(t.Context(), "t99") // it waits: 64 are being delivered
		task := r.Must(tasks.Request{Topic: "quick"})
		rig.Pass(time.Second)
		if starts := quick.List(); len(starts) != 1 || starts[0].Sub(task.Due) > 10*time.Millisecond {
			t.Errorf("one slow topic has delayed another: %v", starts)
		}
		close(stuck)
		rig.Pass(time.Minute)
		if c := r.Counts("slow"); c.Delivered != 99 {
			t.Errorf("%d of 99 delivered", c.Delivered)
		}
		r.CheckConsistency()
	})
}

func TestPromise7ARestartIsOrderly(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		const n = 500
		for i := range n {
			r.Must(tasks.Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Duration(n-i) * time.Second})
		}
		r.Shut()
		rig.Pass(time.Hour)
		r.Open()
		var mu sync.Mutex
		var dues []time.Time
		running, most := 0, 0
		r.MustSetTopic("x", tasks.TopicSettings{Concurrency: 4})
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			mu.Lock()
			dues = append(dues, d.Due)
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
			return nil
		})
		rig.Pass(10 * time.Millisecond)
		if rd := r.Readiness(); !rd.Ready || rd.Replayed != n {
			t.Errorf("readiness %+v", rd)
		}
		rig.Pass(time.Minute)
		if len(dues) != n || most > 4 || !slices.IsSortedFunc(dues[8:], func(a, b time.Time) int {
			return int(a.Sub(b) / (8 * time.Second)) // those of one moment start in any order
		}) {
			t.Errorf("%d delivered, %d at once, in the order %v", len(dues), most, dues[:20])
		}
	})
}

func TestPromise8ClocksAndVMsMisbehave(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		var delivered rig.Collection[string]
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			if r.Clock.Now().Before(d.Due) {
				t.Errorf("%s is early", d.ID)
			}
			delivered.Add(d.ID)
			return nil
		})
		r.Must(tasks.Request{ID: "a", Topic: "x", Delay: time.Hour})
		r.Must(tasks.Request{ID: "b", Topic: "x", Delay: 2 * time.Hour})
		rig.Pass(100 * time.Millisecond)
		r.Clock.Step(time.Hour)
		rig.Pass(rig.Engine(r.Scheduler).Config.SweepEvery)
		if !slices.Equal(delivered.List(), []string{"a"}) {
			t.Fatalf("one period after the step: %v", delivered.List())
		}
		r.Clock.Step(-3 * time.Hour)
		rig.Pass(3 * time.Hour)
		if len(delivered.List()) != 1 {
			t.Fatalf("not due on the new clock: %v", delivered.List())
		}
		rig.Pass(time.Hour)
		if !slices.Equal(delivered.List(), []string{"a", "b"}) {
			t.Errorf("delivered %v", delivered.List())
		}
	})
}

func TestPromise9BadInputChangesNothing(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(tasks.Request{ID: "t", Topic: "x", Delay: time.Hour})
		d := r.One("out", "x")
		calls := r.Faulty.Calls(ledgertest.Apply)
		before := fmt.Sprint(r.MustGet("t"), r.MustGet("out"), r.Admin().Topics())
		for _, err := range []error{
			func() error {
				_, err := r.Schedule(t.Context(), tasks.Request{ID: "!", Topic: "x"})
				return err
			}(),
			func() error {
				_, err := r.Schedule(t.Context(), tasks.Request{Topic: "new", Delay: -1})
				return err
			}(),
			func() error {
				_, err := r.Reschedule(t.Context(), "t", tasks.Move{Delay: rig.Ptr(-time.Hour)})
				return err
			}(),
			func() error { _, err := r.Replace(t.Context(), tasks.Request{ID: "t"}); return err }(),
			func() error { _, err := r.Reserve(t.Context(), "x", -1, 0, 0); return err }(),
			func() error { _, err := r.Reserve(t.Context(), "x y", 1, 0, 0); return err }(),
			func() error { _, err := r.Settle(t.Context(), tasks.Verdict{}, []string{d.Receipt()}); return err }(),
			func() error {
				_, err := r.SetTopic(t.Context(), "new", tasks.TopicSettings{Lease: 1}, -1)
				return err
			}(),
			func() error {
				_, err := r.SetTopic(t.Context(), "new", tasks.TopicSettings{Kind: tasks.Handler}, -1)
				return err
			}(),
		} {
			rig.Want(t, "bad input", err, tasks.ErrInvalid)
		}
		answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Bury}, []string{"xyz"})
		rig.Want(t, "Settle", err, nil)
		rig.Want(t, "a bad receipt", answers[0].Err, tasks.ErrReceipt)
		if after := fmt.Sprint(r.MustGet("t"), r.MustGet("out"), r.Admin().Topics()); after != before {
			t.Errorf("before %s\nafter %s", before, after)
		}
		if n := r.Faulty.Calls(ledgertest.Apply); n != calls {
			t.Errorf("%d writes", n-calls)
		}
		r.Ack(d)
		r.CheckConsistency()
	})
}
