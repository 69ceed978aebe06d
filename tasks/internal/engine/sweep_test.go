package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// With a wheel that fires nothing any more, the sweep still finds what is due.
func TestSweepWithoutTheWheel(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Rescues = true
		r.Must(Request{ID: "armed", Topic: "x", Delay: 10 * time.Second})
		r.Engine().Runner.Close()
		r.Must(Request{ID: "unarmed", Topic: "x", Delay: 20 * time.Second})
		for _, id := range []string{"armed", "unarmed"} {
			rig.Pass(9 * time.Second)
			r.Pull("x")
			rig.Pass(2500 * time.Millisecond)
			r.Ack(r.Pull("x", id)[0])
		}
		if n := r.Stats().Rescued; n != 2 || !r.Log.Has("the timing wheel does not fire") {
			t.Errorf("%d rescued, want 2, and a line in the log", n)
		}
	})
}

func TestSweepFindsNothingWithoutAFault(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustHandle("x", func(context.Context, *Delivery) error { return nil })
		for i := range 1000 {
			r.Must(Request{Topic: "x", Delay: time.Duration(i) * 37 * time.Millisecond})
		}
		rig.Pass(time.Minute)
		s := r.Stats()
		if s.Rescued != 0 || s.AuditRepaired != 0 || s.ClockSteps != 0 || s.LeasesReturned != 0 || s.Total.Delivered != 1000 {
			t.Errorf("stats %+v", s)
		}
	})
}

// What tasks take goes into huge pages, where the kernel has some to give.
func TestHugePages(t *testing.T) {
	rig.HugePages(t)
	log := new(rig.Logged)
	s, err := Open(t.Context(), ledgertest.Null{}, Config{SweepEvery: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	request := Request{Topic: "x", Delay: time.Hour, Payload: make([]byte, 32<<10)}
	for range 5000 {
		if _, err := s.Schedule(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	for began := time.Now(); !rig.AskedForHugePages(log); {
		if time.Since(began) > time.Minute {
			t.Fatal("the kernel was not asked for huge pages")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// After a step of the clock, or a suspended machine, what is due starts within one
// period; what is not due on the new clock does not.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		var early, calls atomic.Int32
		r.MustHandle("x", func(_ context.Context, d *Delivery) error {
			calls.Add(1)
			if r.Clock.Now().Before(d.Due) {
				early.Add(1)
			}
			return nil
		})
		after := func(what string, total int32) {
			t.Helper()
			rig.Pass(time.Second + time.Millisecond)
			if n := calls.Load(); n != total {
				t.Fatalf("%s: %d delivered, want %d", what, n, total)
			}
		}
		for _, d := range []time.Duration{time.Minute, time.Hour, 3 * time.Hour} {
			r.Must(Request{Topic: "x", Delay: d})
		}
		rig.Pass(1500 * time.Millisecond)
		r.Clock.Step(90 * time.Minute)
		after("forward", 2)
		r.Clock.Step(-2 * time.Hour)
		after("back", 2)
		rig.Pass(150 * time.Minute)
		after("not yet", 2)
		r.Clock.Step(time.Hour) // the machine has slept
		after("suspended", 3)
		if s := r.Stats(); s.ClockSteps != 3 || !r.Log.Has("the wall clock was set") {
			t.Errorf("%d clock steps noticed, want 3", s.ClockSteps)
		}
		if early.Load() != 0 {
			t.Errorf("%d early", early.Load())
		}
		r.CheckConsistency()
	})
}

// The wall clock is set back while a task is delivered: its next attempt does not come before its
// deadline either, however the first one has failed.
func TestRetryAfterTheClockWasSetBack(t *testing.T) {
	t.Parallel()
	for what, fail := range map[string]func(r *rig.Rig, d Delivery){
		"released":           func(r *rig.Rig, d Delivery) { r.SettleOne(Verdict{Verb: Release}, d) },
		"released with zero": func(r *rig.Rig, d Delivery) { r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Duration(0))}, d) },
		"lease out":          func(*rig.Rig, Delivery) {},
	} {
		t.Run(what, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", TopicSettings{Lease: 10 * time.Second, Retry: Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
				due := r.Must(Request{ID: "t", Topic: "x", Delay: time.Hour}).Due
				rig.Pass(time.Hour)
				d := r.Pull("x", "t")[0]
				r.Clock.Step(-30 * time.Minute)
				rig.Pass(1100 * time.Millisecond) // the sweep notices
				fail(r, d)
				rig.Pass(due.Sub(r.Clock.Now()) - time.Millisecond)
				r.Pull("x")
				rig.Pass(time.Millisecond)
				r.Pull("x", "t")
			})
		})
	}
}

// Memory follows the number of tasks down.
func TestMemoryFalls(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		const n = 20_000
		requests := make([]Request, 0, MaxBatch)
		var ids []string
		for i := range n {
			ids = append(ids, fmt.Sprint("t", i))
			requests = append(requests, Request{ID: ids[i], Topic: "x", Delay: time.Hour, Payload: make([]byte, 200)})
			if len(requests) == cap(requests) {
				_, err := r.ScheduleBatch(t.Context(), requests)
				rig.Want(t, "ScheduleBatch", err, nil)
				requests = requests[:0]
			}
		}
		full := r.Stats()
		for i, id := range ids {
			if i%10 != 0 {
				rig.Want(t, "Cancel", r.Cancel(t.Context(), id), nil)
			}
		}
		rig.Pass(5 * time.Second)
		left := r.Stats()
		if left.Total.Pending != n/10 || left.ArenaBytes > full.ArenaBytes/4 {
			t.Errorf("%d tasks, %d of %d bytes are left", left.Total.Pending, left.ArenaBytes, full.ArenaBytes)
		}
		r.CheckConsistency()
	})
}
