package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A task whose cancellation had an open outcome counts as cancelled for a caller that asks again.
func TestCancelledTwiceDuringAnOutage(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		members(r, 1, time.Hour)
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		within(r, "Cancel", func() { rig.Want(t, "Cancel", r.Cancel(t.Context(), "t0"), ErrUnknown) })
		began := time.Now()
		rig.Want(t, "Cancel again", r.Cancel(t.Context(), "t0"), ErrUnrecorded)
		_, err := r.CancelGroup(t.Context(), "g")
		rig.Want(t, "CancelGroup", err, ErrUnrecorded)
		if took := time.Since(began); took != 0 {
			t.Errorf("the answers took %v", took)
		}
		r.Faulty.Heal()
		rig.Pass(3 * time.Second)
		r.InLedger("t0", recovery.Nowhere)
		r.CheckConsistency()
	})
}

// A cancellation that its caller takes back is not kept because the caller of an earlier write of
// the task has left.
func TestCancellationTakenBack(t *testing.T) {
	rig.Bubble(t, Config{AnswerWithin: time.Second}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		_, release := r.Faulty.Hold(ledgertest.Apply)
		leaving, leave := context.WithCancel(t.Context())
		go func() { _, _ = r.Settle(leaving, Verdict{Verb: Release, Delay: new(time.Hour)}, []string{d.Receipt()}) }()
		synctest.Wait()
		cancelled := make(chan error)
		// Its write waits behind that of the release.
		go func() { cancelled <- r.Cancel(t.Context(), "t") }()
		synctest.Wait()
		leave()
		rig.Pass(100 * time.Millisecond) // by now the ledger is known not to answer
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		rig.Want(t, "another Cancel", r.Cancel(ctx, "t"), ErrUnavailable)
		rig.Want(t, "Cancel", <-cancelled, ErrUnavailable)
		release()
		rig.Pass(time.Second)
		if got := r.MustGet("t"); got.State != Pending {
			t.Errorf("the task is %v", got.State)
		}
		r.InLedger("t", recovery.Pending)
		r.CheckConsistency()
	})
}
