package tasks_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
)

// Tests of ends that wait for room in the ledger: its reserve for them is used up.

// useUp has the ledger say that it has no room for the ends of tasks either, until freed is called.
func (r *rig) useUp() (freed func()) {
	r.t.Helper()
	r.faulty.SetCondition(fmt.Errorf("%w: %w", recovery.ErrFull, recovery.ErrReserveUsed))
	pass(time.Second)
	return func() {
		r.faulty.SetCondition(nil)
		pass(time.Second)
	}
}

// unrecorded gives a verdict, which has to be answered at once: it counts, and is not recorded.
func (r *rig) unrecorded(verb tasks.Verb, d tasks.Delivery) {
	r.t.Helper()
	began := time.Now()
	if a := r.settle(tasks.Verdict{Verb: verb}, d); a.Err != nil || a.Recorded || time.Since(began) != 0 {
		r.t.Errorf("%v of %s: %+v after %v", verb, d.ID, a, time.Since(began))
	}
}

// Ends that leave a record are held back, and no answer claims more. What leaves nothing is
// written. Once there is room, all is as it would have been.
func TestHeldBack(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		r.topic("z", mourned("mourners"))
		acked, buried, failed, plain := r.one("acked", "x"), r.one("buried", "z"), r.one("failed", "z"), r.one("plain", "y")
		r.must(tasks.Request{ID: "cancelled", Topic: "x", Delay: time.Hour})
		r.must(tasks.Request{ID: "purged", Topic: "x", Group: "g", Delay: time.Hour})
		freed := r.useUp()

		_, err := r.Schedule(t.Context(), tasks.Request{Topic: "x"})
		want(t, "a new task", err, tasks.ErrUnavailable)
		r.ack(plain)
		r.inLedger("plain", recovery.Nowhere)
		for range 2 { // a repeated acknowledgement claims no more than the first
			r.unrecorded(tasks.Ack, acked)
		}
		r.unrecorded(tasks.Bury, buried)
		r.unrecorded(tasks.Release, failed) // its last attempt
		for range 2 {
			began := time.Now()
			if want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), tasks.ErrUnrecorded); time.Since(began) != 0 {
				t.Errorf("it took %v", time.Since(began))
			}
		}
		_, err = r.CancelGroup(t.Context(), "g")
		want(t, "CancelGroup", err, tasks.ErrUnrecorded)
		_, err = r.Schedule(context.Background(), tasks.Request{ID: "acked", Topic: "x", Payload: []byte(`{}`)})
		want(t, "the creation of a finished task", err, tasks.ErrUnavailable)
		r.pull("x") // none of them comes again
		r.pull("z")
		r.wantFollowUps("held back", "z", 0, 0, 0, 0)
		for _, id := range []string{"acked", "buried", "failed", "cancelled", "purged"} {
			r.inLedger(id, recovery.Pending)
		}

		freed()
		r.wantKept("x", "acked", "cancelled", "purged")
		r.wantFollowUps("written", "z", 2, 2, 0, 0)
		if a := r.settle(tasks.Verdict{Verb: tasks.Ack}, acked); a.Err != nil || !a.Recorded {
			t.Errorf("repeated: %+v", a)
		}
		want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		if again := r.must(tasks.Request{ID: "acked", Topic: "x", Payload: []byte(`{}`)}); !again.Repeated || again.State != tasks.Finished {
			t.Errorf("created again: %+v", again)
		}
	})
}

// What was answered as not recorded comes again if the process ends before there is room.
func TestHeldBackUntilTheEnd(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.keepsFor("x", time.Hour)
		d := r.one("a", "x")
		r.useUp()
		r.unrecorded(tasks.Ack, d)
		r.crash()
		r.useUp()
		pass(time.Minute) // the lease of the delivery is not on record
		r.unrecorded(tasks.Ack, r.pull("x", "a")[0])
		r.restart()
		if !r.log.has("closing before the ledger had room") {
			t.Error(r.log.all())
		}
		pass(time.Minute)
		r.ack(r.pull("x", "a")[0])
	})
}

// More ends than one piece has are all written. Neither a change of mind of the ledger nor a fault
// of it in between leaves one behind.
func TestHeldBackInPieces(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		const count = 1000
		r.keepsFor("x", time.Hour)
		ids := make([]string, count)
		for i := range ids {
			ids[i] = fmt.Sprint("a", i)
			r.must(tasks.Request{ID: ids[i], Topic: "x"})
		}
		ds, err := r.Reserve(t.Context(), "x", count, 0, 0)
		want(t, "Reserve", err, nil)
		r.useUp()
		for _, d := range ds {
			r.unrecorded(tasks.Ack, d)
		}
		_, release := r.faulty.Hold(ledgertest.Apply)
		r.faulty.SetCondition(nil)
		pass(150 * time.Millisecond) // for a piece or two, which are not answered
		freed := r.useUp()
		release()
		pass(time.Second)
		if n := r.counts("x").Finished; n == 0 || n == count {
			t.Errorf("%d of %d are written", n, count)
		}
		freed()
		if n := r.counts("x").Finished; n != count {
			t.Errorf("%d of %d are written", n, count)
		}
		r.checkConsistency()
	})
}
