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
)

// What a user may rely on, one test for each promise of the README, as far as
// this package keeps it. The others of this package look closer.

func TestPromise1NeverEarly(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		pass(456789 * time.Nanosecond) // not at the start of a millisecond
		var mu sync.Mutex
		delivered := 0
		check := func(d *tasks.Delivery) {
			mu.Lock()
			defer mu.Unlock()
			delivered++
			if now := r.clock.now(); now.Before(d.Due) || now.Before(d.Next) {
				t.Errorf("%s is delivered at %v, due %v, next %v", d.ID, now, d.Due, d.Next)
			}
		}
		r.handle("handled", func(_ context.Context, d *tasks.Delivery) error {
			check(d)
			if d.Attempt < 3 {
				return errors.New("again")
			}
			return nil
		})
		asked := make(map[string]time.Time)
		for i := range 300 {
			due := r.clock.now().Add(time.Duration(i*i) * 12345678 * time.Nanosecond)
			id := fmt.Sprint("t", i)
			asked[id] = due
			topic := []string{"handled", "pulled"}[i%2]
			if task := r.must(tasks.Request{ID: id, Topic: topic, Due: due}); task.Due.Before(due) || task.Due.Sub(due) > time.Millisecond {
				t.Fatalf("asked for %v, it is due %v", due, task.Due)
			}
		}
		for range 30 {
			pass(time.Minute)
			r.clock.step(-20 * time.Second)
			ds, err := r.Reserve(t.Context(), "pulled", tasks.MaxReserve, time.Second, 0)
			want(t, "Reserve", err, nil)
			for i := range ds {
				check(&ds[i])
				if r.clock.now().Before(asked[ds[i].ID]) {
					t.Errorf("%s is before the time that was asked for", ds[i].ID)
				}
				r.ack(ds[i])
			}
		}
		if delivered != 150+3*150 {
			t.Errorf("%d deliveries", delivered)
		}
	})
}

func TestPromise2AcceptedMeansKept(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, tasks.Config{}, options...)
				accepted := make(map[string]bool)
				for i := range 50 {
					id := fmt.Sprint("t", i)
					switch i % 3 {
					case 0:
						r.must(tasks.Request{ID: id, Topic: "x", Delay: time.Minute})
					case 1:
						results, err := r.ScheduleBatch(t.Context(), []tasks.Request{{ID: id, Topic: "x"}, {ID: id + "-b", Topic: "x"}})
						if err != nil || results[0].Err != nil || results[1].Err != nil {
							t.Fatal(err, results)
						}
						accepted[id+"-b"] = true
					case 2:
						r.must(tasks.Request{ID: id, Topic: "x"})
						_, err := r.Replace(t.Context(), tasks.Request{ID: id, Topic: "x", Delay: time.Hour, Payload: []byte("new")})
						want(t, "Replace", err, nil)
					}
					accepted[id] = true
					r.crash() // at once
				}
				pass(2 * time.Hour)
				ds, err := r.Reserve(t.Context(), "x", tasks.MaxReserve, 0, 0)
				want(t, "Reserve", err, nil)
				for _, d := range ds {
					delete(accepted, d.ID)
				}
				if len(accepted) != 0 {
					t.Errorf("lost: %v", accepted)
				}
				r.checkConsistency()
			})
		})
	}
}

func TestPromise3AtLeastOnceAndNearlyAlwaysOnce(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		for i := range 30 {
			r.must(tasks.Request{ID: fmt.Sprintf("t%02d", i), Topic: "x"})
		}
		ds, err := r.Reserve(t.Context(), "x", 20, 0, 0)
		want(t, "Reserve", err, nil)
		for _, d := range ds[:10] {
			r.ack(d) // recorded: final
		}
		r.crash()
		pass(time.Second)
		again, err := r.Reserve(t.Context(), "x", tasks.MaxReserve, 0, 0)
		want(t, "Reserve", err, nil)
		if len(again) != 20 {
			t.Fatalf("%d are delivered after the crash; 10 of 30 were acknowledged", len(again))
		}
		for _, d := range ds[10:] { // handed out again since
			want(t, "Ack", r.settle(tasks.Verdict{Verb: tasks.Ack}, d).Err, tasks.ErrStale)
		}
		for _, d := range again {
			r.ack(d)
		}
		r.crash()
		pass(time.Hour)
		r.pull("x")
	})
}

func TestPromise4DefiniteCancelAndReschedule(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		var delivered collection[string]
		r.handle("x", func(_ context.Context, d *tasks.Delivery) error {
			delivered.add(d.ID)
			return nil
		})
		for _, id := range []string{"cancelled", "moved", "unknown"} {
			r.must(tasks.Request{ID: id, Topic: "x", Delay: time.Minute})
		}
		for range 2 { // repeating it is safe
			want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		}
		task, err := r.Reschedule(t.Context(), "moved", tasks.Move{Delay: ptr(time.Hour)})
		want(t, "Reschedule", err, nil)
		_, release := r.faulty.Hold(ledgertest.Apply)
		want(t, "Cancel without an answer", r.Cancel(t.Context(), "unknown"), tasks.ErrUnknown)
		pass(30 * time.Minute)
		release()
		pass(time.Minute)
		if len(delivered.list()) != 0 {
			t.Errorf("delivered %v at the old deadline", delivered.list())
		}
		pass(task.Due.Sub(r.clock.now()) + time.Millisecond)
		if !slices.Equal(delivered.list(), []string{"moved"}) {
			t.Errorf("delivered %v", delivered.list())
		}
		for _, id := range []string{"moved", "never-seen"} {
			want(t, "Cancel", r.Cancel(t.Context(), id), tasks.ErrNotFound)
		}
		r.one("out", "y")
		want(t, "Cancel", r.Cancel(t.Context(), "out"), tasks.ErrDelivering)
	})
}

func TestPromise5AnOutageLosesNothing(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.topic("x", tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
		var attempts collection[int]
		r.handle("x", func(_ context.Context, d *tasks.Delivery) error {
			attempts.add(d.Attempt)
			if late := r.clock.now().Sub(d.Next); late > time.Second {
				t.Errorf("attempt %d is late by %v", d.Attempt, late)
			}
			if d.Attempt < 4 {
				return errors.New("again")
			}
			return nil
		})
		r.must(tasks.Request{ID: "t", Topic: "x", Delay: time.Minute})
		r.faulty.Down()
		_, err := r.Schedule(t.Context(), tasks.Request{Topic: "x"})
		if !errors.Is(err, tasks.ErrUnknown) && !errors.Is(err, tasks.ErrUnavailable) {
			t.Errorf("Schedule during the outage = %v", err)
		}
		pass(10 * time.Minute) // on time, and retried on time
		if !slices.Equal(attempts.list(), []int{1, 2, 3, 4}) {
			t.Errorf("attempts during the outage: %v", attempts.list())
		}
		began := time.Now()
		_, err = r.Schedule(t.Context(), tasks.Request{Topic: "x"})
		want(t, "Schedule late in the outage", err, tasks.ErrUnavailable)
		if took := time.Since(began); took != 0 {
			t.Errorf("its answer took %v", took)
		}
		if rd := r.Readiness(); rd.LedgerOK || rd.Stalled < 9*time.Minute {
			t.Errorf("readiness %+v", rd)
		}
		r.inLedger("t", recovery.Pending)
		r.faulty.Heal()
		pass(2 * time.Second)
		r.inLedger("t", recovery.Nowhere) // finished work is recorded later
		if rd := r.Readiness(); !rd.LedgerOK || !rd.Ready {
			t.Errorf("readiness afterwards %+v", rd)
		}
		r.checkConsistency()
	})
}

func TestPromise6OverloadIsBounded(t *testing.T) {
	bubble(t, tasks.Config{MaxPending: 100}, func(t *testing.T, r *rig) {
		stuck := make(chan struct{})
		r.topic("slow", tasks.TopicSettings{Lease: time.Hour})
		r.handle("slow", func(context.Context, *tasks.Delivery) error { <-stuck; return nil })
		var quick collection[time.Time]
		r.handle("quick", func(context.Context, *tasks.Delivery) error { quick.add(r.clock.now()); return nil })
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
		task := r.must(tasks.Request{Topic: "quick"})
		pass(time.Second)
		if starts := quick.list(); len(starts) != 1 || starts[0].Sub(task.Due) > 10*time.Millisecond {
			t.Errorf("one slow topic has delayed another: %v", starts)
		}
		close(stuck)
		pass(time.Minute)
		if c := r.counts("slow"); c.Delivered != 99 {
			t.Errorf("%d of 99 delivered", c.Delivered)
		}
		r.checkConsistency()
	})
}

func TestPromise7ARestartIsOrderly(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		const n = 500
		for i := range n {
			r.must(tasks.Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Duration(n-i) * time.Second})
		}
		r.shut()
		pass(time.Hour)
		r.open()
		var mu sync.Mutex
		var dues []time.Time
		running, most := 0, 0
		r.topic("x", tasks.TopicSettings{Concurrency: 4})
		r.handle("x", func(_ context.Context, d *tasks.Delivery) error {
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
		pass(10 * time.Millisecond)
		if rd := r.Readiness(); !rd.Ready || rd.Replayed != n {
			t.Errorf("readiness %+v", rd)
		}
		pass(time.Minute)
		if len(dues) != n || most > 4 || !slices.IsSortedFunc(dues[8:], func(a, b time.Time) int {
			return int(a.Sub(b) / (8 * time.Second)) // those of one moment start in any order
		}) {
			t.Errorf("%d delivered, %d at once, in the order %v", len(dues), most, dues[:20])
		}
	})
}

func TestPromise8ClocksAndVMsMisbehave(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		var delivered collection[string]
		r.handle("x", func(_ context.Context, d *tasks.Delivery) error {
			if r.clock.now().Before(d.Due) {
				t.Errorf("%s is early", d.ID)
			}
			delivered.add(d.ID)
			return nil
		})
		r.must(tasks.Request{ID: "a", Topic: "x", Delay: time.Hour})
		r.must(tasks.Request{ID: "b", Topic: "x", Delay: 2 * time.Hour})
		pass(100 * time.Millisecond)
		r.clock.step(time.Hour)
		pass(r.Scheduler.Engine().Config.SweepEvery)
		if !slices.Equal(delivered.list(), []string{"a"}) {
			t.Fatalf("one period after the step: %v", delivered.list())
		}
		r.clock.step(-3 * time.Hour)
		pass(3 * time.Hour)
		if len(delivered.list()) != 1 {
			t.Fatalf("not due on the new clock: %v", delivered.list())
		}
		pass(time.Hour)
		if !slices.Equal(delivered.list(), []string{"a", "b"}) {
			t.Errorf("delivered %v", delivered.list())
		}
	})
}

func TestPromise9BadInputChangesNothing(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.must(tasks.Request{ID: "t", Topic: "x", Delay: time.Hour})
		d := r.one("out", "x")
		calls := r.faulty.Calls(ledgertest.Apply)
		before := fmt.Sprint(r.get("t"), r.get("out"), r.Topics())
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
				_, err := r.Reschedule(t.Context(), "t", tasks.Move{Delay: ptr(-time.Hour)})
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
			want(t, "bad input", err, tasks.ErrInvalid)
		}
		answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Bury}, []string{"xyz"})
		want(t, "Settle", err, nil)
		want(t, "a bad receipt", answers[0].Err, tasks.ErrReceipt)
		if after := fmt.Sprint(r.get("t"), r.get("out"), r.Topics()); after != before {
			t.Errorf("before %s\nafter %s", before, after)
		}
		if n := r.faulty.Calls(ledgertest.Apply); n != calls {
			t.Errorf("%d writes", n-calls)
		}
		r.ack(d)
		r.checkConsistency()
	})
}
