package tasks_test

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
)

// A spoolRig is a rig with a spool, which fails as it is told too.
type spoolRig struct {
	*rig
	spoolMem    *memledger.Ledger
	spoolFaulty *ledgertest.Faulty
}

func spoolBubble(t *testing.T, test func(t *testing.T, r *spoolRig), options ...memledger.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &spoolRig{spoolMem: memledger.New(memledger.Strict())}
		r.spoolFaulty = ledgertest.Wrap(r.spoolMem)
		r.rig = newRig(t, Config{Spool: r.spoolFaulty}, options...)
		t.Cleanup(func() { r.spoolFaulty.Heal() })
		synctest.Wait()
		test(t, r)
	})
}

// crashBoth ends the process as kill -9 would, and starts the next one.
func (r *spoolRig) crashBoth() {
	r.t.Helper()
	r.spoolMem.Crash()
	r.cut()
	r.spoolMem = r.spoolMem.Reopen()
	r.spoolFaulty = ledgertest.Wrap(r.spoolMem)
	r.cfg.Spool = r.spoolFaulty
	r.open()
	synctest.Wait()
}

// away makes the ledger stop answering, and keeps one caller waiting for it, so that
// every caller knows. What that caller wanted may happen or not.
func (r *spoolRig) away() {
	r.t.Helper()
	r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
	for i := range r.Engine().Terms.Shards {
		for n := 0; ; n++ {
			if id := fmt.Sprintf("probe-%d-%d", i, n); r.Engine().Terms.ShardOf([]byte(id)) == i {
				_, err := r.Schedule(r.t.Context(), Request{ID: id, Topic: "probe", Delay: time.Hour})
				want(r.t, "Schedule of a chosen id", err, ErrUnknown)
				break
			}
		}
	}
}

// movingBatch is which batch, after Heal, moves what was spooled: those before are of
// the caller that away has left waiting.
const movingBatch = 3

// spooled schedules a task that has to go to the spool.
func (r *spoolRig) spooled(topic string, delay time.Duration) string {
	r.t.Helper()
	task := r.must(Request{Topic: topic, Delay: delay, Payload: []byte(`{"a":1}`)})
	if !task.Spooled {
		r.t.Fatalf("%s is not spooled", task.ID)
	}
	return task.ID
}

// wantSpool waits for the mover, and fails unless the spool holds and has moved so many.
func (r *spoolRig) wantSpool(tasks int, moved int64) {
	r.t.Helper()
	pass(3 * time.Second)
	if s := r.Stats().Spool; s.Tasks != tasks || s.Moved != moved {
		r.t.Errorf("the spool has %d tasks, and %d were moved; want %d, %d", s.Tasks, s.Moved, tasks, moved)
	}
}

// What cannot be written to the ledger is taken in by the spool, is a task like any
// other, is delivered in time, and goes to the ledger when it is back.
func TestSpool(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		var delivered collection[string]
		r.handle("x", func(_ context.Context, d *Delivery) error { delivered.add(d.ID); return nil })
		before := r.must(Request{Topic: "y", Delay: time.Hour})
		if before.Spooled {
			t.Error("spooled without need")
		}
		r.away()
		soon, later := r.spooled("x", 5*time.Second), r.spooled("y", time.Hour)
		cancelled, moved := r.spooled("y", time.Hour), r.spooled("y", time.Hour)
		want(t, "Cancel", r.Cancel(t.Context(), cancelled), nil)
		_, err := r.Reschedule(t.Context(), moved, Move{Delay: ptr(2 * time.Hour), Payload: []byte("2")})
		want(t, "Reschedule", err, nil)
		if task := r.get(moved); !task.Spooled || string(task.Payload) != "2" {
			t.Errorf("moved: %+v", task)
		}
		results, err := r.ScheduleBatch(t.Context(), []Request{{Topic: "y", Delay: time.Hour}, {ID: "chosen", Topic: "y"}})
		want(t, "ScheduleBatch", err, nil)
		if results[0].Err != nil || !results[0].Spooled || results[1].Err == nil {
			t.Errorf("results: %+v", results)
		}
		pass(6 * time.Second)
		if got := delivered.list(); !slices.Equal(got, []string{soon}) {
			t.Errorf("delivered during the outage: %v", got)
		}
		for _, id := range []string{soon, later, moved} {
			r.inLedger(id, recovery.Nowhere)
		}

		r.faulty.Heal()
		r.wantSpool(0, 3)
		for _, id := range []string{later, moved, results[0].ID} {
			r.inLedger(id, recovery.Pending)
			if r.get(id).Spooled {
				t.Errorf("%s still counts as spooled", id)
			}
		}
		for _, id := range []string{soon, cancelled} {
			r.inLedger(id, recovery.Nowhere)
		}
		if !r.log.has("they are spooled") || !r.log.has("nothing is left in the spool") {
			t.Error("the log does not tell when spooling began and ended")
		}
		if r.must(Request{Topic: "y", Delay: time.Hour}).Spooled {
			t.Error("spooled although the ledger is back")
		}
	}, memledger.Shards(4))
}

// One caller finds out that the ledger does not answer, and all others are spared that,
// whatever their shard.
func TestSpoolAfterOneVictim(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		_, err := r.Schedule(t.Context(), Request{Topic: "y", Delay: time.Hour})
		want(t, "the first one", err, ErrUnknown)
		for range 40 {
			r.spooled("y", time.Hour)
		}
		pass(time.Second)
		if n := r.Engine().Committer.Stats().Queued; n != 1 {
			t.Errorf("the ledger was sent %d changes that it does not answer", n)
		}
		r.faulty.Heal()
		r.wantSpool(0, 40)
	}, memledger.Shards(8))
}

// A schedule that was not sent to the ledger yet when it stopped answering goes to the
// spool; one that was has an open outcome.
func TestSpoolTakesWhatWasNotSent(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		_, release := r.faulty.Hold(ledgertest.Apply)
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
		want(t, "behind", <-behind, nil)
		want(t, "behind", <-behind, nil)
		want(t, "sent", <-sent, ErrUnknown)
		release()
		r.wantSpool(0, 4)
		if n := r.Stats().Total.Pending; n != 4 {
			t.Errorf("%d tasks are pending", n)
		}
	})
}

// A ledger without room is one that does not take schedules, and a spool without room
// takes none either.
func TestSpoolAndRoom(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		r.faulty.SetCondition(recovery.ErrFull)
		r.faulty.SetFull(true)
		pass(time.Second)
		r.spooled("y", time.Hour)
		r.spoolFaulty.SetCondition(recovery.ErrFull)
		pass(time.Second)
		_, err := r.Schedule(t.Context(), Request{Topic: "y"})
		want(t, "Schedule", err, ErrUnavailable)
		if r.Stats().Spool.Condition == "" {
			t.Error("the condition does not say that the spool is full")
		}
		r.faulty.SetCondition(nil) // and yet Apply refuses
		r.wantSpool(1, 0)
		r.faulty.SetFull(false)
		r.wantSpool(0, 1)
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
			spoolBubble(t, func(t *testing.T, r *spoolRig) {
				r.away()
				id := r.spooled("x", 10*time.Second)
				r.faulty.Heal()
				if c.ledger != nil {
					r.faulty.Inject(*c.ledger)
				}
				if c.spool != nil {
					r.spoolFaulty.Inject(*c.spool)
				}
				pass(20 * time.Second)
				if c.ack {
					r.ack(r.pull("x", id)[0])
				}
				r.crashBoth()
				r.wantSpool(0, c.moved)
				if c.ack {
					r.inLedger(id, recovery.Nowhere)
					r.pull("x")
					return
				}
				r.inLedger(id, recovery.Pending)
				r.ack(r.pull("x", id)[0])
				r.inLedger(id, recovery.Nowhere)
				r.crashBoth()
				r.pull("x")
			})
		})
	}
}

// A task that cannot be moved yet is not overtaken: the mark would say that it was.
func TestSpoolKeepsOrder(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		r.away()
		first, second := r.spooled("y", time.Hour), r.spooled("y", time.Hour)
		_, release := r.spoolFaulty.Hold(ledgertest.Apply)
		_, err := r.Reschedule(t.Context(), first, Move{Delay: ptr(time.Minute)})
		want(t, "Reschedule", err, ErrUnknown)
		r.faulty.Heal()
		r.wantSpool(2, 0)
		r.crashBoth()
		release()
		r.wantSpool(0, 2)
		r.inLedger(first, recovery.Pending)
		r.inLedger(second, recovery.Pending)
	})
}

// While a move is not answered, its task is delivered all the same; what becomes of it is
// written behind the move.
func TestSpoolDeliversWhileMoving(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		r.topic("x", TopicSettings{Retry: Retry{MaxAttempts: 1}})
		r.away()
		acked, buried := r.spooled("x", 5*time.Second), r.spooled("x", 6*time.Second)
		r.faulty.Heal()
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: movingBatch, Times: -1, After: true})
		pass(7 * time.Second)
		ds := r.pull("x", acked, buried)
		for i, verb := range []Verb{Ack, Release} {
			if a := r.settle(Verdict{Verb: verb}, ds[i]); a.Err != nil || a.Recorded {
				t.Errorf("settled during the outage: %+v", a)
			}
		}
		r.faulty.Heal()
		r.wantSpool(0, 2)
		r.inLedger(acked, recovery.Nowhere)
		r.inLedger(buried, recovery.Dead)
	})
}

// A task that dies in the spool is buried in the ledger, when it is there.
func TestSpoolBuriesInTheLedger(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		r.away()
		id := r.spooled("x", 0)
		if a := r.settle(Verdict{Verb: Bury, Reason: "no"}, r.pull("x", id)[0]); a.Err != nil || a.Recorded {
			t.Errorf("buried during the outage: %+v", a)
		}
		r.faulty.Heal()
		r.wantSpool(0, 1)
		if f := r.inLedger(id, recovery.Dead); string(f.LastError) != "no" || f.State != record.Buried {
			t.Errorf("the dead record: %+v", f)
		}
	})
}

// A spooled task has its retries and its parked deliveries after a restart, and a
// restart gives no number twice.
func TestSpoolRestart(t *testing.T) {
	spoolBubble(t, func(t *testing.T, r *spoolRig) {
		r.away()
		retried, parked := r.spooled("x", 0), r.spooled("x", 0)
		ds := r.pull("x", retried, parked)
		if a := r.settle(Verdict{Verb: Release, Delay: ptr(time.Hour)}, ds[0]); a.Err != nil || !a.Recorded {
			t.Errorf("released: %+v", a)
		}
		last := r.Engine().Spool.Last
		_ = r.Close(t.Context()) // the probes are given up
		r.mem, r.spoolMem = r.mem.Reopen(), r.spoolMem.Reopen()
		r.spoolFaulty = ledgertest.Wrap(r.spoolMem)
		r.cfg.Spool = r.spoolFaulty
		r.open()
		synctest.Wait()
		if r.Engine().Spool.Last <= last {
			t.Errorf("numbers go on from %d after %d", r.Engine().Spool.Last, last)
		}
		r.wantSpool(0, 2)
		if r.get(retried).Attempt != 1 {
			t.Errorf("retried: %+v", r.get(retried))
		}
		r.ack(ds[1])
		r.inLedger(parked, recovery.Nowhere)
	})
}

// A spooled task of a topic that was deleted by force is not delivered before its deadline if the
// process ends between the move to the ledger and the burial. If it was held, it stays so.
func TestKilledInTheSpool(t *testing.T) {
	for _, held := range []bool{false, true} {
		for after := 3; after <= 6; after++ {
			spoolBubble(t, func(t *testing.T, r *spoolRig) {
				r.away()
				id := r.spooled("x", time.Hour)
				if held {
					r.hold(id)
				}
				_, _ = r.KillTopic(t.Context(), "x", -1)
				r.faulty.Heal()
				r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: after, Times: -1})
				pass(3 * time.Second)
				r.crashBoth()
				r.faulty.Heal()
				pass(5 * time.Second)
				if got, err := r.Reserve(t.Context(), "x", 10, time.Minute, 0); len(got) > 0 {
					t.Errorf("held %t, fault %d: delivered an hour early: %v, %v", held, after, got, err)
				}
			}, memledger.Shards(4))
		}
	}
}
