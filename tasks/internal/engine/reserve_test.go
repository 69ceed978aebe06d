package engine_test

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
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

func TestReserveSoonestFirst(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		for _, s := range []int{5, 3, 9, 1, 7} {
			r.Must(Request{ID: fmt.Sprint("t", s), Topic: "x", Delay: time.Duration(s) * time.Second})
		}
		rig.Pass(8 * time.Second)
		ds, err := r.Reserve(t.Context(), "x", 2, 0, 0)
		if err != nil || len(ds) != 2 || ds[0].ID != "t1" || ds[1].ID != "t3" {
			t.Fatalf("Reserve = %v, %v", ds, err)
		}
		r.Pull("x", "t5", "t7")
		r.Pull("nobody")
	})
}

// Receivers that wait are served in the order in which they came, each task wakes
// one of them, and none is left asleep beside a ready task.
func TestReserveIsFair(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
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
			r.Must(Request{Topic: "x"})
			r.Must(Request{Topic: "x"})
			synctest.Wait()
			// The two that were woken may say so in either order.
			if a, b := <-served, <-served; min(a, b) != i || max(a, b) != i+1 {
				t.Fatalf("receivers %d and %d are served, before %d and %d", a, b, i, i+1)
			}
		}
	})
}

func TestReserveWaits(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		began := time.Now()
		ds, err := r.Reserve(t.Context(), "x", 1, 20*time.Second, 0)
		if err != nil || len(ds) != 0 || time.Since(began) != 20*time.Second {
			t.Errorf("%v, %v after %v", ds, err, time.Since(began))
		}
		r.Must(Request{ID: "t", Topic: "x", Delay: 5 * time.Second})
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
		rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
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
			r.Must(Request{Topic: "x", Delay: time.Second}) // due as the first one gives up
			rig.Pass(2 * time.Second)
			if len(got) == 0 || <-got+<-got != 1 {
				t.Fatal("the task woke a caller that had gone")
			}
		})
	}
}

func TestReturn(t *testing.T) {
	for _, counted := range []bool{false, true} {
		rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
			r.MustSetTopic("x", TopicSettings{CountCrashes: counted})
			d := r.One("t", "x")
			r.Admin().Return([]Delivery{d})
			wantEnd(r, recovery.Pending, Ready)
			again := r.Pull("x", "t")[0]
			if again.Attempt != 1 {
				t.Errorf("attempt %d after a return", again.Attempt)
			}
			r.Admin().Return([]Delivery{d}) // once is enough
			wantEnd(r, recovery.Pending, Delivering)
			r.Ack(again)
			r.Admin().Return([]Delivery{again})
			wantEnd(r, recovery.Nowhere, 0)
			r.CheckConsistency()
		})
	}
}

func TestMaxInFlight(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 3}, func(t *testing.T, r *rig.Rig) {
		for i := range 5 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		ds := r.Pull("x", "t0", "t1", "t2")
		_, err := r.Reserve(t.Context(), "x", 1, time.Minute, 0)
		rig.Want(t, "Reserve", err, ErrOverloaded)
		r.Ack(ds[0])
		r.Pull("x", "t3")
		r.CheckConsistency()
	})
}

// Schedules that wait for the ledger are bounded too.
func TestMaxInFlightSchedules(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 3}, func(t *testing.T, r *rig.Rig) {
		_, release := r.Faulty.Hold(ledgertest.Apply)
		answers := make(chan error, 10)
		for range cap(answers) {
			go func() { _, err := r.Schedule(t.Context(), Request{Topic: "x"}); answers <- err }()
		}
		rig.Pass(time.Second)
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
		r.CheckConsistency()
	})
}

func TestMaxPending(t *testing.T) {
	rig.Bubble(t, Config{MaxPending: 3}, func(t *testing.T, r *rig.Rig) {
		for i := range 3 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
		}
		_, err := r.Schedule(t.Context(), Request{Topic: "x"})
		rig.Want(t, "Schedule", err, ErrOverloaded)
		results, err := r.ScheduleBatch(t.Context(), []Request{{ID: "t0", Topic: "x", Delay: time.Hour}, {Topic: "x"}})
		rig.Want(t, "ScheduleBatch", err, nil)
		rig.Want(t, "a repeated one", results[0].Err, nil)
		rig.Want(t, "a new one", results[1].Err, ErrOverloaded)
		_, err = r.Reschedule(t.Context(), "t0", Move{Delay: rig.Ptr(time.Minute)})
		rig.Want(t, "Reschedule", err, nil)
		r.Restart()
		rig.Pass(time.Second)
		if c := r.Counts("x"); c.Pending != 3 {
			t.Errorf("%d are kept over a restart", c.Pending)
		}
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t0"), nil)
		r.Must(Request{Topic: "x"})
	})
}

// One topic whose receivers hold all that may be in flight does not stop the handlers
// of another.
func TestPulledTopicDoesNotDelayHandlers(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 2}, func(t *testing.T, r *rig.Rig) {
		var handled rig.Collection[string]
		r.MustHandle("y", func(_ context.Context, d *Delivery) error { handled.Add(d.ID); return nil })
		for i := range 2 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		r.Pull("x", "t0", "t1")
		r.Must(Request{ID: "h", Topic: "y"})
		rig.Pass(5 * time.Second)
		if !slices.Equal(handled.List(), []string{"h"}) {
			t.Errorf("handled %v", handled.List())
		}
	})
}

// A receiver that has to pass over many tasks gets none of a topic that was given another
// way of delivery meanwhile.
func TestReserveAcrossAChangeOfWay(t *testing.T) {
	var r *rig.Rig
	change := sync.OnceFunc(func() {
		set := to("rome")
		set.Paused = true
		r.MustSetTopic("x", set)
	})
	cfg := Config{Ways: []Way{&rig.Postal{}}, Observer: rig.ObserverFunc(func(e Event) {
		if e.Kind == EventSkipped {
			change()
		}
	})}
	rig.Bubble(t, cfg, func(t *testing.T, own *rig.Rig) {
		r = own
		for range engine.AtOnce {
			r.Must(Request{Topic: "x", MaxLateness: time.Second})
		}
		rig.Pass(2 * time.Second)
		r.Must(Request{ID: "t", Topic: "x"})
		ds, err := r.Reserve(t.Context(), "x", 1, time.Second, 0)
		if !errors.Is(err, ErrHandled) {
			t.Errorf("reserved %v, %v", ds, err)
		}
		if task := r.MustGet("t"); task.State != Ready {
			t.Errorf("it is %v", task.State)
		}
		rig.Pass(time.Second) // until those that were skipped are forgotten
		r.CheckConsistency()
	})
}
