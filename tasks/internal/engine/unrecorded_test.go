package engine_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// patience is for how long the rig's ledger may be silent before it is known not to answer.
func patience(r *rig.Rig) time.Duration {
	return rig.Engine(r.Scheduler).Config.AnswerWithin / engine.PatienceShare
}

// atOnceDo runs f, which may not wait for anything that time brings.
func atOnceDo[T any](t *testing.T, what string, f func() T) T {
	t.Helper()
	answer := make(chan T, 1)
	go func() { answer <- f() }()
	synctest.Wait()
	select {
	case a := <-answer:
		return a
	default:
		t.Fatalf("%s waits", what)
		panic("unreachable")
	}
}

// spread reserves n tasks of which no two are in one shard.
func spread(r *rig.Rig, n int) []Delivery {
	r.T.Helper()
	shards := make(map[uint16]bool)
	var ds []Delivery
	for i := 0; len(ds) < n; i++ {
		if d := r.One(fmt.Sprint("t", i), "x"); !shards[rig.Begun(d).Shard] {
			shards[rig.Begun(d).Shard] = true
			ds = append(ds, d)
		}
	}
	return ds
}

// wantUnrecorded fails the test unless a settlement counts and is not recorded.
func wantUnrecorded(t *testing.T, a Settled) {
	t.Helper()
	if a.Err != nil || a.Recorded {
		t.Errorf("answer %+v", a)
	}
}

// Once the ledger is known not to answer, no receiver waits for it any more: neither at a
// shard for which it has not answered, nor at the others.
func TestReceiversDoNotWaitInAnOutage(t *testing.T) {
	for name, stop := range map[string]func(r *rig.Rig) (heal func()){
		"Silent": func(r *rig.Rig) func() { _, release := r.Faulty.Hold(ledgertest.Apply); return release },
		"Failing": func(r *rig.Rig) func() {
			r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
			return r.Faulty.Heal
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rig.New(t, Config{}, memledger.Shards(16))
				synctest.Wait()
				ds := spread(r, 8)
				heal := stop(r)
				first := make(chan Settled, 1)
				go func() { first <- r.SettleOne(Verdict{Verb: Ack}, ds[0]) }()
				rig.Pass(patience(r) - time.Millisecond)
				if len(first) != 0 {
					t.Fatalf("nothing is known yet, and the answer is %+v", <-first)
				}
				rig.Pass(2 * time.Millisecond)
				wantUnrecorded(t, atOnceDo(t, "the first", func() Settled { return <-first }))
				for i, v := range []Verdict{{Verb: Ack}, {Verb: Release}, {Verb: Bury}, {Verb: Ack}} {
					a := atOnceDo(t, fmt.Sprint("verdict ", v.Verb), func() Settled { return r.SettleOne(v, ds[i+1]) })
					wantUnrecorded(t, a)
				}
				wantUnrecorded(t, atOnceDo(t, "a repeated ack", func() Settled { return r.SettleOne(Verdict{Verb: Ack}, ds[0]) }))
				if a := atOnceDo(t, "Extend", func() Settled { return r.SettleOne(Verdict{Verb: Extend}, ds[5]) }); a.Err != nil {
					t.Errorf("answer %+v", a)
				}
				// What needs the ledger is still waited for: this may be over soon.
				scheduled := make(chan error, 1)
				go func() {
					_, err := r.Schedule(t.Context(), Request{ID: "new", Topic: "y", Delay: time.Hour})
					scheduled <- err
				}()
				synctest.Wait()
				if len(scheduled) != 0 {
					t.Errorf("Schedule = %v", <-scheduled)
				}
				heal()
				rig.Pass(2 * time.Second)
				rig.Want(t, "Schedule", <-scheduled, nil)
				r.InLedger(ds[0].ID, recovery.Nowhere)
				r.InLedger(ds[3].ID, recovery.Dead)
				r.Ack(ds[6]) // is recorded
				r.Ack(ds[0]) // by now
				r.CheckConsistency()
			})
		})
	}
}

// A server that does not answer is not all of them: what others keep is waited for, and
// called recorded, also when one call settles both.
func TestOneServerDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rig.New(t, Config{}, memledger.Shards(4), memledger.Apart())
		synctest.Wait()
		ds := spread(r, 3)
		_, release := r.Faulty.Hold(ledgertest.Apply)
		stuck := make(chan Settled, 1)
		go func() { stuck <- r.SettleOne(Verdict{Verb: Ack}, ds[0]) }()
		rig.Pass(patience(r) + time.Millisecond)
		wantUnrecorded(t, <-stuck)
		both := make(chan []Settled, 1)
		go func() {
			answers, _ := r.Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[0].Receipt(), ds[1].Receipt()})
			both <- answers
		}()
		synctest.Wait()
		if len(both) != 0 {
			t.Fatal("the call does not wait for the server that may answer")
		}
		if r.Engine().LedgerDown(int(rig.Begun(ds[1]).Shard)) || !r.Engine().LedgerDown(int(rig.Begun(ds[0]).Shard)) {
			t.Error("the wrong server is down")
		}
		release()
		for _, a := range <-both {
			if a.Err != nil || !a.Recorded && a.ID == ds[1].ID {
				t.Errorf("answer %+v", a)
			}
		}
		r.CheckConsistency()
	})
}

// outage begins an outage of which the scheduler knows.
func outage(r *rig.Rig) (heal func()) {
	r.T.Helper()
	_, release := r.Faulty.Hold(ledgertest.Apply)
	go func() { _, _ = r.Schedule(r.T.Context(), Request{ID: "before", Topic: "other", Delay: time.Hour}) }()
	rig.Pass(patience(r) + time.Millisecond)
	return release
}

// A cancellation of a known task counts at once in an outage, and is not called confirmed:
// the end of the process would undo it.
func TestCancelInAnOutage(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *rig.Rig, heal func()){
		"Recorded": func(t *testing.T, r *rig.Rig, heal func()) {
			heal()
			rig.Pass(time.Second)
			rig.Want(t, "Cancel", cancelT(r), nil)
			wantEnd(r, recovery.Nowhere, 0)
		},
		"Killed": func(t *testing.T, r *rig.Rig, heal func()) {
			r.Cut()
			heal()
			r.Open()
			rig.Pass(time.Second)
			r.Pull("x", "t")
		},
		"Long": func(t *testing.T, r *rig.Rig, heal func()) {
			rig.Pass(time.Hour)
			rig.Want(t, "Cancel", atOnceDo(t, "a late repetition", func() error { return cancelT(r) }), ErrUnrecorded)
			heal()
			rig.Pass(time.Second)
			wantEnd(r, recovery.Nowhere, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				r.Must(Request{ID: "t", Topic: "x", Delay: time.Minute})
				heal := outage(r)
				for range 2 {
					rig.Want(t, "Cancel", atOnceDo(t, "Cancel", func() error { return cancelT(r) }), ErrUnrecorded)
				}
				_, err := r.Get(t.Context(), "t")
				rig.Want(t, "Get", err, ErrUnavailable)
				rig.Want(t, "Reschedule", moveT(r), ErrUnavailable)
				rig.Pass(2 * time.Minute)
				r.Pull("x") // not delivered
				r.InLedger("t", recovery.Pending)
				end(t, r, heal)
				r.CheckConsistency()
			})
		})
	}
}

// A retry that is not recorded yet gives way to the cancellation.
func TestCancelBehindARetryInAnOutage(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		heal := outage(r)
		wantUnrecorded(t, r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)}, d))
		rig.Want(t, "Cancel", cancelT(r), ErrUnrecorded)
		heal()
		rig.Pass(time.Second)
		wantEnd(r, recovery.Nowhere, 0)
		r.CheckConsistency()
	})
}

// The tasks of a group are cancelled like a single one.
func TestCancelGroupInAnOutage(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		members(r, 10, time.Minute)
		heal := outage(r)
		for range 2 {
			err := atOnceDo(t, "CancelGroup", func() error { _, err := r.CancelGroup(t.Context(), "g"); return err })
			rig.Want(t, "CancelGroup", err, ErrUnrecorded)
		}
		rig.Pass(2 * time.Minute)
		r.Pull("x")
		heal()
		rig.Pass(time.Second)
		c, err := r.CancelGroup(t.Context(), "g")
		if rig.Want(t, "CancelGroup", err, nil); c.Cancelled != 0 || r.Counts("x").Cancelled != 10 {
			t.Errorf("%+v, %+v", c, r.Counts("x"))
		}
		r.CheckConsistency()
	})
}
