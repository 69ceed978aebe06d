package engine_test

import (
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// overdue wants so many tasks of topic x to be overdue and, of these, retrying, and the oldest
// deadline. It is zero if there is none.
func overdue(r *rig.Rig, what string, all, retrying int64, oldest time.Time) {
	r.T.Helper()
	c := r.Counts("x")
	if c.Overdue != all || c.OverdueRetrying != retrying || !c.OverdueOldest.Equal(oldest) {
		r.T.Errorf("%s: %+v; want %d, %d, %v", what, c.OverdueCounts, all, retrying, oldest)
	}
	r.CheckConsistency()
}

// A task is overdue from its deadline on until it is delivered or dead, whatever fails meanwhile.
func TestOverdue(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		none, first := time.Time{}, time.Now().Add(time.Minute)
		r.Must(Request{ID: "a", Topic: "x", Delay: time.Minute})
		r.Must(Request{ID: "b", Topic: "x", Delay: 2 * time.Minute})
		overdue(r, "before the deadline", 0, 0, none)
		rig.Pass(time.Minute)
		overdue(r, "at the deadline", 1, 0, first)
		fails(r, "a", time.Hour)
		overdue(r, "after an attempt", 1, 1, first)
		rig.Pass(time.Minute)
		overdue(r, "with another one", 2, 1, first)
		r.Crash()
		rig.Pass(0)
		overdue(r, "after a crash", 2, 1, first)
		rig.Pass(time.Hour)
		overdue(r, "ready again", 2, 1, first)
		d := r.Pull("x", "b", "a")
		overdue(r, "in delivery", 1, 1, first) // b is in its first attempt
		r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)}, d[1])
		r.Ack(d[0])
		overdue(r, "after two attempts", 1, 1, first)

		_, err := r.Hold(t.Context(), "a")
		rig.Want(t, "Hold", err, nil)
		overdue(r, "held", 0, 0, none)
		_, err = r.Resume(t.Context(), "a")
		rig.Want(t, "Resume", err, nil)
		overdue(r, "resumed", 1, 1, first)
		_, err = r.Reschedule(t.Context(), "a", Move{Delay: rig.Ptr(time.Minute)})
		rig.Want(t, "Reschedule", err, nil)
		moved := time.Now().Add(time.Minute)
		overdue(r, "moved", 0, 0, none)
		rig.Pass(time.Minute)
		overdue(r, "at the new deadline", 1, 0, moved)
		fails(r, "a", time.Minute)
		overdue(r, "failed again", 1, 1, moved)
		r.MustSetTopic("x", TopicSettings{Paused: true})
		if c, all := r.Counts("x"), r.Stats().Total; c.OverduePaused != 1 || all.Overdue != 1 || all.OverduePaused != 1 || !all.OverdueOldest.IsZero() {
			t.Errorf("paused: %+v; in all %+v", c.OverdueCounts, all.OverdueCounts)
		}
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "a"), nil)
		overdue(r, "cancelled", 0, 0, none)
		if c := r.Counts("x"); c.DeliveredRecent != 1 {
			t.Errorf("%d were delivered", c.DeliveredRecent)
		}
	})
}

// A dead task is not overdue, and neither is one that was requeued, before its new attempt fails.
func TestOverdueEndsWithDeath(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 2}})
		due := time.Now()
		r.Must(Request{ID: "a", Topic: "x"})
		fails(r, "a", 0)
		overdue(r, "ready for its second attempt", 1, 1, due)
		fails(r, "a", 0)
		rig.Pass(0)
		overdue(r, "dead", 0, 0, time.Time{})
		rig.Pass(time.Second)
		_, err := r.Admin().Requeue(t.Context(), "x", Requeue{})
		rig.Want(t, "Requeue", err, nil)
		overdue(r, "requeued", 1, 0, time.Now())
	})
}
