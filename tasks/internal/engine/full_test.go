package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A ledger without room refuses new tasks at once, and for good; acknowledgements,
// retries and cancellations go through beside them.
func TestFullLedger(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		acked, failed := r.One("acked", "x"), r.One("failed", "x")
		r.Must(tasks.Request{ID: "cancelled", Topic: "y", Delay: time.Hour})
		r.Faulty.SetFull(true)
		reached, release := r.Faulty.Hold(ledgertest.Apply)
		answers := make(chan error, 4)
		for i := range 3 { // two of them together, and one that wants the same task
			id := fmt.Sprint("new", i/2)
			go func() {
				_, err := r.Schedule(t.Context(), tasks.Request{ID: id, Topic: "x", Delay: time.Hour})
				answers <- err
			}()
		}
		<-reached
		synctest.Wait()
		go func() { answers <- r.Cancel(t.Context(), "cancelled") }()
		settled := make(chan tasks.Settled, 2)
		go func() { settled <- r.SettleOne(tasks.Verdict{Verb: tasks.Ack}, acked) }()
		go func() { settled <- r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(time.Hour)}, failed) }()
		synctest.Wait()
		began := time.Now()
		release()
		refused := 0
		for range cap(answers) {
			if err := <-answers; errors.Is(err, tasks.ErrUnavailable) && errors.Is(err, recovery.ErrFull) && !errors.Is(err, tasks.ErrUnknown) {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		}
		if refused != 3 || time.Since(began) != 0 {
			t.Errorf("%d of 3 were refused, after %v", refused, time.Since(began))
		}
		for range cap(settled) {
			if a := <-settled; a.Err != nil || !a.Recorded {
				t.Errorf("settled: %+v", a)
			}
		}
		r.InLedger("acked", recovery.Nowhere)
		r.InLedger("cancelled", recovery.Nowhere)
		r.InLedger("failed", recovery.Pending)
		r.InLedger("new0", recovery.Nowhere)
		r.Faulty.SetFull(false)
		r.Must(tasks.Request{ID: "new0", Topic: "x", Delay: time.Minute})
		r.CheckConsistency()
		r.Crash()
		synctest.Wait()
		if s := r.Stats().Total; s.Pending != 2 {
			t.Errorf("after a restart %d are pending", s.Pending)
		}
	})
}

// What was told to be unknown, since the ledger had not answered in time, and is
// refused then, leaves nothing behind.
func TestFullLedgerAnswersLate(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.Faulty.SetFull(true)
		_, release := r.Faulty.Hold(ledgertest.Apply)
		_, err := r.Schedule(context.Background(), tasks.Request{ID: "t", Topic: "x", Delay: time.Hour})
		rig.Want(t, "Schedule", err, tasks.ErrUnknown)
		release()
		rig.Pass(time.Millisecond)
		_, err = r.Get(t.Context(), "t")
		rig.Want(t, "Get", err, tasks.ErrNotFound)
		r.InLedger("t", recovery.Nowhere)
		r.CheckConsistency()
	})
}
