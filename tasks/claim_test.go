package tasks_test

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
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// Attempts of tasks that have only one, in a topic that counts crashes: one that is
// counted and was never seen would be the death of its task.
var oneAttempt = TopicSettings{CountCrashes: true, Lease: time.Hour, Retry: Retry{MaxAttempts: 1}}

// wantUnclaimed fails the test unless a ready task has its attempt before it, in
// memory and in the ledger.
func (r *rig) wantUnclaimed(id, topic string) {
	r.t.Helper()
	pass(time.Millisecond)
	if f := r.inLedger(id, recovery.Pending); f.Attempt != 0 || f.Flags&record.Claimed != 0 {
		r.t.Errorf("recorded: %d attempts, flags %#x", f.Attempt, f.Flags)
	}
	r.crash()
	pass(time.Millisecond)
	if d := r.pull(topic, id)[0]; d.Attempt != 1 {
		r.t.Errorf("attempt %d, want 1", d.Attempt)
	}
	r.checkConsistency()
}

// A delivery that comes back unseen does not count, after a crash either.
func TestReturnedClaimIsRecorded(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", oneAttempt)
		r.Return([]Delivery{r.one("t", "x")})
		r.wantUnclaimed("t", "x")
	})
}

// A delivery that is given back by its receipt is recorded once the ledger has it that the attempt
// does not count.
func TestReturnSaysWhetherItIsRecorded(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", oneAttempt)
		d := r.one("t", "x")
		_, release := r.faulty.Hold(ledgertest.Apply)
		if a := r.settle(Verdict{Verb: Return}, d); a.Err != nil || a.Recorded {
			t.Errorf("while the ledger does not answer: %+v", a)
		}
		release()
		pass(time.Second)
		if a := r.settle(Verdict{Verb: Return}, r.pull("x", "t")[0]); a.Err != nil || !a.Recorded {
			t.Errorf("with the ledger: %+v", a)
		}
		r.wantUnclaimed("t", "x")
	})
}

// A claim whose receiver did not wait for the ledger does not count either.
func TestLateClaimIsUndone(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", oneAttempt)
		r.must(Request{ID: "t", Topic: "x"})
		_, release := r.faulty.Hold(ledgertest.Apply)
		r.pull("x") // in vain
		release()
		r.wantUnclaimed("t", "x")
	})
}

// Close waits for a receiver whose claim is under way. Its delivery is no longer
// begun, and the task is ready at once after the next start.
func TestCloseWaitsForClaims(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", oneAttempt)
		r.must(Request{ID: "t", Topic: "x"})
		reached, release := r.faulty.Hold(ledgertest.Apply)
		got := make(chan int, 1)
		go func() {
			ds, _ := r.Reserve(context.Background(), "x", 1, 0, 0)
			got <- len(ds)
		}()
		<-reached
		closed := make(chan error, 1)
		go func() { closed <- r.Close(context.Background()) }()
		pass(time.Second)
		if len(closed) != 0 {
			t.Fatal("Close has overtaken the claim")
		}
		release()
		want(t, "Close", <-closed, nil)
		if n := <-got; n != 0 {
			t.Fatalf("%d handed out although Close had begun", n)
		}
		r.mem = r.mem.Reopen()
		r.open()
		r.wantUnclaimed("t", "x")
	})
}

// The clock is set back while an attempt is being recorded: on the new clock it is
// too early for it.
func TestClockSetBackDuringClaim(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", oneAttempt)
		r.must(Request{ID: "t", Topic: "x"})
		reached, release := r.faulty.Hold(ledgertest.Apply)
		go func() {
			<-reached
			r.clock.step(-time.Hour)
			release()
		}()
		r.pull("x")
		r.wantEnd(recovery.Pending, Pending)
		r.checkConsistency()
		pass(time.Hour)
		if d := r.pull("x", "t")[0]; d.Attempt != 1 {
			t.Errorf("attempt %d", d.Attempt)
		}
	})
}

// Receivers whose claims are under way have their places among the open deliveries
// already.
func TestMaxInFlightDuringClaims(t *testing.T) {
	bubble(t, Config{MaxInFlight: 2}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{CountCrashes: true})
		for i := range 10 {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		_, release := r.faulty.Hold(ledgertest.Apply)
		for range 5 {
			go func() { _, _ = r.Reserve(t.Context(), "x", 2, 0, 0) }()
		}
		synctest.Wait()
		release()
		pass(time.Millisecond)
		if n := r.counts("x").Delivering; n != 2 {
			t.Errorf("%d are being delivered, MaxInFlight is 2", n)
		}
		r.checkConsistency()
	})
}

// A receiver whose claim is under way is not asleep: what becomes ready meanwhile goes
// to one that is.
func TestClaimingReceiverIsNotWoken(t *testing.T) {
	bubble(t, Config{SweepEvery: time.Minute}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{CountCrashes: true})
		r.must(Request{ID: "first", Topic: "x"})
		r.must(Request{ID: "second", Topic: "x", Delay: time.Second})
		_, release := r.faulty.Hold(ledgertest.Apply)
		for range 2 {
			go func() { _, _ = r.Reserve(t.Context(), "x", 1, time.Minute, time.Hour) }()
			synctest.Wait()
		}
		pass(1100 * time.Millisecond)
		for _, id := range []string{"first", "second"} {
			Mutex(r.Engine()).Lock()
			n, _ := r.Engine().Store.Find([]byte(id))
			state := r.Engine().Store.Slot(n).State
			Mutex(r.Engine()).Unlock()
			if state != store.Claiming {
				t.Errorf("%s has state %d; want claiming", id, state)
			}
		}
		release()
		pass(time.Millisecond)
		if n := r.counts("x").Delivering; n != 2 {
			t.Errorf("%d are being delivered", n)
		}
	})
}

// Places that a claim has given up wake the topics that wait for them at once.
func TestPlacesOfAFailedClaim(t *testing.T) {
	bubble(t, Config{MaxInFlight: 2, SweepEvery: time.Minute}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{CountCrashes: true})
		r.handle("y", func(context.Context, *Delivery) error { return ErrLater })
		// Its handler shows that it leaves deliveries open.
		r.must(Request{ID: "y1", Topic: "y"})
		r.must(Request{ID: "y2", Topic: "y", Delay: time.Second})
		r.must(Request{ID: "x1", Topic: "x"})
		_, release := r.faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Reserve(t.Context(), "x", 1, 0, 0) }()
		pass(1100 * time.Millisecond)
		if task := r.get("y2"); task.State != Ready {
			t.Fatalf("beside two open deliveries y2 is %v", task.State)
		}
		pass(time.Second) // AnswerWithin is over
		if task := r.get("y2"); task.State != Delivering {
			t.Errorf("beside one open delivery y2 is %v", task.State)
		}
		release()
		pass(time.Millisecond)
		r.checkConsistency()
	})
}

// What has become of a topic, or of a task, while its attempt was being recorded, holds
// for that attempt too.
func TestClaimsHeedWhatCameBetween(t *testing.T) {
	mailed := to("rome")
	mailed.CountCrashes = true
	for name, c := range map[string]struct {
		from   TopicSettings
		change func(r *rig)
	}{
		"paused":       {mailed, func(r *rig) { want(r.t, "PauseTopic", r.PauseTopic(r.t.Context(), "x", true), nil) }},
		"pulled now":   {mailed, func(r *rig) { r.topic("x", TopicSettings{CountCrashes: true}) }},
		"mailed now":   {TopicSettings{CountCrashes: true}, func(r *rig) { to := mailed; to.Paused = true; r.topic("x", to) }},
		"late by then": {mailed, func(*rig) { pass(5 * time.Second) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := &postal{}
			bubble(t, Config{Ways: []Way{p}, AnswerWithin: 10 * time.Second}, func(t *testing.T, r *rig) {
				r.topic("x", c.from)
				r.must(Request{ID: "t", Topic: "x", Delay: time.Second, MaxLateness: 3 * time.Second})
				_, release := r.faulty.Hold(ledgertest.Apply)
				got := make(chan int, 1)
				if c.from.Kind == "" {
					go func() { ds, _ := r.Reserve(t.Context(), "x", 1, 5*time.Second, 0); got <- len(ds) }()
				} else {
					got <- 0
				}
				pass(2 * time.Second)
				c.change(r)
				release()
				pass(time.Second)
				if sent := p.text(); sent != "" || <-got != 0 {
					t.Errorf("it was delivered: %s", sent)
				}
				switch task, err := r.Get(t.Context(), "t"); {
				case name == "late by then":
					want(t, "Get of what was skipped", err, ErrNotFound)
				case err != nil || task.State != Ready || task.Attempt != 0:
					t.Errorf("it is %v after %d attempts, %v", task.State, task.Attempt, err)
				}
				r.checkConsistency()
			})
		})
	}
}

// An attempt that was being recorded goes the way that has been set meanwhile.
func TestClaimsGoTheNewWay(t *testing.T) {
	p := &postal{}
	bubble(t, Config{Ways: []Way{p}, AnswerWithin: 10 * time.Second}, func(t *testing.T, r *rig) {
		rome, oslo := to("rome"), to("oslo")
		rome.CountCrashes, oslo.CountCrashes = true, true
		r.topic("x", rome)
		r.must(Request{ID: "t", Topic: "x", Delay: time.Second})
		_, release := r.faulty.Hold(ledgertest.Apply)
		pass(2 * time.Second)
		r.topic("x", oslo)
		release()
		pass(2 * time.Second)
		if sent := p.text(); sent != "t to oslo" {
			t.Errorf("delivered: %s", sent)
		}
		r.checkConsistency()
	})
}

// A delivery that was parked and is returned by its receipt does not count, and leaves
// nothing of itself in the record: neither a later process nor its receipt go on with it.
func TestReturnOfAParkedDelivery(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		d := r.one("t", "x")
		r.restart()
		synctest.Wait()
		want(t, "Return", r.settle(Verdict{Verb: Return}, d).Err, nil)
		if task := r.get("t"); task.State != Ready || task.Attempt != 0 {
			t.Errorf("returned, it is %v after attempt %d", task.State, task.Attempt)
		}
		pass(time.Second)
		if f := r.inLedger("t", recovery.Pending); f.Attempt != 0 || f.Flags&record.HasLease != 0 {
			t.Errorf("recorded are attempt %d, flags %b", f.Attempt, f.Flags)
		}
		want(t, "Reschedule", moveT(r), nil)
		r.crash()
		synctest.Wait()
		if task := r.get("t"); task.State != Pending {
			t.Errorf("moved, it is %v after a crash", task.State)
		}
		want(t, "the old receipt", r.settle(Verdict{Verb: Ack}, d).Err, ErrStale)
		r.checkConsistency()
	})
}
