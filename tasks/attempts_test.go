package tasks_test

import (
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
)

// Each delivery counts once, by how it ended.
func TestAttemptsAreCountedByOutcome(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Lease: time.Second, Retry: Retry{MaxAttempts: 2}})
		r.ack(r.one("delivered", "x"))
		for range 2 { // retried, then exhausted
			if _, err := r.Get(t.Context(), "fails"); err != nil {
				r.must(Request{ID: "fails", Topic: "x"})
			}
			r.fails("fails", time.Minute)
			pass(time.Minute)
		}
		if a := r.settle(Verdict{Verb: Bury}, r.one("buried", "x")); a.Err != nil {
			t.Fatal(a.Err)
		}
		if a := r.settle(Verdict{Verb: Return}, r.one("returned", "x")); a.Err != nil {
			t.Fatal(a.Err)
		}
		r.ack(r.pull("x", "returned")[0])
		// A lease that runs out is that, whether another attempt follows or not.
		r.one("late", "x")
		pass(time.Minute)
		r.pull("x", "late")
		pass(time.Minute)
		c := r.counts("x")
		if c.Delivered != 2 || c.Retried != 1 || c.Exhausted != 1 || c.Buried != 1 || c.Returned != 1 || c.LeaseExpired != 2 {
			t.Errorf("delivered %d, retried %d, exhausted %d, buried %d, returned %d, lease expired %d; want 2, 1, 1, 1, 1, 2",
				c.Delivered, c.Retried, c.Exhausted, c.Buried, c.Returned, c.LeaseExpired)
		}
		if c.Failed != c.Retried+c.Exhausted+c.Buried+c.LeaseExpired {
			t.Errorf("%d have failed; the outcomes add up to another number: %+v", c.Failed, c)
		}
	})
}
