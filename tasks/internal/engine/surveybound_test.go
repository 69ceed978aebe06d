package engine_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// countDead counts the dead tasks of topic x with an error, which has the ledger read.
func countDead(ctx context.Context, s *Scheduler, text string, within time.Duration) (TaskCounts, error) {
	return s.Admin().Count(ctx, Query{State: Dead, Topic: "x", Error: text}, within)
}

// A node looks for four callers at a time. Others wait in their time, and then have seen nothing;
// what no caller waits for any more ends.
func TestCountsAtOnce(t *testing.T) {
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		n := f.Nodes[0]
		_, err := n.Schedule(t.Context(), Request{ID: "a", Topic: "x"})
		rig.Want(t, "Schedule", err, nil)
		rig.Pass(time.Second)
		ds, err := n.Reserve(t.Context(), "x", 1, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		_, err = n.Settle(t.Context(), Verdict{Verb: Bury, Reason: "refused"}, []string{ds[0].Receipt()})
		rig.Want(t, "Settle", err, nil)
		rig.Pass(time.Second)

		release := n.Member.Hold("ListDead")
		defer release()
		waits, leave := context.WithCancel(t.Context())
		ended := make(chan error, 4)
		for i := range 4 {
			go func() {
				_, err := countDead(waits, n.Scheduler, "error "+strconv.Itoa(i), 10*time.Second)
				ended <- err
			}()
		}
		synctest.Wait()
		began := time.Now()
		c, err := countDead(t.Context(), n.Scheduler, "refused", time.Second)
		if rig.Want(t, "Count", err, nil); c.Complete || c.LookedAt != 0 || time.Since(began) != time.Second {
			t.Errorf("the fifth one: %+v after %v", c, time.Since(began))
		}
		leave()
		for range cap(ended) {
			rig.Want(t, "Count", <-ended, context.Canceled)
		}
		synctest.Wait()
		release()
		rig.Pass(2 * time.Second) // no answer is used again
		if c, err = countDead(t.Context(), n.Scheduler, "refused", time.Second); err != nil || !c.Complete || c.Total.Dead != 1 {
			t.Errorf("once they have left: %+v, %v", c, err)
		}
	})
}

// Callers that leave end what they alone wait for, and not what another one does.
func TestCountsLeft(t *testing.T) {
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		n := f.Nodes[0]
		release := n.Member.Hold("ListDead")
		first, leave := context.WithCancel(t.Context())
		stays := make(chan error, 2)
		for _, ctx := range []context.Context{first, t.Context()} {
			go func() {
				_, err := countDead(ctx, n.Scheduler, "refused", 5*time.Second)
				stays <- err
			}()
		}
		synctest.Wait()
		leave()
		rig.Want(t, "Count of the one who leaves", <-stays, context.Canceled)
		synctest.Wait()
		release()
		rig.Want(t, "Count of the one who stays", <-stays, nil)
	})
}

// However many dead tasks a filter may select, no more than some bytes of them are read.
func TestCountsReadSomeBytes(t *testing.T) {
	rig.Bubble(t, Config{MaxPayload: 1 << 20}, func(t *testing.T, r *rig.Rig) {
		const made = 24
		for i := range made {
			r.Must(Request{ID: "t" + strconv.Itoa(i), Topic: "x", Payload: make([]byte, 1<<20)})
			rig.Pass(time.Second)
			ds, err := r.Reserve(t.Context(), "x", 1, 0, 0)
			rig.Want(t, "Reserve", err, nil)
			r.SettleOne(Verdict{Verb: Bury, Reason: "refused"}, ds[0])
		}
		rig.Pass(time.Second)
		c, err := countDead(t.Context(), r.Scheduler, "refused", 0)
		if rig.Want(t, "Count", err, nil); c.Complete || c.LookedAt < 10 || c.LookedAt > 17 || c.Of != made {
			t.Errorf("%+v", c)
		}
	})
}
