package engine_test

import (
	"testing"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Many tasks are cancelled right around their deadlines, by several callers, in
// real time: what was cancelled is not delivered afterwards, and what was not
// cancelled is delivered.
func TestCancelRace(t *testing.T) {
	t.Parallel()
	total := 100_000
	if testing.Short() {
		total = 10_000
	}
	r := rig.New(t, tasks.Config{}, memledger.Shards(4))
	rig.CancelRace(t, r.Scheduler, total)
	r.CheckConsistency()
}

// A cancel and its repetitions, at the same time.
func TestCancelTogether(t *testing.T) {
	for _, dead := range []bool{false, true} {
		rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
			if dead {
				buried(r)
			} else {
				inAnHour(r)
			}
			answers := make(chan error, 10)
			for range cap(answers) {
				go func() { answers <- r.Cancel(t.Context(), "t") }()
			}
			for range cap(answers) {
				rig.Want(t, "Cancel", <-answers, nil)
			}
			if c := r.Counts("x"); c.Cancelled != 1 {
				t.Errorf("%d cancelled", c.Cancelled)
			}
			r.CheckConsistency()
		})
	}
}
