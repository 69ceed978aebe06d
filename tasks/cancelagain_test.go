package tasks_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
)

// A task whose cancellation had an open outcome counts as cancelled for a caller that asks again.
func TestCancelledTwiceDuringAnOutage(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.members(1, time.Hour)
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		r.within("Cancel", func() { want(t, "Cancel", r.Cancel(t.Context(), "t0"), ErrUnknown) })
		began := time.Now()
		want(t, "Cancel again", r.Cancel(t.Context(), "t0"), ErrUnrecorded)
		_, err := r.CancelGroup(t.Context(), "g")
		want(t, "CancelGroup", err, ErrUnrecorded)
		if took := time.Since(began); took != 0 {
			t.Errorf("the answers took %v", took)
		}
		r.faulty.Heal()
		pass(3 * time.Second)
		r.inLedger("t0", recovery.Nowhere)
		r.checkConsistency()
	})
}

// A cancellation that its caller takes back is not kept because the caller of an earlier write of
// the task has left.
func TestCancellationTakenBack(t *testing.T) {
	bubble(t, Config{AnswerWithin: time.Second}, func(t *testing.T, r *rig) {
		d := r.one("t", "x")
		_, release := r.faulty.Hold(ledgertest.Apply)
		leaving, leave := context.WithCancel(t.Context())
		go func() { _, _ = r.Settle(leaving, Verdict{Verb: Release, Delay: new(time.Hour)}, []string{d.Receipt()}) }()
		synctest.Wait()
		cancelled := make(chan error)
		// Its write waits behind that of the release.
		go func() { cancelled <- r.Cancel(t.Context(), "t") }()
		synctest.Wait()
		leave()
		pass(100 * time.Millisecond) // by now the ledger is known not to answer
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		want(t, "another Cancel", r.Cancel(ctx, "t"), ErrUnavailable)
		want(t, "Cancel", <-cancelled, ErrUnavailable)
		release()
		pass(time.Second)
		if got := r.get("t"); got.State != Pending {
			t.Errorf("the task is %v", got.State)
		}
		r.inLedger("t", recovery.Pending)
		r.checkConsistency()
	})
}
