package engine_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A node that may have lost what it held answers nothing about a task, whatever it does
// with deliveries.
func TestUnsureAnswersNothing(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{})
		f.Join("b", 1, Config{})
		id, open := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour}), a.Create(Request{ID: a.IDAt(0), Topic: "y"})
		d := a.PullOwn("y", open)[0]
		a.Member.Uncertain(true)
		ctx := t.Context()
		for what, err := range map[string]error{
			"Get":         func() error { _, err := a.Engine().Get(ctx, id); return err }(),
			"Get unknown": func() error { _, err := a.Engine().Get(ctx, "nobody"); return err }(),
			"Cancel":      a.Cancel(ctx, id),
			"Fire":        func() error { _, err := a.Fire(ctx, id); return err }(),
			"Reschedule":  func() error { _, err := a.Reschedule(ctx, id, Move{Delay: rig.Ptr(time.Second)}); return err }(),
			"Replace":     func() error { _, err := a.Replace(ctx, Request{ID: id, Topic: "x"}); return err }(),
			"Schedule":    func() error { _, err := a.Schedule(ctx, Request{Topic: "x"}); return err }(),
			"Settle":      a.Ack(d).Err,
			"Purge":       func() error { _, err := a.Admin().Purge(ctx, "x"); return err }(),
			"DeleteDead":  func() error { _, err := a.Admin().DeleteDead(ctx, "x", []string{"nobody"}); return err }(),
		} {
			rig.Want(t, what, err, ErrUnavailable)
		}
		_, err := a.List(ctx, Query{})
		rig.Want(t, "List", err, ErrUnavailable)
		if total := a.Stats().Total; total.Pending != 1 || total.Delivering != 1 {
			t.Errorf("in memory: %+v", total)
		}
		if r := a.Readiness(); !r.Unsure {
			t.Error("its readiness does not tell")
		}
		a.Member.Uncertain(false)
		rig.Want(t, "Settle", a.Ack(d).Err, nil)
		rig.Want(t, "Cancel", a.Cancel(ctx, id), nil)
		a.Check()
	})
}

func TestOutage(t *testing.T) {
	for mode, delivers := range map[OnOutage]bool{OutageDeliver: true, OutagePause: false, "": true} {
		t.Run("on_outage: "+string(mode), func(t *testing.T) {
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				a := f.Join("a", 1, Config{OnOutage: mode})
				f.Join("b", 1, Config{})
				var handled atomic.Int64
				rig.Want(t, "Handle", a.Handle("h", func(context.Context, *Delivery) error { handled.Add(1); return nil }), nil)
				reserved := make(chan int, 1)
				go func() {
					ds, _ := a.Reserve(t.Context(), "x", 1, time.Minute, 0)
					reserved <- len(ds)
				}()
				a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Second})
				a.Create(Request{ID: a.IDAt(0), Topic: "h", Delay: time.Second})
				a.Member.Uncertain(true)
				rig.Pass(10 * time.Second)
				if got := handled.Load() == 1 && len(reserved) == 1; got != delivers {
					t.Errorf("%d handled, %d reserved", handled.Load(), len(reserved))
				}
				if n := a.Stats(); delivers != (n.UnsureDeliveries == 2) || n.MissedWakes != 0 || n.Rescued != 0 {
					t.Errorf("%d unsure deliveries, %d missed wakes, %d rescued", n.UnsureDeliveries, n.MissedWakes, n.Rescued)
				}
				a.Member.Uncertain(false)
				rig.Pass(2 * engine.CertaintyEvery) // far less than a sweep
				if handled.Load() != 1 || len(reserved) != 1 || <-reserved != 1 {
					t.Errorf("%d handled, %d reserved, once it is certain", handled.Load(), len(reserved))
				}
				a.Check()
			})
		})
	}
}

// An attempt that was being recorded when the node became unsure is not made.
func TestPauseWhileClaiming(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{OnOutage: OutagePause, Topics: map[string]TopicSettings{"x": {CountCrashes: true}}})
		f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		release := a.Member.Hold("Apply")
		got := make(chan int, 1)
		go func() {
			ds, _ := a.Reserve(t.Context(), "x", 1, 0, 0)
			got <- len(ds)
		}()
		synctest.Wait()
		a.Member.Uncertain(true)
		release()
		if n := <-got; n != 0 {
			t.Errorf("%d were delivered", n)
		}
		a.Member.Uncertain(false)
		rig.Pass(time.Second)
		if d := a.PullOwn("x", id)[0]; d.Attempt != 1 {
			t.Errorf("attempt %d", d.Attempt)
		}
		a.Check()
	})
}

// A node that is alone never pauses.
func TestAloneIsCertain(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{OnOutage: OutagePause})
		a.Member.Uncertain(true)
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x"})
		a.PullOwn("x", id)
	})
}

func TestOnOutageIsChecked(t *testing.T) {
	if err := (Config{OnOutage: "stop"}).Validate(); err == nil {
		t.Error("it was accepted")
	}
}
