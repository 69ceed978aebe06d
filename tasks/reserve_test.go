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
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

func TestReserveSoonestFirst(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		for _, s := range []int{5, 3, 9, 1, 7} {
			r.must(Request{ID: fmt.Sprint("t", s), Topic: "x", Delay: time.Duration(s) * time.Second})
		}
		pass(8 * time.Second)
		ds, err := r.Reserve(t.Context(), "x", 2, 0, 0)
		if err != nil || len(ds) != 2 || ds[0].ID != "t1" || ds[1].ID != "t3" {
			t.Fatalf("Reserve = %v, %v", ds, err)
		}
		r.pull("x", "t5", "t7")
		r.pull("nobody")
	})
}

// Receivers that wait are served in the order in which they came, each task wakes
// one of them, and none is left asleep beside a ready task.
func TestReserveIsFair(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		const receivers = 10
		served := make(chan int, receivers)
		for i := range receivers {
			go func() {
				ds, err := r.Reserve(t.Context(), "x", 1, time.Minute, 0)
				if err != nil || len(ds) != 1 {
					t.Errorf("receiver %d: %d, %v", i, len(ds), err)
				}
				served <- i
			}()
			synctest.Wait()
		}
		for i := 0; i < receivers; i += 2 {
			r.must(Request{Topic: "x"})
			r.must(Request{Topic: "x"})
			synctest.Wait()
			// The two that were woken may say so in either order.
			if a, b := <-served, <-served; min(a, b) != i || max(a, b) != i+1 {
				t.Fatalf("receivers %d and %d are served, before %d and %d", a, b, i, i+1)
			}
		}
	})
}

func TestReserveWaits(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		began := time.Now()
		ds, err := r.Reserve(t.Context(), "x", 1, 20*time.Second, 0)
		if err != nil || len(ds) != 0 || time.Since(began) != 20*time.Second {
			t.Errorf("%v, %v after %v", ds, err, time.Since(began))
		}
		r.must(Request{ID: "t", Topic: "x", Delay: 5 * time.Second})
		began = time.Now()
		ds, err = r.Reserve(t.Context(), "x", 1, time.Minute, 0)
		if err != nil || len(ds) != 1 || time.Since(began) > 5*time.Second+2*time.Millisecond {
			t.Errorf("%v, %v after %v", ds, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ds, err = r.Reserve(ctx, "x", 1, time.Minute, 0)
		if err != nil || len(ds) != 0 {
			t.Errorf("given up: %v, %v", ds, err)
		}
	})
}

// A receiver that gives up just as it is woken passes the task on.
func TestReserveGivenUpWhenWoken(t *testing.T) {
	for range 20 {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			got := make(chan int, 2)
			for _, wait := range []time.Duration{time.Second, time.Minute} {
				go func() {
					ds, _ := r.Reserve(t.Context(), "x", 1, wait, 0)
					for _, d := range ds { // or the other one gets it when its lease is over
						_, _ = r.Settle(t.Context(), Verdict{Verb: Ack}, []string{d.Receipt()})
					}
					got <- len(ds)
				}()
				synctest.Wait()
			}
			r.must(Request{Topic: "x", Delay: time.Second}) // due as the first one gives up
			pass(2 * time.Second)
			if len(got) == 0 || <-got+<-got != 1 {
				t.Fatal("the task woke a caller that had gone")
			}
		})
	}
}

func TestReturn(t *testing.T) {
	for _, counted := range []bool{false, true} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			r.topic("x", TopicSettings{CountCrashes: counted})
			d := r.one("t", "x")
			r.Return([]Delivery{d})
			r.wantEnd(recovery.Pending, Ready)
			again := r.pull("x", "t")[0]
			if again.Attempt != 1 {
				t.Errorf("attempt %d after a return", again.Attempt)
			}
			r.Return([]Delivery{d}) // once is enough
			r.wantEnd(recovery.Pending, Delivering)
			r.ack(again)
			r.Return([]Delivery{again})
			r.wantEnd(recovery.Nowhere, 0)
			r.checkConsistency()
		})
	}
}

func TestMaxInFlight(t *testing.T) {
	bubble(t, Config{MaxInFlight: 3}, func(t *testing.T, r *rig) {
		for i := range 5 {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		ds := r.pull("x", "t0", "t1", "t2")
		_, err := r.Reserve(t.Context(), "x", 1, time.Minute, 0)
		want(t, "Reserve", err, ErrOverloaded)
		r.ack(ds[0])
		r.pull("x", "t3")
		r.checkConsistency()
	})
}

// Schedules that wait for the ledger are bounded too.
func TestMaxInFlightSchedules(t *testing.T) {
	bubble(t, Config{MaxInFlight: 3}, func(t *testing.T, r *rig) {
		_, release := r.faulty.Hold(ledgertest.Apply)
		answers := make(chan error, 10)
		for range cap(answers) {
			go func() { _, err := r.Schedule(t.Context(), Request{Topic: "x"}); answers <- err }()
		}
		pass(time.Second)
		release()
		var accepted, refused int
		for range cap(answers) {
			switch err := <-answers; {
			case err == nil:
				accepted++
			case errors.Is(err, ErrOverloaded):
				refused++
			default:
				t.Error(err)
			}
		}
		if accepted != 3 || refused != 7 {
			t.Errorf("%d accepted, %d refused", accepted, refused)
		}
		r.checkConsistency()
	})
}

func TestMaxPending(t *testing.T) {
	bubble(t, Config{MaxPending: 3}, func(t *testing.T, r *rig) {
		for i := range 3 {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		}
		_, err := r.Schedule(t.Context(), Request{Topic: "x"})
		want(t, "Schedule", err, ErrOverloaded)
		results, err := r.ScheduleBatch(t.Context(), []Request{{ID: "t0", Topic: "x", Delay: time.Hour}, {Topic: "x"}})
		want(t, "ScheduleBatch", err, nil)
		want(t, "a repeated one", results[0].Err, nil)
		want(t, "a new one", results[1].Err, ErrOverloaded)
		_, err = r.Reschedule(t.Context(), "t0", Move{Delay: ptr(time.Minute)})
		want(t, "Reschedule", err, nil)
		r.restart()
		pass(time.Second)
		if c := r.counts("x"); c.Pending != 3 {
			t.Errorf("%d are kept over a restart", c.Pending)
		}
		want(t, "Cancel", r.Cancel(t.Context(), "t0"), nil)
		r.must(Request{Topic: "x"})
	})
}

// One topic whose receivers hold all that may be in flight does not stop the handlers
// of another.
func TestPulledTopicDoesNotDelayHandlers(t *testing.T) {
	bubble(t, Config{MaxInFlight: 2}, func(t *testing.T, r *rig) {
		var handled collection[string]
		r.handle("y", func(_ context.Context, d *Delivery) error { handled.add(d.ID); return nil })
		for i := range 2 {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		r.pull("x", "t0", "t1")
		r.must(Request{ID: "h", Topic: "y"})
		pass(5 * time.Second)
		if !slices.Equal(handled.list(), []string{"h"}) {
			t.Errorf("handled %v", handled.list())
		}
	})
}

// A receiver that has to pass over many tasks gets none of a topic that was given another
// way of delivery meanwhile.
func TestReserveAcrossAChangeOfWay(t *testing.T) {
	var r *rig
	change := sync.OnceFunc(func() {
		set := to("rome")
		set.Paused = true
		r.topic("x", set)
	})
	cfg := Config{Ways: []Way{&postal{}}, Observer: observerFunc(func(e Event) {
		if e.Kind == EventSkipped {
			change()
		}
	})}
	bubble(t, cfg, func(t *testing.T, rig *rig) {
		r = rig
		for range engine.AtOnce {
			r.must(Request{Topic: "x", MaxLateness: time.Second})
		}
		pass(2 * time.Second)
		r.must(Request{ID: "t", Topic: "x"})
		ds, err := r.Reserve(t.Context(), "x", 1, time.Second, 0)
		if !errors.Is(err, ErrHandled) {
			t.Errorf("reserved %v, %v", ds, err)
		}
		if task := r.get("t"); task.State != Ready {
			t.Errorf("it is %v", task.State)
		}
		pass(time.Second) // until those that were skipped are forgotten
		r.checkConsistency()
	})
}

type observerFunc func(Event)

func (f observerFunc) Observe(e Event) { f(e) }
