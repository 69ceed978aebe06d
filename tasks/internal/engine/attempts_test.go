package engine_test

import (
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Each delivery counts once, by how it ended.
func TestAttemptsAreCountedByOutcome(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Lease: time.Second, Retry: Retry{MaxAttempts: 2}})
		r.Ack(r.One("delivered", "x"))
		for range 2 { // retried, then exhausted
			if _, err := r.Get(t.Context(), "fails"); err != nil {
				r.Must(Request{ID: "fails", Topic: "x"})
			}
			fails(r, "fails", time.Minute)
			rig.Pass(time.Minute)
		}
		if a := r.SettleOne(Verdict{Verb: Bury}, r.One("buried", "x")); a.Err != nil {
			t.Fatal(a.Err)
		}
		if a := r.SettleOne(Verdict{Verb: Return}, r.One("returned", "x")); a.Err != nil {
			t.Fatal(a.Err)
		}
		r.Ack(r.Pull("x", "returned")[0])
		// A lease that runs out is that, whether another attempt follows or not.
		r.One("late", "x")
		rig.Pass(time.Minute)
		r.Pull("x", "late")
		rig.Pass(time.Minute)
		c := r.Counts("x")
		if c.Delivered != 2 || c.Retried != 1 || c.Exhausted != 1 || c.Buried != 1 || c.Returned != 1 || c.LeaseExpired != 2 {
			t.Errorf("delivered %d, retried %d, exhausted %d, buried %d, returned %d, lease expired %d; want 2, 1, 1, 1, 1, 2",
				c.Delivered, c.Retried, c.Exhausted, c.Buried, c.Returned, c.LeaseExpired)
		}
		if c.Failed != c.Retried+c.Exhausted+c.Buried+c.LeaseExpired {
			t.Errorf("%d have failed; the outcomes add up to another number: %+v", c.Failed, c)
		}
	})
}
