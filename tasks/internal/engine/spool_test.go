package engine_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// movingBatch is which batch, after Heal, moves what was spooled: those before are of
// the caller that away has left waiting.
const movingBatch = 3

// What cannot be written to the ledger is taken in by the spool, is a task like any
// other, is delivered in time, and goes to the ledger when it is back.
func TestSpool(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		var delivered rig.Collection[string]
		r.MustHandle("x", func(_ context.Context, d *Delivery) error { delivered.Add(d.ID); return nil })
		before := r.Must(Request{Topic: "y", Delay: time.Hour})
		if before.Spooled {
			t.Error("spooled without need")
		}
		r.Away()
		soon, later := r.Spooled("x", 5*time.Second), r.Spooled("y", time.Hour)
		cancelled, moved := r.Spooled("y", time.Hour), r.Spooled("y", time.Hour)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), cancelled), nil)
		_, err := r.Reschedule(t.Context(), moved, Move{Delay: rig.Ptr(2 * time.Hour), Payload: []byte("2")})
		rig.Want(t, "Reschedule", err, nil)
		if task := r.MustGet(moved); !task.Spooled || string(task.Payload) != "2" {
			t.Errorf("moved: %+v", task)
		}
		results, err := r.ScheduleBatch(t.Context(), []Request{{Topic: "y", Delay: time.Hour}, {ID: "chosen", Topic: "y"}})
		rig.Want(t, "ScheduleBatch", err, nil)
		if results[0].Err != nil || !results[0].Spooled || results[1].Err == nil {
			t.Errorf("results: %+v", results)
		}
		rig.Pass(6 * time.Second)
		if got := delivered.List(); !slices.Equal(got, []string{soon}) {
			t.Errorf("delivered during the outage: %v", got)
		}
		for _, id := range []string{soon, later, moved} {
			r.InLedger(id, recovery.Nowhere)
		}

		r.Faulty.Heal()
		r.WantSpool(0, 3)
		for _, id := range []string{later, moved, results[0].ID} {
			r.InLedger(id, recovery.Pending)
			if r.MustGet(id).Spooled {
				t.Errorf("%s still counts as spooled", id)
			}
		}
		for _, id := range []string{soon, cancelled} {
			r.InLedger(id, recovery.Nowhere)
		}
		if !r.Log.Has("they are spooled") || !r.Log.Has("nothing is left in the spool") {
			t.Error("the log does not tell when spooling began and ended")
		}
		if r.Must(Request{Topic: "y", Delay: time.Hour}).Spooled {
			t.Error("spooled although the ledger is back")
		}
	}, memledger.Shards(4))
}

// One caller finds out that the ledger does not answer, and all others are spared that,
// whatever their shard.
func TestSpoolAfterOneVictim(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		_, err := r.Schedule(t.Context(), Request{Topic: "y", Delay: time.Hour})
		rig.Want(t, "the first one", err, ErrUnknown)
		for range 40 {
			r.Spooled("y", time.Hour)
		}
		rig.Pass(time.Second)
		if n := r.Engine().Committer.Stats().Queued; n != 1 {
			t.Errorf("the ledger was sent %d changes that it does not answer", n)
		}
		r.Faulty.Heal()
		r.WantSpool(0, 40)
	}, memledger.Shards(8))
}

// A schedule that was not sent to the ledger yet when it stopped answering goes to the
// spool; one that was has an open outcome.
func TestSpoolTakesWhatWasNotSent(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		_, release := r.Faulty.Hold(ledgertest.Apply)
		schedule := func(answers chan<- error) {
			task, err := r.Schedule(t.Context(), Request{Topic: "y", Delay: time.Hour})
			if err == nil && !task.Spooled {
				err = fmt.Errorf("%s is not spooled", task.ID)
			}
			answers <- err
		}
		sent, behind := make(chan error, 1), make(chan error, 2)
		go schedule(sent)
		synctest.Wait()
		go schedule(behind)
		go func() {
			results, err := r.ScheduleBatch(t.Context(), slices.Repeat([]Request{{Topic: "y", Delay: time.Hour}}, 3))
			for _, res := range results {
				if err == nil && !res.Spooled {
					err = fmt.Errorf("%s is not spooled: %w", res.ID, res.Err)
				}
			}
			behind <- err
		}()
		rig.Want(t, "behind", <-behind, nil)
		rig.Want(t, "behind", <-behind, nil)
		rig.Want(t, "sent", <-sent, ErrUnknown)
		release()
		r.WantSpool(0, 4)
		if n := r.Stats().Total.Pending; n != 4 {
			t.Errorf("%d tasks are pending", n)
		}
	})
}

// A ledger without room is one that does not take schedules, and a spool without room
// takes none either.
func TestSpoolAndRoom(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		r.Faulty.SetCondition(recovery.ErrFull)
		r.Faulty.SetFull(true)
		rig.Pass(time.Second)
		r.Spooled("y", time.Hour)
		r.SpoolFaulty.SetCondition(recovery.ErrFull)
		rig.Pass(time.Second)
		_, err := r.Schedule(t.Context(), Request{Topic: "y"})
		rig.Want(t, "Schedule", err, ErrUnavailable)
		if r.Stats().Spool.Condition == "" {
			t.Error("the condition does not say that the spool is full")
		}
		r.Faulty.SetCondition(nil) // and yet Apply refuses
		r.WantSpool(1, 0)
		r.Faulty.SetFull(false)
		r.WantSpool(0, 1)
	})
}

// The process dies anywhere between what the ledger has and what the spool has
// forgotten: there is one record, and one delivery.
func TestSpoolCrash(t *testing.T) {
	never := ledgertest.Fault{Op: ledgertest.Apply, Times: -1}
	late := ledgertest.Fault{Op: ledgertest.Apply, Times: -1, After: true}
	neverMoved, lateMoved := never, late
	neverMoved.Nth, lateMoved.Nth = movingBatch, movingBatch
	for name, c := range map[string]struct {
		ledger, spool *ledgertest.Fault
		ack           bool // before the crash
		moved         int64
	}{
		"before the move":                {&neverMoved, nil, false, 1},
		"the move was not answered":      {&lateMoved, nil, false, 0},
		"the spool has not forgotten":    {nil, &never, false, 0},
		"nor has it, and it is finished": {nil, &never, true, 0},
		"the spool's answer was lost":    {nil, &late, false, 0},
		"both have it, and it is over":   {nil, &late, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
				r.Away()
				id := r.Spooled("x", 10*time.Second)
				r.Faulty.Heal()
				if c.ledger != nil {
					r.Faulty.Inject(*c.ledger)
				}
				if c.spool != nil {
					r.SpoolFaulty.Inject(*c.spool)
				}
				rig.Pass(20 * time.Second)
				if c.ack {
					r.Ack(r.Pull("x", id)[0])
				}
				r.CrashBoth()
				r.WantSpool(0, c.moved)
				if c.ack {
					r.InLedger(id, recovery.Nowhere)
					r.Pull("x")
					return
				}
				r.InLedger(id, recovery.Pending)
				r.Ack(r.Pull("x", id)[0])
				r.InLedger(id, recovery.Nowhere)
				r.CrashBoth()
				r.Pull("x")
			})
		})
	}
}

// A task that cannot be moved yet is not overtaken: the mark would say that it was.
func TestSpoolKeepsOrder(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		r.Away()
		first, second := r.Spooled("y", time.Hour), r.Spooled("y", time.Hour)
		_, release := r.SpoolFaulty.Hold(ledgertest.Apply)
		_, err := r.Reschedule(t.Context(), first, Move{Delay: rig.Ptr(time.Minute)})
		rig.Want(t, "Reschedule", err, ErrUnknown)
		r.Faulty.Heal()
		r.WantSpool(2, 0)
		r.CrashBoth()
		release()
		r.WantSpool(0, 2)
		r.InLedger(first, recovery.Pending)
		r.InLedger(second, recovery.Pending)
	})
}

// While a move is not answered, its task is delivered all the same; what becomes of it is
// written behind the move.
func TestSpoolDeliversWhileMoving(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 1}})
		r.Away()
		acked, buried := r.Spooled("x", 5*time.Second), r.Spooled("x", 6*time.Second)
		r.Faulty.Heal()
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: movingBatch, Times: -1, After: true})
		rig.Pass(7 * time.Second)
		ds := r.Pull("x", acked, buried)
		for i, verb := range []Verb{Ack, Release} {
			if a := r.SettleOne(Verdict{Verb: verb}, ds[i]); a.Err != nil || a.Recorded {
				t.Errorf("settled during the outage: %+v", a)
			}
		}
		r.Faulty.Heal()
		r.WantSpool(0, 2)
		r.InLedger(acked, recovery.Nowhere)
		r.InLedger(buried, recovery.Dead)
	})
}

// A task that dies in the spool is buried in the ledger, when it is there.
func TestSpoolBuriesInTheLedger(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		r.Away()
		id := r.Spooled("x", 0)
		if a := r.SettleOne(Verdict{Verb: Bury, Reason: "no"}, r.Pull("x", id)[0]); a.Err != nil || a.Recorded {
			t.Errorf("buried during the outage: %+v", a)
		}
		r.Faulty.Heal()
		r.WantSpool(0, 1)
		if f := r.InLedger(id, recovery.Dead); string(f.LastError) != "no" || f.State != record.Buried {
			t.Errorf("the dead record: %+v", f)
		}
	})
}

// A spooled task has its retries and its parked deliveries after a restart, and a
// restart gives no number twice.
func TestSpoolRestart(t *testing.T) {
	rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
		r.Away()
		retried, parked := r.Spooled("x", 0), r.Spooled("x", 0)
		ds := r.Pull("x", retried, parked)
		if a := r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Hour)}, ds[0]); a.Err != nil || !a.Recorded {
			t.Errorf("released: %+v", a)
		}
		last := r.Engine().Spool.Last
		_ = r.Close(t.Context()) // the probes are given up
		r.Mem, r.SpoolMem = r.Mem.Reopen(), r.SpoolMem.Reopen()
		r.SpoolFaulty = ledgertest.Wrap(r.SpoolMem)
		r.Cfg.Spool = r.SpoolFaulty
		r.Open()
		synctest.Wait()
		if r.Engine().Spool.Last <= last {
			t.Errorf("numbers go on from %d after %d", r.Engine().Spool.Last, last)
		}
		r.WantSpool(0, 2)
		if r.MustGet(retried).Attempt != 1 {
			t.Errorf("retried: %+v", r.MustGet(retried))
		}
		r.Ack(ds[1])
		r.InLedger(parked, recovery.Nowhere)
	})
}

// A spooled task of a topic that was deleted by force is not delivered before its deadline if the
// process ends between the move to the ledger and the burial. If it was held, it stays so.
func TestKilledInTheSpool(t *testing.T) {
	for _, held := range []bool{false, true} {
		for after := 3; after <= 6; after++ {
			rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
				r.Away()
				id := r.Spooled("x", time.Hour)
				if held {
					hold(r.Rig, id)
				}
				_, _ = r.Admin().KillTopic(t.Context(), "x", -1)
				r.Faulty.Heal()
				r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: after, Times: -1})
				rig.Pass(3 * time.Second)
				r.CrashBoth()
				r.Faulty.Heal()
				rig.Pass(5 * time.Second)
				if got, err := r.Reserve(t.Context(), "x", 10, time.Minute, 0); len(got) > 0 {
					t.Errorf("held %t, fault %d: delivered an hour early: %v, %v", held, after, got, err)
				}
			}, memledger.Shards(4))
		}
	}
}
