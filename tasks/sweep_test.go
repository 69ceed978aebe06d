package tasks_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
)

// With a wheel that fires nothing any more, the sweep still finds what is due.
func TestSweepWithoutTheWheel(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.rescues = true
		r.must(Request{ID: "armed", Topic: "x", Delay: 10 * time.Second})
		r.Engine().Runner.Close()
		r.must(Request{ID: "unarmed", Topic: "x", Delay: 20 * time.Second})
		for _, id := range []string{"armed", "unarmed"} {
			pass(9 * time.Second)
			r.pull("x")
			pass(2500 * time.Millisecond)
			r.ack(r.pull("x", id)[0])
		}
		if n := r.Stats().Rescued; n != 2 || !r.log.has("the timing wheel does not fire") {
			t.Errorf("%d rescued, want 2, and a line in the log", n)
		}
	})
}

func TestSweepFindsNothingWithoutAFault(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.handle("x", func(context.Context, *Delivery) error { return nil })
		for i := range 1000 {
			r.must(Request{Topic: "x", Delay: time.Duration(i) * 37 * time.Millisecond})
		}
		pass(time.Minute)
		s := r.Stats()
		if s.Rescued != 0 || s.AuditRepaired != 0 || s.ClockSteps != 0 || s.LeasesReturned != 0 || s.Total.Delivered != 1000 {
			t.Errorf("stats %+v", s)
		}
	})
}

// hugePages skips a test where the kernel has no huge pages to give.
func hugePages(t *testing.T) {
	t.Helper()
	const settings = "/sys/kernel/mm/transparent_hugepage/"
	size, _ := os.ReadFile(settings + "hpage_pmd_size")
	enabled, _ := os.ReadFile(settings + "enabled")
	if string(size) != "2097152\n" || strings.Contains(string(enabled), "[never]") {
		t.Skip("the kernel has no huge pages of 2 MiB")
	}
}

// askedForHugePages reports whether a node has told of what the kernel has answered.
func askedForHugePages(log *logged) bool {
	return log.has("memory of tasks is kept in huge pages") || log.has("the kernel gives no huge pages")
}

// What tasks take goes into huge pages, where the kernel has some to give.
func TestHugePages(t *testing.T) {
	hugePages(t)
	log := new(logged)
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
	for began := time.Now(); !askedForHugePages(log); {
		if time.Since(began) > time.Minute {
			t.Fatal("the kernel was not asked for huge pages")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// After a step of the clock, or a suspended machine, what is due starts within one
// period; what is not due on the new clock does not.
func TestClockSteps(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		var early, calls atomic.Int32
		r.handle("x", func(_ context.Context, d *Delivery) error {
			calls.Add(1)
			if r.clock.now().Before(d.Due) {
				early.Add(1)
			}
			return nil
		})
		after := func(what string, total int32) {
			t.Helper()
			pass(time.Second + time.Millisecond)
			if n := calls.Load(); n != total {
				t.Fatalf("%s: %d delivered, want %d", what, n, total)
			}
		}
		for _, d := range []time.Duration{time.Minute, time.Hour, 3 * time.Hour} {
			r.must(Request{Topic: "x", Delay: d})
		}
		pass(1500 * time.Millisecond)
		r.clock.step(90 * time.Minute)
		after("forward", 2)
		r.clock.step(-2 * time.Hour)
		after("back", 2)
		pass(150 * time.Minute)
		after("not yet", 2)
		r.clock.step(time.Hour) // the machine has slept
		after("suspended", 3)
		if s := r.Stats(); s.ClockSteps != 3 || !r.log.has("the wall clock was set") {
			t.Errorf("%d clock steps noticed, want 3", s.ClockSteps)
		}
		if early.Load() != 0 {
			t.Errorf("%d early", early.Load())
		}
		r.checkConsistency()
	})
}

// The wall clock is set back while a task is delivered: its next attempt does not come before its
// deadline either, however the first one has failed.
func TestRetryAfterTheClockWasSetBack(t *testing.T) {
	for what, fail := range map[string]func(r *rig, d Delivery){
		"released":           func(r *rig, d Delivery) { r.settle(Verdict{Verb: Release}, d) },
		"released with zero": func(r *rig, d Delivery) { r.settle(Verdict{Verb: Release, Delay: ptr(time.Duration(0))}, d) },
		"lease out":          func(*rig, Delivery) {},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.topic("x", TopicSettings{Lease: 10 * time.Second, Retry: Retry{MinBackoff: time.Second, MaxBackoff: time.Second}})
				due := r.must(Request{ID: "t", Topic: "x", Delay: time.Hour}).Due
				pass(time.Hour)
				d := r.pull("x", "t")[0]
				r.clock.step(-30 * time.Minute)
				pass(1100 * time.Millisecond) // the sweep notices
				fail(r, d)
				pass(due.Sub(r.clock.now()) - time.Millisecond)
				r.pull("x")
				pass(time.Millisecond)
				r.pull("x", "t")
			})
		})
	}
}

// Memory follows the number of tasks down.
func TestMemoryFalls(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		const n = 20_000
		requests := make([]Request, 0, MaxBatch)
		var ids []string
		for i := range n {
			ids = append(ids, fmt.Sprint("t", i))
			requests = append(requests, Request{ID: ids[i], Topic: "x", Delay: time.Hour, Payload: make([]byte, 200)})
			if len(requests) == cap(requests) {
				_, err := r.ScheduleBatch(t.Context(), requests)
				want(t, "ScheduleBatch", err, nil)
				requests = requests[:0]
			}
		}
		full := r.Stats()
		for i, id := range ids {
			if i%10 != 0 {
				want(t, "Cancel", r.Cancel(t.Context(), id), nil)
			}
		}
		pass(5 * time.Second)
		left := r.Stats()
		if left.Total.Pending != n/10 || left.ArenaBytes > full.ArenaBytes/4 {
			t.Errorf("%d tasks, %d of %d bytes are left", left.Total.Pending, left.ArenaBytes, full.ArenaBytes)
		}
		r.checkConsistency()
	})
}
