package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Tests of ends that wait for room in the ledger: its reserve for them is used up.

// useUp has the ledger say that it has no room for the ends of tasks either, until freed is called.
func useUp(r *rig.Rig) (freed func()) {
	r.T.Helper()
	r.Faulty.SetCondition(fmt.Errorf("%w: %w", recovery.ErrFull, recovery.ErrReserveUsed))
	rig.Pass(time.Second)
	return func() {
		r.Faulty.SetCondition(nil)
		rig.Pass(time.Second)
	}
}

// unrecorded gives a verdict, which has to be answered at once: it counts, and is not recorded.
func unrecorded(r *rig.Rig, verb tasks.Verb, d tasks.Delivery) {
	r.T.Helper()
	began := time.Now()
	if a := r.SettleOne(tasks.Verdict{Verb: verb}, d); a.Err != nil || a.Recorded || time.Since(began) != 0 {
		r.T.Errorf("%v of %s: %+v after %v", verb, d.ID, a, time.Since(began))
	}
}

// Ends that leave a record are held back, and no answer claims more. What leaves nothing is
// written. Once there is room, all is as it would have been.
func TestHeldBack(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		r.MustSetTopic("z", mourned("mourners"))
		acked, buried, failed, plain := r.One("acked", "x"), r.One("buried", "z"), r.One("failed", "z"), r.One("plain", "y")
		r.Must(tasks.Request{ID: "cancelled", Topic: "x", Delay: time.Hour})
		r.Must(tasks.Request{ID: "purged", Topic: "x", Group: "g", Delay: time.Hour})
		freed := useUp(r)

		_, err := r.Schedule(t.Context(), tasks.Request{Topic: "x"})
		rig.Want(t, "a new task", err, tasks.ErrUnavailable)
		r.Ack(plain)
		r.InLedger("plain", recovery.Nowhere)
		for range 2 { // a repeated acknowledgement claims no more than the first
			unrecorded(r, tasks.Ack, acked)
		}
		unrecorded(r, tasks.Bury, buried)
		unrecorded(r, tasks.Release, failed) // its last attempt
		for range 2 {
			began := time.Now()
			if rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), tasks.ErrUnrecorded); time.Since(began) != 0 {
				t.Errorf("it took %v", time.Since(began))
			}
		}
		_, err = r.CancelGroup(t.Context(), "g")
		rig.Want(t, "CancelGroup", err, tasks.ErrUnrecorded)
		_, err = r.Schedule(context.Background(), tasks.Request{ID: "acked", Topic: "x", Payload: []byte(`{}`)})
		rig.Want(t, "the creation of a finished task", err, tasks.ErrUnavailable)
		r.Pull("x") // none of them comes again
		r.Pull("z")
		r.WantFollowUps("held back", "z", 0, 0, 0, 0)
		for _, id := range []string{"acked", "buried", "failed", "cancelled", "purged"} {
			r.InLedger(id, recovery.Pending)
		}

		freed()
		wantKept(r, "x", "acked", "cancelled", "purged")
		r.WantFollowUps("written", "z", 2, 2, 0, 0)
		if a := r.SettleOne(tasks.Verdict{Verb: tasks.Ack}, acked); a.Err != nil || !a.Recorded {
			t.Errorf("repeated: %+v", a)
		}
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "cancelled"), nil)
		if again := r.Must(tasks.Request{ID: "acked", Topic: "x", Payload: []byte(`{}`)}); !again.Repeated || again.State != tasks.Finished {
			t.Errorf("created again: %+v", again)
		}
	})
}

// What was answered as not recorded comes again if the process ends before there is room.
func TestHeldBackUntilTheEnd(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.KeepsFor("x", time.Hour)
		d := r.One("a", "x")
		useUp(r)
		unrecorded(r, tasks.Ack, d)
		r.Crash()
		useUp(r)
		rig.Pass(time.Minute) // the lease of the delivery is not on record
		unrecorded(r, tasks.Ack, r.Pull("x", "a")[0])
		r.Restart()
		if !r.Log.Has("closing before the ledger had room") {
			t.Error(r.Log.All())
		}
		rig.Pass(time.Minute)
		r.Ack(r.Pull("x", "a")[0])
	})
}

// More ends than one piece has are all written. Neither a change of mind of the ledger nor a fault
// of it in between leaves one behind.
func TestHeldBackInPieces(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		const count = 1000
		r.KeepsFor("x", time.Hour)
		ids := make([]string, count)
		for i := range ids {
			ids[i] = fmt.Sprint("a", i)
			r.Must(tasks.Request{ID: ids[i], Topic: "x"})
		}
		ds, err := r.Reserve(t.Context(), "x", count, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		useUp(r)
		for _, d := range ds {
			unrecorded(r, tasks.Ack, d)
		}
		_, release := r.Faulty.Hold(ledgertest.Apply)
		r.Faulty.SetCondition(nil)
		rig.Pass(150 * time.Millisecond) // for a piece or two, which are not answered
		freed := useUp(r)
		release()
		rig.Pass(time.Second)
		if n := r.Counts("x").Finished; n == 0 || n == count {
			t.Errorf("%d of %d are written", n, count)
		}
		freed()
		if n := r.Counts("x").Finished; n != count {
			t.Errorf("%d of %d are written", n, count)
		}
		r.CheckConsistency()
	})
}
