package tasks_test

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
)

// patience is for how long the rig's ledger may be silent before it is known not to answer.
func (r *rig) patience() time.Duration {
	return r.Scheduler.Engine().Config.AnswerWithin / engine.PatienceShare
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
func (r *rig) spread(n int) []Delivery {
	r.t.Helper()
	shards := make(map[uint16]bool)
	var ds []Delivery
	for i := 0; len(ds) < n; i++ {
		if d := r.one(fmt.Sprint("t", i), "x"); !shards[begun(d).Shard] {
			shards[begun(d).Shard] = true
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
	for name, stop := range map[string]func(r *rig) (heal func()){
		"Silent": func(r *rig) func() { _, release := r.faulty.Hold(ledgertest.Apply); return release },
		"Failing": func(r *rig) func() {
			r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
			return r.faulty.Heal
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{}, memledger.Shards(16))
				synctest.Wait()
				ds := r.spread(8)
				heal := stop(r)
				first := make(chan Settled, 1)
				go func() { first <- r.settle(Verdict{Verb: Ack}, ds[0]) }()
				pass(r.patience() - time.Millisecond)
				if len(first) != 0 {
					t.Fatalf("nothing is known yet, and the answer is %+v", <-first)
				}
				pass(2 * time.Millisecond)
				wantUnrecorded(t, atOnceDo(t, "the first", func() Settled { return <-first }))
				for i, v := range []Verdict{{Verb: Ack}, {Verb: Release}, {Verb: Bury}, {Verb: Ack}} {
					a := atOnceDo(t, fmt.Sprint("verdict ", v.Verb), func() Settled { return r.settle(v, ds[i+1]) })
					wantUnrecorded(t, a)
				}
				wantUnrecorded(t, atOnceDo(t, "a repeated ack", func() Settled { return r.settle(Verdict{Verb: Ack}, ds[0]) }))
				if a := atOnceDo(t, "Extend", func() Settled { return r.settle(Verdict{Verb: Extend}, ds[5]) }); a.Err != nil {
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
				pass(2 * time.Second)
				want(t, "Schedule", <-scheduled, nil)
				r.inLedger(ds[0].ID, recovery.Nowhere)
				r.inLedger(ds[3].ID, recovery.Dead)
				r.ack(ds[6]) // is recorded
				r.ack(ds[0]) // by now
				r.checkConsistency()
			})
		})
	}
}

// A server that does not answer is not all of them: what others keep is waited for, and
// called recorded, also when one call settles both.
func TestOneServerDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, memledger.Shards(4), memledger.Apart())
		synctest.Wait()
		ds := r.spread(3)
		_, release := r.faulty.Hold(ledgertest.Apply)
		stuck := make(chan Settled, 1)
		go func() { stuck <- r.settle(Verdict{Verb: Ack}, ds[0]) }()
		pass(r.patience() + time.Millisecond)
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
		if r.Engine().LedgerDown(int(begun(ds[1]).Shard)) || !r.Engine().LedgerDown(int(begun(ds[0]).Shard)) {
			t.Error("the wrong server is down")
		}
		release()
		for _, a := range <-both {
			if a.Err != nil || !a.Recorded && a.ID == ds[1].ID {
				t.Errorf("answer %+v", a)
			}
		}
		r.checkConsistency()
	})
}

// outage begins an outage of which the scheduler knows.
func (r *rig) outage() (heal func()) {
	r.t.Helper()
	_, release := r.faulty.Hold(ledgertest.Apply)
	go func() { _, _ = r.Schedule(r.t.Context(), Request{ID: "before", Topic: "other", Delay: time.Hour}) }()
	pass(r.patience() + time.Millisecond)
	return release
}

// A cancellation of a known task counts at once in an outage, and is not called confirmed:
// the end of the process would undo it.
func TestCancelInAnOutage(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *rig, heal func()){
		"Recorded": func(t *testing.T, r *rig, heal func()) {
			heal()
			pass(time.Second)
			want(t, "Cancel", cancelT(r), nil)
			r.wantEnd(recovery.Nowhere, 0)
		},
		"Killed": func(t *testing.T, r *rig, heal func()) {
			r.cut()
			heal()
			r.open()
			pass(time.Second)
			r.pull("x", "t")
		},
		"Long": func(t *testing.T, r *rig, heal func()) {
			pass(time.Hour)
			want(t, "Cancel", atOnceDo(t, "a late repetition", func() error { return cancelT(r) }), ErrUnrecorded)
			heal()
			pass(time.Second)
			r.wantEnd(recovery.Nowhere, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.must(Request{ID: "t", Topic: "x", Delay: time.Minute})
				heal := r.outage()
				for range 2 {
					want(t, "Cancel", atOnceDo(t, "Cancel", func() error { return cancelT(r) }), ErrUnrecorded)
				}
				_, err := r.Get(t.Context(), "t")
				want(t, "Get", err, ErrUnavailable)
				want(t, "Reschedule", moveT(r), ErrUnavailable)
				pass(2 * time.Minute)
				r.pull("x") // not delivered
				r.inLedger("t", recovery.Pending)
				end(t, r, heal)
				r.checkConsistency()
			})
		})
	}
}

// A retry that is not recorded yet gives way to the cancellation.
func TestCancelBehindARetryInAnOutage(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		d := r.one("t", "x")
		heal := r.outage()
		wantUnrecorded(t, r.settle(Verdict{Verb: Release, Delay: ptr(time.Hour)}, d))
		want(t, "Cancel", cancelT(r), ErrUnrecorded)
		heal()
		pass(time.Second)
		r.wantEnd(recovery.Nowhere, 0)
		r.checkConsistency()
	})
}

// The tasks of a group are cancelled like a single one.
func TestCancelGroupInAnOutage(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.members(10, time.Minute)
		heal := r.outage()
		for range 2 {
			err := atOnceDo(t, "CancelGroup", func() error { _, err := r.CancelGroup(t.Context(), "g"); return err })
			want(t, "CancelGroup", err, ErrUnrecorded)
		}
		pass(2 * time.Minute)
		r.pull("x")
		heal()
		pass(time.Second)
		c, err := r.CancelGroup(t.Context(), "g")
		if want(t, "CancelGroup", err, nil); c.Cancelled != 0 || r.counts("x").Cancelled != 10 {
			t.Errorf("%+v, %+v", c, r.counts("x"))
		}
		r.checkConsistency()
	})
}
