package tasks_test

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
)

// Receipts that count no longer, whatever the verdict.
func TestStaleReceipts(t *testing.T) {
	for name, end := range map[string]func(r *rig, d tasks.Delivery){
		"acknowledged": func(r *rig, d tasks.Delivery) { r.ack(d) },
		"released":     func(r *rig, d tasks.Delivery) { r.settle(tasks.Verdict{Verb: tasks.Release}, d) },
		"buried":       func(r *rig, d tasks.Delivery) { r.settle(tasks.Verdict{Verb: tasks.Bury}, d) },
		"lease out":    func(*rig, tasks.Delivery) { pass(time.Hour) },
		"handed out again": func(r *rig, d tasks.Delivery) {
			r.settle(tasks.Verdict{Verb: tasks.Release, Delay: ptr(time.Duration(0))}, d)
			r.pull("x", "t")
		},
		"moved since": func(r *rig, d tasks.Delivery) {
			r.settle(tasks.Verdict{Verb: tasks.Release}, d)
			_, err := r.Reschedule(r.t.Context(), "t", tasks.Move{Delay: ptr(time.Hour)})
			want(r.t, "Reschedule", err, nil)
		},
		"replaced since": func(r *rig, d tasks.Delivery) {
			r.settle(tasks.Verdict{Verb: tasks.Release}, d)
			_, err := r.Replace(r.t.Context(), tasks.Request{ID: "t", Topic: "x"})
			want(r.t, "Replace", err, nil)
		},
		"the id created again": func(r *rig, d tasks.Delivery) {
			r.settle(tasks.Verdict{Verb: tasks.Release}, d)
			want(r.t, "Cancel", r.Cancel(r.t.Context(), "t"), nil)
			r.must(tasks.Request{ID: "t", Topic: "x"}) // within the same millisecond
		},
		"returned": func(r *rig, d tasks.Delivery) { r.Return([]tasks.Delivery{d}) },
		"requeued since": func(r *rig, d tasks.Delivery) {
			r.settle(tasks.Verdict{Verb: tasks.Bury}, d)
			_, err := r.Requeue(r.t.Context(), "x", tasks.Requeue{})
			want(r.t, "Requeue", err, nil)
		},
		"crash and handed out again": func(r *rig, _ tasks.Delivery) {
			r.crash()
			pass(time.Second)
			r.pull("x", "t")
		},
		"released before a crash": func(r *rig, d tasks.Delivery) {
			r.settle(tasks.Verdict{Verb: tasks.Release}, d)
			r.crash()
			pass(time.Second)
		},
		"lease out before a restart": func(r *rig, _ tasks.Delivery) {
			pass(time.Hour)
			r.restart()
			pass(time.Second)
		},
		"crash and the id created again": func(r *rig, _ tasks.Delivery) {
			r.crash()
			pass(time.Second)
			want(r.t, "Cancel", r.Cancel(r.t.Context(), "t"), nil)
			r.must(tasks.Request{ID: "t", Topic: "x"})
		},
		"crash and moved": func(r *rig, _ tasks.Delivery) {
			r.crash()
			_, err := r.Fire(r.t.Context(), "t")
			want(r.t, "Fire", err, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
				d := r.one("t", "x")
				end(r, d)
				before, _ := r.Get(t.Context(), "t")
				for _, v := range []tasks.Verb{tasks.Release, tasks.Extend, tasks.Bury} {
					want(t, "an old receipt", r.settle(tasks.Verdict{Verb: v}, d).Err, tasks.ErrStale)
				}
				if name != "acknowledged" {
					want(t, "an old receipt", r.settle(tasks.Verdict{Verb: tasks.Ack}, d).Err, tasks.ErrStale)
				}
				after, _ := r.Get(t.Context(), "t")
				if before.State != after.State || before.Attempt != after.Attempt || before.Revision != after.Revision {
					t.Errorf("it has changed the task: %+v, %+v", before, after)
				}
				pass(time.Second)
				r.checkConsistency()
			})
		})
	}
}

// A repeated acknowledgement gets the answer of the first; also when the id has
// been used again since.
func TestRepeatedAck(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		d := r.one("t", "x")
		for range 3 {
			r.ack(d)
		}
		answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, []string{d.Receipt(), d.Receipt()})
		want(t, "Settle", err, nil)
		for _, a := range answers {
			if a.Err != nil || !a.Recorded || a.ID != "t" {
				t.Errorf("answer %+v", a)
			}
		}
		pass(time.Millisecond)
		again := r.one("t", "x")
		r.ack(d)
		if task := r.get("t"); task.State != tasks.Delivering {
			t.Errorf("the old receipt has settled the new task: %v", task.State)
		}
		r.ack(again)
		if c := r.counts("x"); c.Delivered != 2 {
			t.Errorf("%d delivered", c.Delivered)
		}
	})
}

// With the ledger down, verdicts count here and now, the answer says that they are not
// recorded yet, and comes in time.
func TestSettleDuringOutage(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		var receipts []string
		for range 50 {
			r.must(tasks.Request{Topic: "x"})
		}
		ds, err := r.Reserve(t.Context(), "x", 50, 0, time.Hour)
		want(t, "Reserve", err, nil)
		for _, d := range ds {
			receipts = append(receipts, d.Receipt())
		}
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		for range 3 {
			began := time.Now()
			answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, receipts)
			want(t, "Settle", err, nil)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			for _, a := range answers {
				if a.Err != nil || a.Recorded {
					t.Fatalf("answer %+v", a)
				}
			}
		}
		pass(2 * time.Hour)
		r.pull("x") // never again
		r.faulty.Heal()
		pass(2 * time.Second)
		answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, receipts)
		want(t, "Settle", err, nil)
		if a := answers[0]; a.Err != nil || !a.Recorded {
			t.Errorf("afterwards %+v", a)
		}
		if pendings, _ := r.dump(); len(pendings) != 0 {
			t.Errorf("%d are left in the ledger", len(pendings))
		}
		r.checkConsistency()
	})
}

// Releases that overtake the ledger: only the last one is written, and none is
// called recorded before it is.
func TestReleasesDuringOutage(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		d := r.one("t", "x")
		_, release := r.faulty.Hold(ledgertest.Apply)
		answers := make(chan tasks.Settled, 3)
		for range 3 {
			go func() { answers <- r.settle(tasks.Verdict{Verb: tasks.Release, Delay: ptr(time.Duration(0))}, d) }()
			pass(100 * time.Millisecond)
			d = r.pull("x", "t")[0]
		}
		for len(answers) > 0 {
			if a := <-answers; a.Err != nil || a.Recorded {
				t.Errorf("before the ledger has answered: %+v", a)
			}
		}
		release()
		pass(time.Second)
		if f := r.inLedger("t", recovery.Pending); f.Attempt != 3 {
			t.Errorf("%d attempts are recorded, want 3", f.Attempt)
		}
		r.ack(d)
	})
}

// A cancel that is taken back must not take a retry with it that was not recorded yet.
func TestCancelGivenUpBehindARetry(t *testing.T) {
	bubble(t, tasks.Config{AnswerWithin: time.Minute}, func(t *testing.T, r *rig) {
		d := r.one("t", "x")
		_, release := r.faulty.Hold(ledgertest.Apply)
		for range 2 {
			go r.settle(tasks.Verdict{Verb: tasks.Release, Delay: ptr(time.Second)}, d)
			pass(1100 * time.Millisecond)
			d = r.pull("x", "t")[0]
		}
		go r.settle(tasks.Verdict{Verb: tasks.Release, Delay: ptr(time.Hour)}, d)
		pass(100 * time.Millisecond)
		want(t, "Cancel", r.Cancel(t.Context(), "t"), tasks.ErrUnavailable)
		release()
		pass(time.Second)
		if f := r.inLedger("t", recovery.Pending); f.Attempt != 3 {
			t.Errorf("%d attempts are recorded, want 3", f.Attempt)
		}
		r.checkConsistency()
	})
}

func TestSettleAnswersEachReceipt(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		a, b := r.one("a", "x"), r.one("b", "x")
		other := newRig(t, tasks.Config{})
		answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, []string{a.Receipt(), "nonsense", other.one("a", "x").Receipt(), b.Receipt()})
		want(t, "Settle", err, nil)
		for i, kind := range []error{nil, tasks.ErrReceipt, tasks.ErrReceipt, nil} {
			want(t, "answer", answers[i].Err, kind)
		}
		if answers[0].ID != "a" || answers[3].ID != "b" {
			t.Errorf("ids %q, %q", answers[0].ID, answers[3].ID)
		}
	})
}

func TestRelease(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		d := r.one("t", "x")
		at := r.clock.now()
		if a := r.settle(tasks.Verdict{Verb: tasks.Release, Delay: ptr(10 * time.Minute), Reason: "later"}, d); a.Err != nil || !a.Recorded {
			t.Fatalf("answer %+v", a)
		}
		task := r.get("t")
		if task.Attempt != 1 || task.LastError != "later" || task.Next.Sub(at) != 10*time.Minute || !task.Due.Equal(d.Due) {
			t.Errorf("afterwards %+v", task)
		}
		pass(10*time.Minute - time.Millisecond)
		r.pull("x")
		pass(2 * time.Millisecond)
		if d := r.pull("x", "t")[0]; d.Attempt != 2 {
			t.Errorf("attempt %d", d.Attempt)
		}
	})
}

// Receipts outlive the process that made them.
func TestReceiptsAfterARestart(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(r *rig){
		"Close": (*rig).restart, "Crash": (*rig).crash,
		"twice closed": func(r *rig) { r.restart(); r.restart() },
		"closed, then crashed": func(r *rig) {
			r.restart()
			pass(time.Second)
			r.crash()
		},
	} {
		for _, counted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
					r.topic("x", tasks.TopicSettings{CountCrashes: counted})
					acked, released, extended := r.one("acked", "x"), r.one("released", "x"), r.one("extended", "x")
					again(r)
					pass(time.Second)
					if task := r.get("acked"); name == "Close" && (task.State != tasks.Delivering || task.Attempt != 1) {
						t.Errorf("after a clean restart: %v, attempt %d", task.State, task.Attempt)
					}
					r.ack(acked)
					r.ack(acked)
					want(t, "Release", r.settle(tasks.Verdict{Verb: tasks.Release, Delay: ptr(time.Hour)}, released).Err, nil)
					if task := r.get("released"); task.Attempt != 1 || task.State != tasks.Pending {
						t.Errorf("released: %+v", task)
					}
					if a := r.settle(tasks.Verdict{Verb: tasks.Extend, Lease: time.Hour}, extended); a.Err != nil || a.LeaseUntil.Sub(r.clock.now()) != time.Hour {
						t.Errorf("extended: %+v", a)
					}
					pass(59 * time.Minute)
					r.pull("x")
					r.ack(extended)
					pass(2 * time.Minute)
					r.pull("x", "released")
					r.checkConsistency()
				})
			})
		}
	}
}
