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
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// aFewSweeps is as long as the sweep may take to notice anything.
const aFewSweeps = 3 * time.Second

// kept sets up how long a topic keeps its dead.
func (r *rig) kept(topic string, keep time.Duration) {
	r.t.Helper()
	r.topic(topic, TopicSettings{DeadRetention: keep})
}

// wantDead fails the test unless these, and no others, are dead in the topic: by the list,
// by the counts, and by the time of the first death.
func (r *rig) wantDead(topic string, ids ...string) {
	r.t.Helper()
	page, err := r.DeadTasks(r.t.Context(), topic, 0, "")
	want(r.t, "DeadTasks", err, nil)
	c := r.counts(topic)
	if got := idsOf(page.Tasks); fmt.Sprint(got) != fmt.Sprint(ids) || c.Dead != int64(len(ids)) {
		r.t.Fatalf("of %s are dead %v, counted %d; want %v", topic, got, c.Dead, ids)
	}
	oldest := time.Time{}
	if len(ids) > 0 {
		oldest = page.Tasks[0].Died
	}
	if !c.DeadOldest.Equal(oldest) {
		r.t.Fatalf("the first of them died %v, it is told %v", oldest, c.DeadOldest)
	}
}

func TestRetention(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.kept("x", time.Hour)
		r.bury("x", "a", "b")
		pass(30 * time.Minute)
		r.bury("x", "c")
		r.bury("y", "z")
		for _, again := range []func(){r.restart, r.crash} {
			r.wantDead("x", "a", "b", "c")
			again()
			pass(time.Second)
		}
		pass(25 * time.Minute)
		r.wantDead("x", "a", "b", "c")
		pass(5 * time.Minute)
		r.wantDead("x", "c")
		r.inLedger("a", recovery.Nowhere)
		if c := r.counts("x"); c.Expired != 2 || c.Cancelled != 0 {
			t.Errorf("counts %+v", c)
		}
		want(t, "Cancel", r.Cancel(t.Context(), "a"), ErrNotFound)
		r.must(Request{ID: "a", Topic: "later"}) // the id is free
		r.crash()
		pass(30 * time.Minute)
		r.wantDead("x")
		r.wantDead("y", "z")
		if total := r.Stats().Total; total.Expired != 1 || !total.DeadOldest.Equal(r.get("z").Died) {
			t.Errorf("counts %+v", total)
		}
		r.checkConsistency()
	})
}

// A week, where nothing is set.
func TestRetentionByDefault(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "t")
		r.clock.step(7*24*time.Hour - 2*time.Hour)
		pass(2*time.Hour - 2*time.Second)
		r.wantDead("x", "t")
		pass(aFewSweeps)
		r.wantDead("x")
	})
}

// To the period of the sweep: no task is deleted too soon, and none stays.
func TestRetentionIsExact(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.kept("x", time.Hour)
		r.bury("x", "t")
		died := r.get("t").Died
		pass(time.Until(died.Add(time.Hour)) - time.Millisecond)
		r.wantDead("x", "t")
		pass(time.Second + time.Millisecond)
		r.wantDead("x")
	})
}

// Other settings hold for who is dead already.
func TestRetentionChanges(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.kept("x", time.Hour)
		r.bury("x", "a")
		r.kept("x", 2*time.Hour)
		pass(90 * time.Minute)
		r.bury("x", "b")
		r.wantDead("x", "a", "b")
		r.kept("x", time.Hour)
		pass(aFewSweeps)
		r.wantDead("x", "b")
	})
}

// A task that has come back and died again has a new time of death.
func TestRetentionCountsFromTheLastDeath(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.kept("x", time.Hour)
		r.bury("x", "a", "b")
		pass(30 * time.Minute)
		_, err := r.Requeue(t.Context(), "x", Requeue{IDs: []string{"a"}})
		want(t, "Requeue", err, nil)
		d := r.pull("x", "a")[0]
		r.settle(Verdict{Verb: Bury}, d)
		pass(aFewSweeps)
		r.wantDead("x", "b", "a")
		pass(30 * time.Minute)
		r.wantDead("x", "a")
		pass(30 * time.Minute)
		r.wantDead("x")
	})
}

// The first of them follows whatever takes it from among the dead.
func TestDeadOldest(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "a", "b", "c", "d")
		want(t, "Cancel", r.Cancel(t.Context(), "a"), nil)
		pass(aFewSweeps)
		r.wantDead("x", "b", "c", "d")
		_, err := r.DeleteDead(t.Context(), "x", []string{"b", "d"})
		want(t, "DeleteDead", err, nil)
		pass(aFewSweeps)
		r.wantDead("x", "c")
		r.clock.step(-time.Hour) // who dies now has died before
		r.bury("x", "e")
		r.wantDead("x", "e", "c")
		_, err = r.DeleteDead(t.Context(), "x", nil)
		want(t, "DeleteDead", err, nil)
		r.wantDead("x")
		r.bury("x", "f")
		r.wantDead("x", "f")
	})
}

// What happens while the ledger is asked for the oldest is not forgotten.
func TestDeadOldestMeanwhile(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "a", "b", "c")
		want(t, "Cancel", r.Cancel(t.Context(), "a"), nil)
		longest := &r.Engine().TopicTable.ByName["x"].Oldest
		ask := func(answer string, meanwhile func()) {
			t.Helper()
			died := r.get(answer).Died.UnixMilli()
			Mutex(r.Engine()).Lock()
			before := longest.Ask()
			Mutex(r.Engine()).Unlock()
			meanwhile()
			Mutex(r.Engine()).Lock()
			longest.Learn(before, died)
			Mutex(r.Engine()).Unlock()
		}
		ask("b", func() { want(t, "Cancel", r.Cancel(t.Context(), "b"), nil) })
		pass(aFewSweeps)
		r.wantDead("x", "c")
		ask("c", func() {
			r.clock.step(-time.Hour)
			r.bury("x", "d")
		})
		r.wantDead("x", "d", "c")
	})
}

// A task that was on the list of the sweep and has died again since is not meant.
func TestRetentionLooksAtTheRecord(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.bury("x", "a")
		x := engine.Redrive{Engine: r.Engine(), Topic: "x", Op: engine.OpExpire, Until: r.get("a").Died.UnixMilli() - 1}
		want(t, "piece", x.Piece(t.Context(), []string{"a"}), nil)
		r.wantDead("x", "a")
		x.Until++
		want(t, "piece", x.Piece(t.Context(), []string{"a"}), nil)
		pass(aFewSweeps)
		r.wantDead("x")
	})
}

// A clock that was set forward has an hour to be mended.
func TestRetentionAfterClockStep(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.kept("x", time.Hour)
		r.bury("x", "a", "b")
		const year = 365 * 24 * time.Hour
		r.clock.step(year)
		pass(50 * time.Minute)
		if r.wantDead("x", "a", "b"); !r.log.has("no dead task is deleted") {
			t.Error("the log does not say that no dead task is deleted")
		}
		want(t, "Cancel", r.Cancel(t.Context(), "a"), nil) // the oldest is known all the same
		pass(aFewSweeps)
		r.wantDead("x", "b")
		r.clock.step(-year)
		pass(5 * time.Minute)
		r.wantDead("x", "b")
		pass(5 * time.Minute)
		r.wantDead("x")
		r.bury("x", "c")
		r.clock.step(year)
		pass(time.Hour + aFewSweeps)
		r.wantDead("x")
	})
}

// More than go in one period, of several topics.
func TestRetentionOfMany(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		const n = engine.SweptDeadAtOnce/2 + 300
		for _, topic := range []string{"x", "y"} {
			r.kept(topic, time.Hour)
			for i := range n {
				r.must(Request{ID: fmt.Sprint(topic, i), Topic: topic})
			}
			for left := n; left > 0; {
				ds, err := r.Reserve(t.Context(), topic, MaxReserve, 0, 0)
				want(t, "Reserve", err, nil)
				var receipts []string
				for _, d := range ds {
					receipts = append(receipts, d.Receipt())
				}
				_, err = r.Settle(t.Context(), Verdict{Verb: Bury}, receipts)
				want(t, "Settle", err, nil)
				left -= len(ds)
			}
		}
		pass(59 * time.Minute)
		if c := r.Stats().Total; c.Dead != 2*n || c.Expired != 0 {
			t.Fatalf("too soon: %+v", c)
		}
		before := int64(0)
		for rounds := 0; before < 2*n; rounds++ {
			pass(r.Scheduler.Engine().Config.SweepEvery)
			expired := r.Stats().Total.Expired
			if expired-before > engine.SweptDeadAtOnce || rounds > 70 {
				t.Fatalf("%d were deleted in one period, %d in all", expired-before, expired)
			}
			before = expired
		}
		r.checkConsistency()
	})
}

// A task that cannot be read is kept, and keeps no other.
func TestRetentionKeepsWhatItCannotRead(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.kept("x", time.Hour)
		r.bury("x", "a")
		spot, _ := r.held("a")
		r.bury("x", "b")
		r.shut()
		terms, err := r.mem.Adopt(t.Context())
		want(t, "Adopt", err, nil)
		for _, change := range []recovery.Change{
			{ID: []byte("newer"), To: recovery.Spot{Place: recovery.Pending, At: 1}, Data: recordFixture(t, "newer.rec")},
			{ID: []byte("newer"), From: recovery.Spot{Place: recovery.Pending, At: 1}, To: spot, Data: recordFixture(t, "newer.rec")},
		} {
			var b recovery.Batch
			b.Add(change)
			want(t, "Apply", r.mem.Apply(t.Context(), terms.ShardOf(change.ID), &b), nil)
		}
		want(t, "Close", r.mem.Close(), nil)
		r.mem = r.mem.Reopen()
		r.open()
		pass(time.Hour + aFewSweeps)
		if c := r.counts("x"); c.Dead != 1 || c.Expired != 2 || !c.DeadOldest.IsZero() {
			t.Errorf("counts %+v", c)
		}
		calls := r.faulty.Calls(ledgertest.ListDead)
		pass(time.Hour)
		if n := r.faulty.Calls(ledgertest.ListDead); n != calls {
			t.Errorf("it is asked for again and again: %d times", n-calls)
		}
		r.bury("x", "c")
		if c := r.counts("x"); c.Dead != 2 || !c.DeadOldest.Equal(r.get("c").Died) {
			t.Errorf("counts %+v", c)
		}
		pass(time.Hour + aFewSweeps)
		if c := r.counts("x"); c.Dead != 1 || c.Expired != 3 {
			t.Errorf("counts %+v", c)
		}
	})
}

// The ledger is away: it is told once, and done later.
func TestRetentionDuringOutage(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]ledgertest.Op{"ListDead": ledgertest.ListDead, "GetDead": ledgertest.GetDead, "Apply": ledgertest.Apply} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.kept("x", time.Hour)
				r.bury("x", "a", "b")
				r.faulty.Inject(ledgertest.Fault{Op: op, Times: -1})
				pass(2 * time.Hour)
				if c := r.counts("x"); c.Dead != 2 || c.DeadOldest.IsZero() {
					t.Errorf("counts %+v", c)
				}
				if n := r.log.count("dead tasks cannot be deleted at the moment"); n != 1 {
					t.Errorf("it was told %d times", n)
				}
				r.faulty.Heal()
				pass(time.Minute)
				r.wantDead("x")
				if c := r.counts("x"); c.Expired != 2 || !r.log.has("dead tasks can be deleted again") {
					t.Errorf("counts %+v", c)
				}
				r.checkConsistency()
			})
		})
	}
}

// A task that is being requeued when the time is over comes back, even if that fails at
// first.
func TestRetentionBesideRequeue(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("fails ", fails), func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.kept("x", time.Hour)
				r.bury("x", "a")
				died := r.get("a").Died
				pass(time.Until(died.Add(time.Hour)) - 10*time.Millisecond)
				_, release := r.faulty.Hold(ledgertest.GetDead)
				ctx, cancel := context.WithCancel(t.Context())
				answer := make(chan error, 1)
				go func() {
					q, err := r.Requeue(ctx, "x", Requeue{IDs: []string{"a"}})
					if err == nil && q.Requeued != 1 {
						err = fmt.Errorf("requeued %+v", q)
					}
					answer <- err
				}()
				pass(1500 * time.Millisecond) // the sweep comes, and passes over it
				if fails {
					cancel()
					want(t, "Requeue", <-answer, ErrUnavailable)
				}
				release()
				pass(aFewSweeps)
				if fails {
					r.wantDead("x") // it was not overlooked
				} else {
					want(t, "Requeue", <-answer, nil)
					r.pull("x", "a")
				}
				cancel()
				pass(aFewSweeps)
				r.wantDead("x")
				r.checkConsistency()
			})
		})
	}
}

// A task that is being deleted when it is asked for is waited for, and then known to be gone
// or still there.
func TestRequeueBesideRetention(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprint("fails ", fails), func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, r *rig) {
				r.kept("x", time.Hour)
				r.bury("x", "a")
				died := r.get("a").Died
				pass(time.Until(died.Add(time.Hour)) - 10*time.Millisecond)
				_, release := r.faulty.Hold(ledgertest.GetDead)
				// The sweep has locked it, and will not come again for a while.
				pass(500 * time.Millisecond)
				if fails {
					r.faulty.Inject(ledgertest.Fault{Op: ledgertest.GetDead, Times: 1})
				}
				answer := make(chan Requeued, 1)
				go func() {
					q, err := r.Requeue(t.Context(), "x", Requeue{IDs: []string{"a"}})
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
				pass(aFewSweeps)
				if fails {
					r.pull("x", "a")
				}
				r.wantDead("x")
				r.checkConsistency()
			})
		})
	}
}
