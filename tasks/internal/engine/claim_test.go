package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// Attempts of tasks that have only one, in a topic that counts crashes: one that is
// counted and was never seen would be the death of its task.
var oneAttempt = TopicSettings{CountCrashes: true, Lease: time.Hour, Retry: Retry{MaxAttempts: 1}}

// wantUnclaimed fails the test unless a ready task has its attempt before it, in
// memory and in the ledger.
func wantUnclaimed(r *rig.Rig, id, topic string) {
	r.T.Helper()
	rig.Pass(time.Millisecond)
	if f := r.InLedger(id, recovery.Pending); f.Attempt != 0 || f.Flags&record.Claimed != 0 {
		r.T.Errorf("recorded: %d attempts, flags %#x", f.Attempt, f.Flags)
	}
	r.Crash()
	rig.Pass(time.Millisecond)
	if d := r.Pull(topic, id)[0]; d.Attempt != 1 {
		r.T.Errorf("attempt %d, want 1", d.Attempt)
	}
	r.CheckConsistency()
}

// A delivery that comes back unseen does not count, after a crash either.
func TestReturnedClaimIsRecorded(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", oneAttempt)
		r.Admin().Return([]Delivery{r.One("t", "x")})
		wantUnclaimed(r, "t", "x")
	})
}

// A delivery that is given back by its receipt is recorded once the ledger has it that the attempt
// does not count.
func TestReturnSaysWhetherItIsRecorded(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", oneAttempt)
		d := r.One("t", "x")
		_, release := r.Faulty.Hold(ledgertest.Apply)
		if a := r.SettleOne(Verdict{Verb: Return}, d); a.Err != nil || a.Recorded {
			t.Errorf("while the ledger does not answer: %+v", a)
		}
		release()
		rig.Pass(time.Second)
		if a := r.SettleOne(Verdict{Verb: Return}, r.Pull("x", "t")[0]); a.Err != nil || !a.Recorded {
			t.Errorf("with the ledger: %+v", a)
		}
		wantUnclaimed(r, "t", "x")
	})
}

// A claim whose receiver did not wait for the ledger does not count either.
func TestLateClaimIsUndone(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", oneAttempt)
		r.Must(Request{ID: "t", Topic: "x"})
		_, release := r.Faulty.Hold(ledgertest.Apply)
		r.Pull("x") // in vain
		release()
		wantUnclaimed(r, "t", "x")
	})
}

// Close waits for a receiver whose claim is under way. Its delivery is no longer
// begun, and the task is ready at once after the next start.
func TestCloseWaitsForClaims(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", oneAttempt)
		r.Must(Request{ID: "t", Topic: "x"})
		reached, release := r.Faulty.Hold(ledgertest.Apply)
		got := make(chan int, 1)
		go func() {
			ds, _ := r.Reserve(context.Background(), "x", 1, 0, 0)
			got <- len(ds)
		}()
		<-reached
		closed := make(chan error, 1)
		go func() { closed <- r.Close(context.Background()) }()
		rig.Pass(time.Second)
		if len(closed) != 0 {
			t.Fatal("Close has overtaken the claim")
		}
		release()
		rig.Want(t, "Close", <-closed, nil)
		if n := <-got; n != 0 {
			t.Fatalf("%d handed out although Close had begun", n)
		}
		r.Mem = r.Mem.Reopen()
		r.Open()
		wantUnclaimed(r, "t", "x")
	})
}

// The clock is set back while an attempt is being recorded: on the new clock it is
// too early for it.
func TestClockSetBackDuringClaim(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", oneAttempt)
		r.Must(Request{ID: "t", Topic: "x"})
		reached, release := r.Faulty.Hold(ledgertest.Apply)
		go func() {
			<-reached
			r.Clock.Step(-time.Hour)
			release()
		}()
		r.Pull("x")
		wantEnd(r, recovery.Pending, Pending)
		r.CheckConsistency()
		rig.Pass(time.Hour)
		if d := r.Pull("x", "t")[0]; d.Attempt != 1 {
			t.Errorf("attempt %d", d.Attempt)
		}
	})
}

// Receivers whose claims are under way have their places among the open deliveries
// already.
func TestMaxInFlightDuringClaims(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 2}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{CountCrashes: true})
		for i := range 10 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		_, release := r.Faulty.Hold(ledgertest.Apply)
		for range 5 {
			go func() { _, _ = r.Reserve(t.Context(), "x", 2, 0, 0) }()
		}
		synctest.Wait()
		release()
		rig.Pass(time.Millisecond)
		if n := r.Counts("x").Delivering; n != 2 {
			t.Errorf("%d are being delivered, MaxInFlight is 2", n)
		}
		r.CheckConsistency()
	})
}

// A receiver whose claim is under way is not asleep: what becomes ready meanwhile goes
// to one that is.
func TestClaimingReceiverIsNotWoken(t *testing.T) {
	rig.Bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{CountCrashes: true})
		r.Must(Request{ID: "first", Topic: "x"})
		r.Must(Request{ID: "second", Topic: "x", Delay: time.Second})
		_, release := r.Faulty.Hold(ledgertest.Apply)
		for range 2 {
			go func() { _, _ = r.Reserve(t.Context(), "x", 1, time.Minute, time.Hour) }()
			synctest.Wait()
		}
		rig.Pass(1100 * time.Millisecond)
		for _, id := range []string{"first", "second"} {
			rig.Mutex(r.Engine()).Lock()
			n, _ := r.Engine().Store.Find([]byte(id))
			state := r.Engine().Store.Slot(n).State
			rig.Mutex(r.Engine()).Unlock()
			if state != store.Claiming {
				t.Errorf("%s has state %d; want claiming", id, state)
			}
		}
		release()
		rig.Pass(time.Millisecond)
		if n := r.Counts("x").Delivering; n != 2 {
			t.Errorf("%d are being delivered", n)
		}
	})
}

// Places that a claim has given up wake the topics that wait for them at once.
func TestPlacesOfAFailedClaim(t *testing.T) {
	rig.Bubble(t, Config{MaxInFlight: 2, SweepEvery: time.Minute}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{CountCrashes: true})
		r.MustHandle("y", func(context.Context, *Delivery) error { return ErrLater })
		// Its handler shows that it leaves deliveries open.
		r.Must(Request{ID: "y1", Topic: "y"})
		r.Must(Request{ID: "y2", Topic: "y", Delay: time.Second})
		r.Must(Request{ID: "x1", Topic: "x"})
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Reserve(t.Context(), "x", 1, 0, 0) }()
		rig.Pass(1100 * time.Millisecond)
		if task := r.MustGet("y2"); task.State != Ready {
			t.Fatalf("beside two open deliveries y2 is %v", task.State)
		}
		rig.Pass(time.Second) // AnswerWithin is over
		if task := r.MustGet("y2"); task.State != Delivering {
			t.Errorf("beside one open delivery y2 is %v", task.State)
		}
		release()
		rig.Pass(time.Millisecond)
		r.CheckConsistency()
	})
}

// What has become of a topic, or of a task, while its attempt was being recorded, holds
// for that attempt too.
func TestClaimsHeedWhatCameBetween(t *testing.T) {
	mailed := to("rome")
	mailed.CountCrashes = true
	for name, c := range map[string]struct {
		from   TopicSettings
		change func(r *rig.Rig)
	}{
		"paused":       {mailed, func(r *rig.Rig) { rig.Want(r.T, "PauseTopic", r.Admin().PauseTopic(r.T.Context(), "x", true), nil) }},
		"pulled now":   {mailed, func(r *rig.Rig) { r.MustSetTopic("x", TopicSettings{CountCrashes: true}) }},
		"mailed now":   {TopicSettings{CountCrashes: true}, func(r *rig.Rig) { to := mailed; to.Paused = true; r.MustSetTopic("x", to) }},
		"late by then": {mailed, func(*rig.Rig) { rig.Pass(5 * time.Second) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := &rig.Postal{}
			rig.Bubble(t, Config{Ways: []Way{p}, AnswerWithin: 10 * time.Second}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", c.from)
				r.Must(Request{ID: "t", Topic: "x", Delay: time.Second, MaxLateness: 3 * time.Second})
				_, release := r.Faulty.Hold(ledgertest.Apply)
				got := make(chan int, 1)
				if c.from.Kind == "" {
					go func() { ds, _ := r.Reserve(t.Context(), "x", 1, 5*time.Second, 0); got <- len(ds) }()
				} else {
					got <- 0
				}
				rig.Pass(2 * time.Second)
				c.change(r)
				release()
				rig.Pass(time.Second)
				if sent := p.Text(); sent != "" || <-got != 0 {
					t.Errorf("it was delivered: %s", sent)
				}
				switch task, err := r.Get(t.Context(), "t"); {
				case name == "late by then":
					rig.Want(t, "Get of what was skipped", err, ErrNotFound)
				case err != nil || task.State != Ready || task.Attempt != 0:
					t.Errorf("it is %v after %d attempts, %v", task.State, task.Attempt, err)
				}
				r.CheckConsistency()
			})
		})
	}
}

// An attempt that was being recorded goes the way that has been set meanwhile.
func TestClaimsGoTheNewWay(t *testing.T) {
	p := &rig.Postal{}
	rig.Bubble(t, Config{Ways: []Way{p}, AnswerWithin: 10 * time.Second}, func(t *testing.T, r *rig.Rig) {
		rome, oslo := to("rome"), to("oslo")
		rome.CountCrashes, oslo.CountCrashes = true, true
		r.MustSetTopic("x", rome)
		r.Must(Request{ID: "t", Topic: "x", Delay: time.Second})
		_, release := r.Faulty.Hold(ledgertest.Apply)
		rig.Pass(2 * time.Second)
		r.MustSetTopic("x", oslo)
		release()
		rig.Pass(2 * time.Second)
		if sent := p.Text(); sent != "t to oslo" {
			t.Errorf("delivered: %s", sent)
		}
		r.CheckConsistency()
	})
}

// A delivery that was parked and is returned by its receipt does not count, and leaves
// nothing of itself in the record: neither a later process nor its receipt go on with it.
func TestReturnOfAParkedDelivery(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		r.Restart()
		synctest.Wait()
		rig.Want(t, "Return", r.SettleOne(Verdict{Verb: Return}, d).Err, nil)
		if task := r.MustGet("t"); task.State != Ready || task.Attempt != 0 {
			t.Errorf("returned, it is %v after attempt %d", task.State, task.Attempt)
		}
		rig.Pass(time.Second)
		if f := r.InLedger("t", recovery.Pending); f.Attempt != 0 || f.Flags&record.HasLease != 0 {
			t.Errorf("recorded are attempt %d, flags %b", f.Attempt, f.Flags)
		}
		rig.Want(t, "Reschedule", moveT(r), nil)
		r.Crash()
		synctest.Wait()
		if task := r.MustGet("t"); task.State != Pending {
			t.Errorf("moved, it is %v after a crash", task.State)
		}
		rig.Want(t, "the old receipt", r.SettleOne(Verdict{Verb: Ack}, d).Err, ErrStale)
		r.CheckConsistency()
	})
}
