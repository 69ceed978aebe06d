package engine_test

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Receipts that count no longer, whatever the verdict.
func TestStaleReceipts(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *rig.Rig, d tasks.Delivery){
		"acknowledged": func(r *rig.Rig, d tasks.Delivery) { r.Ack(d) },
		"released":     func(r *rig.Rig, d tasks.Delivery) { r.SettleOne(tasks.Verdict{Verb: tasks.Release}, d) },
		"buried":       func(r *rig.Rig, d tasks.Delivery) { r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, d) },
		"lease out":    func(*rig.Rig, tasks.Delivery) { rig.Pass(time.Hour) },
		"handed out again": func(r *rig.Rig, d tasks.Delivery) {
			r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(time.Duration(0))}, d)
			r.Pull("x", "t")
		},
		"moved since": func(r *rig.Rig, d tasks.Delivery) {
			r.SettleOne(tasks.Verdict{Verb: tasks.Release}, d)
			_, err := r.Reschedule(r.T.Context(), "t", tasks.Move{Delay: rig.Ptr(time.Hour)})
			rig.Want(r.T, "Reschedule", err, nil)
		},
		"replaced since": func(r *rig.Rig, d tasks.Delivery) {
			r.SettleOne(tasks.Verdict{Verb: tasks.Release}, d)
			_, err := r.Replace(r.T.Context(), tasks.Request{ID: "t", Topic: "x"})
			rig.Want(r.T, "Replace", err, nil)
		},
		"the id created again": func(r *rig.Rig, d tasks.Delivery) {
			r.SettleOne(tasks.Verdict{Verb: tasks.Release}, d)
			rig.Want(r.T, "Cancel", r.Cancel(r.T.Context(), "t"), nil)
			r.Must(tasks.Request{ID: "t", Topic: "x"}) // within the same millisecond
		},
		"returned": func(r *rig.Rig, d tasks.Delivery) { r.Admin().Return([]tasks.Delivery{d}) },
		"requeued since": func(r *rig.Rig, d tasks.Delivery) {
			r.SettleOne(tasks.Verdict{Verb: tasks.Bury}, d)
			_, err := r.Admin().Requeue(r.T.Context(), "x", tasks.Requeue{})
			rig.Want(r.T, "Requeue", err, nil)
		},
		"crash and handed out again": func(r *rig.Rig, _ tasks.Delivery) {
			r.Crash()
			rig.Pass(time.Second)
			r.Pull("x", "t")
		},
		"released before a crash": func(r *rig.Rig, d tasks.Delivery) {
			r.SettleOne(tasks.Verdict{Verb: tasks.Release}, d)
			r.Crash()
			rig.Pass(time.Second)
		},
		"lease out before a restart": func(r *rig.Rig, _ tasks.Delivery) {
			rig.Pass(time.Hour)
			r.Restart()
			rig.Pass(time.Second)
		},
		"crash and the id created again": func(r *rig.Rig, _ tasks.Delivery) {
			r.Crash()
			rig.Pass(time.Second)
			rig.Want(r.T, "Cancel", r.Cancel(r.T.Context(), "t"), nil)
			r.Must(tasks.Request{ID: "t", Topic: "x"})
		},
		"crash and moved": func(r *rig.Rig, _ tasks.Delivery) {
			r.Crash()
			_, err := r.Fire(r.T.Context(), "t")
			rig.Want(r.T, "Fire", err, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				d := r.One("t", "x")
				end(r, d)
				before, _ := r.Get(t.Context(), "t")
				for _, v := range []tasks.Verb{tasks.Release, tasks.Extend, tasks.Bury} {
					rig.Want(t, "an old receipt", r.SettleOne(tasks.Verdict{Verb: v}, d).Err, tasks.ErrStale)
				}
				if name != "acknowledged" {
					rig.Want(t, "an old receipt", r.SettleOne(tasks.Verdict{Verb: tasks.Ack}, d).Err, tasks.ErrStale)
				}
				after, _ := r.Get(t.Context(), "t")
				if before.State != after.State || before.Attempt != after.Attempt || before.Revision != after.Revision {
					t.Errorf("it has changed the task: %+v, %+v", before, after)
				}
				rig.Pass(time.Second)
				r.CheckConsistency()
			})
		})
	}
}

// A repeated acknowledgement gets the answer of the first; also when the id has
// been used again since.
func TestRepeatedAck(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		for range 3 {
			r.Ack(d)
		}
		answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, []string{d.Receipt(), d.Receipt()})
		rig.Want(t, "Settle", err, nil)
		for _, a := range answers {
			if a.Err != nil || !a.Recorded || a.ID != "t" {
				t.Errorf("answer %+v", a)
			}
		}
		rig.Pass(time.Millisecond)
		again := r.One("t", "x")
		r.Ack(d)
		if task := r.MustGet("t"); task.State != tasks.Delivering {
			t.Errorf("the old receipt has settled the new task: %v", task.State)
		}
		r.Ack(again)
		if c := r.Counts("x"); c.Delivered != 2 {
			t.Errorf("%d delivered", c.Delivered)
		}
	})
}

// With the ledger down, verdicts count here and now, the answer says that they are not
// recorded yet, and comes in time.
func TestSettleDuringOutage(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		var receipts []string
		for range 50 {
			r.Must(tasks.Request{Topic: "x"})
		}
		ds, err := r.Reserve(t.Context(), "x", 50, 0, time.Hour)
		rig.Want(t, "Reserve", err, nil)
		for _, d := range ds {
			receipts = append(receipts, d.Receipt())
		}
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		for range 3 {
			began := time.Now()
			answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, receipts)
			rig.Want(t, "Settle", err, nil)
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			for _, a := range answers {
				if a.Err != nil || a.Recorded {
					t.Fatalf("answer %+v", a)
				}
			}
		}
		rig.Pass(2 * time.Hour)
		r.Pull("x") // never again
		r.Faulty.Heal()
		rig.Pass(2 * time.Second)
		answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, receipts)
		rig.Want(t, "Settle", err, nil)
		if a := answers[0]; a.Err != nil || !a.Recorded {
			t.Errorf("afterwards %+v", a)
		}
		if pendings, _ := r.Dump(); len(pendings) != 0 {
			t.Errorf("%d are left in the ledger", len(pendings))
		}
		r.CheckConsistency()
	})
}

// Releases that overtake the ledger: only the last one is written, and none is
// called recorded before it is.
func TestReleasesDuringOutage(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		_, release := r.Faulty.Hold(ledgertest.Apply)
		answers := make(chan tasks.Settled, 3)
		for range 3 {
			go func() {
				answers <- r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(time.Duration(0))}, d)
			}()
			rig.Pass(100 * time.Millisecond)
			d = r.Pull("x", "t")[0]
		}
		for len(answers) > 0 {
			if a := <-answers; a.Err != nil || a.Recorded {
				t.Errorf("before the ledger has answered: %+v", a)
			}
		}
		release()
		rig.Pass(time.Second)
		if f := r.InLedger("t", recovery.Pending); f.Attempt != 3 {
			t.Errorf("%d attempts are recorded, want 3", f.Attempt)
		}
		r.Ack(d)
	})
}

// A cancel that is taken back must not take a retry with it that was not recorded yet.
func TestCancelGivenUpBehindARetry(t *testing.T) {
	rig.Bubble(t, tasks.Config{AnswerWithin: time.Minute}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		_, release := r.Faulty.Hold(ledgertest.Apply)
		for range 2 {
			go r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(time.Second)}, d)
			rig.Pass(1100 * time.Millisecond)
			d = r.Pull("x", "t")[0]
		}
		go r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(time.Hour)}, d)
		rig.Pass(100 * time.Millisecond)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t"), tasks.ErrUnavailable)
		release()
		rig.Pass(time.Second)
		if f := r.InLedger("t", recovery.Pending); f.Attempt != 3 {
			t.Errorf("%d attempts are recorded, want 3", f.Attempt)
		}
		r.CheckConsistency()
	})
}

func TestSettleAnswersEachReceipt(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		a, b := r.One("a", "x"), r.One("b", "x")
		other := rig.New(t, tasks.Config{})
		answers, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, []string{a.Receipt(), "nonsense", other.One("a", "x").Receipt(), b.Receipt()})
		rig.Want(t, "Settle", err, nil)
		for i, kind := range []error{nil, tasks.ErrReceipt, tasks.ErrReceipt, nil} {
			rig.Want(t, "answer", answers[i].Err, kind)
		}
		if answers[0].ID != "a" || answers[3].ID != "b" {
			t.Errorf("ids %q, %q", answers[0].ID, answers[3].ID)
		}
	})
}

func TestRelease(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		d := r.One("t", "x")
		at := r.Clock.Now()
		if a := r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(10 * time.Minute), Reason: "later"}, d); a.Err != nil || !a.Recorded {
			t.Fatalf("answer %+v", a)
		}
		task := r.MustGet("t")
		if task.Attempt != 1 || task.LastError != "later" || task.Next.Sub(at) != 10*time.Minute || !task.Due.Equal(d.Due) {
			t.Errorf("afterwards %+v", task)
		}
		rig.Pass(10*time.Minute - time.Millisecond)
		r.Pull("x")
		rig.Pass(2 * time.Millisecond)
		if d := r.Pull("x", "t")[0]; d.Attempt != 2 {
			t.Errorf("attempt %d", d.Attempt)
		}
	})
}

// Receipts outlive the process that made them.
func TestReceiptsAfterARestart(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(r *rig.Rig){
		"Close": (*rig.Rig).Restart, "Crash": (*rig.Rig).Crash,
		"twice closed": func(r *rig.Rig) { r.Restart(); r.Restart() },
		"closed, then crashed": func(r *rig.Rig) {
			r.Restart()
			rig.Pass(time.Second)
			r.Crash()
		},
	} {
		for _, counted := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
					r.MustSetTopic("x", tasks.TopicSettings{CountCrashes: counted})
					acked, released, extended := r.One("acked", "x"), r.One("released", "x"), r.One("extended", "x")
					again(r)
					rig.Pass(time.Second)
					if task := r.MustGet("acked"); name == "Close" && (task.State != tasks.Delivering || task.Attempt != 1) {
						t.Errorf("after a clean restart: %v, attempt %d", task.State, task.Attempt)
					}
					r.Ack(acked)
					r.Ack(acked)
					rig.Want(t, "Release", r.SettleOne(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(time.Hour)}, released).Err, nil)
					if task := r.MustGet("released"); task.Attempt != 1 || task.State != tasks.Pending {
						t.Errorf("released: %+v", task)
					}
					if a := r.SettleOne(tasks.Verdict{Verb: tasks.Extend, Lease: time.Hour}, extended); a.Err != nil || a.LeaseUntil.Sub(r.Clock.Now()) != time.Hour {
						t.Errorf("extended: %+v", a)
					}
					rig.Pass(59 * time.Minute)
					r.Pull("x")
					r.Ack(extended)
					rig.Pass(2 * time.Minute)
					r.Pull("x", "released")
					r.CheckConsistency()
				})
			})
		}
	}
}
