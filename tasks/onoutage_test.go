package tasks_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// A node that may have lost what it held answers nothing about a task, whatever it does
// with deliveries.
func TestUnsureAnswersNothing(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 1, Config{})
		f.join("b", 1, Config{})
		id, open := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour}), a.create(Request{ID: a.idAt(0), Topic: "y"})
		d := a.pullOwn("y", open)[0]
		a.member.Uncertain(true)
		ctx := t.Context()
		for what, err := range map[string]error{
			"Get":         func() error { _, err := a.Engine().Get(ctx, id); return err }(),
			"Get unknown": func() error { _, err := a.Engine().Get(ctx, "nobody"); return err }(),
			"Cancel":      a.Cancel(ctx, id),
			"Fire":        func() error { _, err := a.Fire(ctx, id); return err }(),
			"Reschedule":  func() error { _, err := a.Reschedule(ctx, id, Move{Delay: ptr(time.Second)}); return err }(),
			"Replace":     func() error { _, err := a.Replace(ctx, Request{ID: id, Topic: "x"}); return err }(),
			"Schedule":    func() error { _, err := a.Schedule(ctx, Request{Topic: "x"}); return err }(),
			"Settle":      a.ack(d).Err,
			"Purge":       func() error { _, err := a.Purge(ctx, "x"); return err }(),
			"DeleteDead":  func() error { _, err := a.DeleteDead(ctx, "x", []string{"nobody"}); return err }(),
		} {
			want(t, what, err, ErrUnavailable)
		}
		_, err := a.List(ctx, Query{})
		want(t, "List", err, ErrUnavailable)
		if total := a.Stats().Total; total.Pending != 1 || total.Delivering != 1 {
			t.Errorf("in memory: %+v", total)
		}
		if r := a.Readiness(); !r.Unsure {
			t.Error("its readiness does not tell")
		}
		a.member.Uncertain(false)
		want(t, "Settle", a.ack(d).Err, nil)
		want(t, "Cancel", a.Cancel(ctx, id), nil)
		a.check()
	})
}

func TestOutage(t *testing.T) {
	for mode, delivers := range map[OnOutage]bool{OutageDeliver: true, OutagePause: false, "": true} {
		t.Run("on_outage: "+string(mode), func(t *testing.T) {
			fleetBubble(t, 0, func(t *testing.T, f *fleet) {
				a := f.join("a", 1, Config{OnOutage: mode})
				f.join("b", 1, Config{})
				var handled atomic.Int64
				want(t, "Handle", a.Handle("h", func(context.Context, *Delivery) error { handled.Add(1); return nil }), nil)
				reserved := make(chan int, 1)
				go func() {
					ds, _ := a.Reserve(t.Context(), "x", 1, time.Minute, 0)
					reserved <- len(ds)
				}()
				a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Second})
				a.create(Request{ID: a.idAt(0), Topic: "h", Delay: time.Second})
				a.member.Uncertain(true)
				pass(10 * time.Second)
				if got := handled.Load() == 1 && len(reserved) == 1; got != delivers {
					t.Errorf("%d handled, %d reserved", handled.Load(), len(reserved))
				}
				if n := a.Stats(); delivers != (n.UnsureDeliveries == 2) || n.MissedWakes != 0 || n.Rescued != 0 {
					t.Errorf("%d unsure deliveries, %d missed wakes, %d rescued", n.UnsureDeliveries, n.MissedWakes, n.Rescued)
				}
				a.member.Uncertain(false)
				pass(2 * engine.CertaintyEvery) // far less than a sweep
				if handled.Load() != 1 || len(reserved) != 1 || <-reserved != 1 {
					t.Errorf("%d handled, %d reserved, once it is certain", handled.Load(), len(reserved))
				}
				a.check()
			})
		})
	}
}

// An attempt that was being recorded when the node became unsure is not made.
func TestPauseWhileClaiming(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 1, Config{OnOutage: OutagePause, Topics: map[string]TopicSettings{"x": {CountCrashes: true}}})
		f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x"})
		release := a.member.hold("Apply")
		got := make(chan int, 1)
		go func() {
			ds, _ := a.Reserve(t.Context(), "x", 1, 0, 0)
			got <- len(ds)
		}()
		synctest.Wait()
		a.member.Uncertain(true)
		release()
		if n := <-got; n != 0 {
			t.Errorf("%d were delivered", n)
		}
		a.member.Uncertain(false)
		pass(time.Second)
		if d := a.pullOwn("x", id)[0]; d.Attempt != 1 {
			t.Errorf("attempt %d", d.Attempt)
		}
		a.check()
	})
}

// A node that is alone never pauses.
func TestAloneIsCertain(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 1, Config{OnOutage: OutagePause})
		a.member.Uncertain(true)
		id := a.create(Request{ID: a.idAt(0), Topic: "x"})
		a.pullOwn("x", id)
	})
}

func TestOnOutageIsChecked(t *testing.T) {
	if err := (Config{OnOutage: "stop"}).Validate(); err == nil {
		t.Error("it was accepted")
	}
}
