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
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// aFewSweeps is as long as the sweep may take to notice anything.
const aFewSweeps = 3 * time.Second

// kept sets up how long a topic keeps its dead.
func kept(r *rig.Rig, topic string, keep time.Duration) {
	r.T.Helper()
	r.MustSetTopic(topic, TopicSettings{DeadRetention: keep})
}

// wantDead fails the test unless these, and no others, are dead in the topic: by the list,
// by the counts, and by the time of the first death.
func wantDead(r *rig.Rig, topic string, ids ...string) {
	r.T.Helper()
	page, err := r.Admin().DeadTasks(r.T.Context(), topic, 0, "")
	rig.Want(r.T, "DeadTasks", err, nil)
	c := r.Counts(topic)
	if got := rig.IDsOf(page.Tasks); fmt.Sprint(got) != fmt.Sprint(ids) || c.Dead != int64(len(ids)) {
		r.T.Fatalf("of %s are dead %v, counted %d; want %v", topic, got, c.Dead, ids)
	}
	oldest := time.Time{}
	if len(ids) > 0 {
		oldest = page.Tasks[0].Died
	}
	if !c.DeadOldest.Equal(oldest) {
		r.T.Fatalf("the first of them died %v, it is told %v", oldest, c.DeadOldest)
	}
}

func TestRetention(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		kept(r, "x", time.Hour)
		r.Bury("x", "a", "b")
		rig.Pass(30 * time.Minute)
		r.Bury("x", "c")
		r.Bury("y", "z")
		for _, again := range []func(){r.Restart, r.Crash} {
			wantDead(r, "x", "a", "b", "c")
			again()
			rig.Pass(time.Second)
		}
		rig.Pass(25 * time.Minute)
		wantDead(r, "x", "a", "b", "c")
		rig.Pass(5 * time.Minute)
		wantDead(r, "x", "c")
		r.InLedger("a", recovery.Nowhere)
		if c := r.Counts("x"); c.Expired != 2 || c.Cancelled != 0 {
			t.Errorf("counts %+v", c)
		}
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "a"), ErrNotFound)
		r.Must(Request{ID: "a", Topic: "later"}) // the id is free
		r.Crash()
		rig.Pass(30 * time.Minute)
		wantDead(r, "x")
		wantDead(r, "y", "z")
		if total := r.Stats().Total; total.Expired != 1 || !total.DeadOldest.Equal(r.MustGet("z").Died) {
			t.Errorf("counts %+v", total)
		}
		r.CheckConsistency()
	})
}

// A week, where nothing is set.
func TestRetentionByDefault(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "t")
		r.Clock.Step(7*24*time.Hour - 2*time.Hour)
		rig.Pass(2*time.Hour - 2*time.Second)
		wantDead(r, "x", "t")
		rig.Pass(aFewSweeps)
		wantDead(r, "x")
	})
}

// To the period of the sweep: no task is deleted too soon, and none stays.
func TestRetentionIsExact(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		kept(r, "x", time.Hour)
		r.Bury("x", "t")
		died := r.MustGet("t").Died
		rig.Pass(time.Until(died.Add(time.Hour)) - time.Millisecond)
		wantDead(r, "x", "t")
		rig.Pass(time.Second + time.Millisecond)
		wantDead(r, "x")
	})
}

// Other settings hold for who is dead already.
func TestRetentionChanges(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		kept(r, "x", time.Hour)
		r.Bury("x", "a")
		kept(r, "x", 2*time.Hour)
		rig.Pass(90 * time.Minute)
		r.Bury("x", "b")
		wantDead(r, "x", "a", "b")
		kept(r, "x", time.Hour)
		rig.Pass(aFewSweeps)
		wantDead(r, "x", "b")
	})
}

// A task that has come back and died again has a new time of death.
func TestRetentionCountsFromTheLastDeath(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		kept(r, "x", time.Hour)
		r.Bury("x", "a", "b")
		rig.Pass(30 * time.Minute)
		_, err := r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"a"}})
		rig.Want(t, "Requeue", err, nil)
		d := r.Pull("x", "a")[0]
		r.SettleOne(Verdict{Verb: Bury}, d)
		rig.Pass(aFewSweeps)
		wantDead(r, "x", "b", "a")
		rig.Pass(30 * time.Minute)
		wantDead(r, "x", "a")
		rig.Pass(30 * time.Minute)
		wantDead(r, "x")
	})
}

// The first of them follows whatever takes it from among the dead.
func TestDeadOldest(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "a", "b", "c", "d")
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "a"), nil)
		rig.Pass(aFewSweeps)
		wantDead(r, "x", "b", "c", "d")
		_, err := r.Admin().DeleteDead(t.Context(), "x", []string{"b", "d"})
		rig.Want(t, "DeleteDead", err, nil)
		rig.Pass(aFewSweeps)
		wantDead(r, "x", "c")
		r.Clock.Step(-time.Hour) // who dies now has died before
		r.Bury("x", "e")
		wantDead(r, "x", "e", "c")
		_, err = r.Admin().DeleteDead(t.Context(), "x", nil)
		rig.Want(t, "DeleteDead", err, nil)
		wantDead(r, "x")
		r.Bury("x", "f")
		wantDead(r, "x", "f")
	})
}

// What happens while the ledger is asked for the oldest is not forgotten.
func TestDeadOldestMeanwhile(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "a", "b", "c")
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "a"), nil)
		longest := &r.Engine().TopicTable.ByName["x"].Oldest
		ask := func(answer string, meanwhile func()) {
			t.Helper()
			died := r.MustGet(answer).Died.UnixMilli()
			rig.Mutex(r.Engine()).Lock()
			longest.Ask(true)
			rig.Mutex(r.Engine()).Unlock()
			meanwhile()
			rig.Mutex(r.Engine()).Lock()
			longest.Learn(died)
			rig.Mutex(r.Engine()).Unlock()
		}
		ask("b", func() { rig.Want(t, "Cancel", r.Cancel(t.Context(), "b"), nil) })
		rig.Pass(aFewSweeps)
		wantDead(r, "x", "c")
		ask("c", func() {
			r.Clock.Step(-time.Hour)
			r.Bury("x", "d")
		})
		wantDead(r, "x", "d", "c")
	})
}

// A task that was on the list of the sweep and has died again since is not meant.
func TestRetentionLooksAtTheRecord(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Bury("x", "a")
		x := engine.Redrive{Engine: r.Engine(), Topic: "x", Op: engine.OpExpire, Until: r.MustGet("a").Died.UnixMilli() - 1}
		rig.Want(t, "piece", x.Piece(t.Context(), []string{"a"}), nil)
		wantDead(r, "x", "a")
		x.Until++
		rig.Want(t, "piece", x.Piece(t.Context(), []string{"a"}), nil)
		rig.Pass(aFewSweeps)
		wantDead(r, "x")
	})
}

// A clock that was set forward has an hour to be mended.
func TestRetentionAfterClockStep(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		kept(r, "x", time.Hour)
		r.Bury("x", "a", "b")
		const year = 365 * 24 * time.Hour
		r.Clock.Step(year)
		rig.Pass(50 * time.Minute)
		if wantDead(r, "x", "a", "b"); !r.Log.Has("no dead task is deleted") {
			t.Error("the log does not say that no dead task is deleted")
		}
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "a"), nil) // the oldest is known all the same
		rig.Pass(aFewSweeps)
		wantDead(r, "x", "b")
		r.Clock.Step(-year)
		rig.Pass(5 * time.Minute)
		wantDead(r, "x", "b")
		rig.Pass(5 * time.Minute)
		wantDead(r, "x")
		r.Bury("x", "c")
		r.Clock.Step(year)
		rig.Pass(time.Hour + aFewSweeps)
		wantDead(r, "x")
	})
}

// More than go in one period, of several topics.
func TestRetentionOfMany(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		const n = engine.SweptDeadAtOnce/2 + 300
		for _, topic := range []string{"x", "y"} {
			kept(r, topic, time.Hour)
			for i := range n {
				r.Must(Request{ID: fmt.Sprint(topic, i), Topic: topic})
			}
			for left := n; left > 0; {
				ds, err := r.Reserve(t.Context(), topic, MaxReserve, 0, 0)
				rig.Want(t, "Reserve", err, nil)
				var receipts []string
				for _, d := range ds {
					receipts = append(receipts, d.Receipt())
				}
				_, err = r.Settle(t.Context(), Verdict{Verb: Bury}, receipts)
				rig.Want(t, "Settle", err, nil)
				left -= len(ds)
			}
		}
		rig.Pass(59 * time.Minute)
		if c := r.Stats().Total; c.Dead != 2*n || c.Expired != 0 {
			t.Fatalf("too soon: %+v", c)
		}
		before := int64(0)
		for rounds := 0; before < 2*n; rounds++ {
			rig.Pass(rig.Engine(r.Scheduler).Config.SweepEvery)
			expired := r.Stats().Total.Expired
			if expired-before > engine.SweptDeadAtOnce || rounds > 70 {
				t.Fatalf("%d were deleted in one period, %d in all", expired-before, expired)
			}
			before = expired
		}
		r.CheckConsistency()
	})
}

// A task that cannot be read is kept, and keeps no other.
func TestRetentionKeepsWhatItCannotRead(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		kept(r, "x", time.Hour)
		r.Bury("x", "a")
		spot, _ := r.Held("a")
		r.Bury("x", "b")
		r.Shut()
		terms, err := r.Mem.Adopt(t.Context())
		rig.Want(t, "Adopt", err, nil)
		for _, change := range []recovery.Change{
			{ID: []byte("newer"), To: recovery.Spot{Place: recovery.Pending, At: 1}, Data: recordFixture(t, "newer.rec")},
			{ID: []byte("newer"), From: recovery.Spot{Place: recovery.Pending, At: 1}, To: spot, Data: recordFixture(t, "newer.rec")},
		} {
			var b recovery.Batch
			b.Add(change)
			rig.Want(t, "Apply", r.Mem.Apply(t.Context(), terms.ShardOf(change.ID), &b), nil)
		}
		rig.Want(t, "Close", r.Mem.Close(), nil)
		r.Mem = r.Mem.Reopen()
		r.Open()
		rig.Pass(time.Hour + aFewSweeps)
		if c := r.Counts("x"); c.Dead != 1 || c.Expired != 2 || !c.DeadOldest.IsZero() {
			t.Errorf("counts %+v", c)
		}
		calls := r.Faulty.Calls(ledgertest.ListDead)
		rig.Pass(time.Hour)
		if n := r.Faulty.Calls(ledgertest.ListDead); n != calls {
			t.Errorf("it is asked for again and again: %d times", n-calls)
		}
		r.Bury("x", "c")
		if c := r.Counts("x"); c.Dead != 2 || !c.DeadOldest.Equal(r.MustGet("c").Died) {
			t.Errorf("counts %+v", c)
		}
		rig.Pass(time.Hour + aFewSweeps)
		if c := r.Counts("x"); c.Dead != 1 || c.Expired != 3 {
			t.Errorf("counts %+v", c)
		}
	})
}

// The ledger is away: it is told once, and done later.
func TestRetentionDuringOutage(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]ledgertest.Op{"ListDead": ledgertest.ListDead, "GetDead": ledgertest.GetDead, "Apply": ledgertest.Apply} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				kept(r, "x", time.Hour)
				r.Bury("x", "a", "b")
				r.Faulty.Inject(ledgertest.Fault{Op: op, Times: -1})
				rig.Pass(2 * time.Hour)
				if c := r.Counts("x"); c.Dead != 2 || c.DeadOldest.IsZero() {
					t.Errorf("counts %+v", c)
				}
				if n := r.Log.Count("dead tasks cannot be deleted at the moment"); n != 1 {
					t.Errorf("it was told %d times", n)
				}
				r.Faulty.Heal()
				rig.Pass(time.Minute)
				wantDead(r, "x")
				if c := r.Counts("x"); c.Expired != 2 || !r.Log.Has("dead tasks can be deleted again") {
					t.Errorf("counts %+v", c)
				}
				r.CheckConsistency()
			})
		})
	}
}

// A task that is being requeued when the time is over comes back, even if that fails at
// first.
func TestRetentionBesideRequeue(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("fails ", fails), func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				kept(r, "x", time.Hour)
				r.Bury("x", "a")
				died := r.MustGet("a").Died
				rig.Pass(time.Until(died.Add(time.Hour)) - 10*time.Millisecond)
				_, release := r.Faulty.Hold(ledgertest.GetDead)
				ctx, cancel := context.WithCancel(t.Context())
				answer := make(chan error, 1)
				go func() {
					q, err := r.Admin().Requeue(ctx, "x", Requeue{IDs: []string{"a"}})
					if err == nil && q.Requeued != 1 {
						err = fmt.Errorf("requeued %+v", q)
					}
					answer <- err
				}()
				rig.Pass(1500 * time.Millisecond) // the sweep comes, and passes over it
				if fails {
					cancel()
					rig.Want(t, "Requeue", <-answer, ErrUnavailable)
				}
				release()
				rig.Pass(aFewSweeps)
				if fails {
					wantDead(r, "x") // it was not overlooked
				} else {
					rig.Want(t, "Requeue", <-answer, nil)
					r.Pull("x", "a")
				}
				cancel()
				rig.Pass(aFewSweeps)
				wantDead(r, "x")
				r.CheckConsistency()
			})
		})
	}
}

// A task that is being deleted when it is asked for is waited for, and then known to be gone
// or still there.
func TestRequeueBesideRetention(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("fails ", fails), func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				kept(r, "x", time.Hour)
				r.Bury("x", "a")
				died := r.MustGet("a").Died
				rig.Pass(time.Until(died.Add(time.Hour)) - 10*time.Millisecond)
				_, release := r.Faulty.Hold(ledgertest.GetDead)
				// The sweep has locked it, and will not come again for a while.
				rig.Pass(500 * time.Millisecond)
				if fails {
					r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.GetDead, Times: 1})
				}
				answer := make(chan Requeued, 1)
				go func() {
					q, err := r.Admin().Requeue(t.Context(), "x", Requeue{IDs: []string{"a"}})
					if err != nil {
						t.Error("Requeue:", err)
					}
					answer <- q
				}()
				synctest.Wait()
				release()
				q := <-answer
				if back := q.Requeued == 1 && len(q.Unknown) == 0; back != fails || !back && fmt.Sprint(q.Unknown) != "[a]" {
					t.Errorf("requeued %+v", q)
				}
				rig.Pass(aFewSweeps)
				if fails {
					r.Pull("x", "a")
				}
				wantDead(r, "x")
				r.CheckConsistency()
			})
		})
	}
}
