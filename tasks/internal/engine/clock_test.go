package engine_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A lease that was parked is measured by what was left of it, not by the wall clock,
// which may have been set back since.
func TestParkedLeaseAndClockStep(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Lease: time.Minute, Retry: tasks.Retry{MinBackoff: time.Minute, MaxBackoff: time.Minute}})
		r.One("t", "x")
		rig.Pass(20 * time.Second)
		for _, step := range []time.Duration{-24 * time.Hour, 12 * time.Hour} {
			r.Shut()
			r.Clock.Step(step)
			r.Open()
			rig.Pass(10 * time.Second)
			if task := r.MustGet("t"); task.State != tasks.Delivering {
				t.Fatalf("within its lease the task is %v", task.State)
			}
		}
		rig.Pass(18 * time.Second)
		if task := r.MustGet("t"); task.State != tasks.Delivering {
			t.Fatalf("2 s before the end of its lease the task is %v", task.State)
		}
		rig.Pass(4 * time.Second)
		if task := r.MustGet("t"); task.State != tasks.Pending || task.LastError != "the lease ran out" {
			t.Errorf("after its lease the task is %v, %q", task.State, task.LastError)
		}
		r.CheckConsistency()
	})
}

// All of the dead are all of them, also those that have died in the future.
func TestAllTheDeadAfterClockStep(t *testing.T) {
	for name, do := range map[string]func(r *rig.Rig) (int, error){
		"Requeue": func(r *rig.Rig) (int, error) {
			return rig.Requeued(r.Admin().Requeue(r.T.Context(), "x", tasks.Requeue{}))
		},
		"DeleteDead": func(r *rig.Rig) (int, error) { return r.Admin().DeleteDead(r.T.Context(), "x", nil) },
	} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				r.Bury("x", "a", "b", "c")
				r.Clock.Step(-time.Hour)
				n, err := do(r)
				if rig.Want(t, name, err, nil); n != 3 {
					t.Errorf("%d of 3", n)
				}
				if c := r.Counts("x"); c.Dead != 0 {
					t.Errorf("%d are left", c.Dead)
				}
				r.CheckConsistency()
			})
		})
	}
}

// Each node compares its clock with those of the others, and warns of one that differs by 100 ms.
func TestClocksOfOthers(t *testing.T) {
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		var ahead atomic.Int64
		f.Join("fast", 2, tasks.Config{Clock: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
		a := f.Nodes[0]
		const differs, over = "the clock of node fast is", "the clock of another node is in step again"
		for _, step := range []struct {
			ahead       time.Duration
			warned      bool
			begun, over int
		}{
			{99 * time.Millisecond, false, 0, 0},
			{100 * time.Millisecond, true, 1, 0},
			{95 * time.Millisecond, true, 1, 0},
			{time.Hour, true, 1, 0},
			{50 * time.Millisecond, false, 1, 1},
			{-time.Minute, true, 2, 1},
			{0, false, 2, 2},
		} {
			ahead.Store(int64(step.ahead))
			rig.Pass(10 * time.Second)
			warned := slices.ContainsFunc(a.Readiness().Storage.Warnings, func(w string) bool { return strings.Contains(w, differs) })
			if warned != step.warned || a.Log.Count(differs) != step.begun || a.Log.Count(over) != step.over {
				t.Errorf("%v ahead: warned is %v, and the log tells %d and %d times", step.ahead, warned, a.Log.Count(differs), a.Log.Count(over))
			}
			clocks := a.Stats().Clocks
			if len(clocks) != 1 || clocks[0].Node != "fast" || clocks[0].Ahead != step.ahead {
				t.Errorf("%v ahead: %+v", step.ahead, clocks)
			}
		}
	})
}
