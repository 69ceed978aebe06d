package engine_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// each drives every transition, on a fresh rig.
func each(t *testing.T, test func(r *rig.Rig, row *transition)) {
	for i := range transitions {
		row := &transitions[i]
		t.Run(row.name, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", row.settings)
				row.from(r)
				test(r, row)
				rig.Pass(0)
				r.CheckConsistency()
			})
		})
	}
}

// wantEnd compares t with where a transition should have taken it.
func wantEnd(r *rig.Rig, place recovery.Place, state tasks.State) {
	r.T.Helper()
	r.InLedger("t", place)
	task, err := r.Get(r.T.Context(), "t")
	if state == 0 {
		rig.Want(r.T, "Get", err, tasks.ErrNotFound)
	} else if err != nil || task.State != state {
		r.T.Fatalf("Get = %v, %v; want state %v", task.State, err, state)
	}
}

// begin starts a transition whose write the ledger holds up, and returns its
// answer and the end of the hold-up.
func begin(r *rig.Rig, row *transition) (answer <-chan error, release func()) {
	r.T.Helper()
	_, release = r.Faulty.Hold(ledgertest.Apply)
	ch := make(chan error, 1)
	go func() { ch <- row.do(r) }()
	if row.silent {
		ch <- <-ch // the event is over
	} else {
		synctest.Wait()
	}
	wantBusy(r, row.busy)
	return ch, release
}

func wantBusy(r *rig.Rig, state store.State) {
	r.T.Helper()
	rig.Mutex(r.Engine()).Lock()
	defer rig.Mutex(r.Engine()).Unlock()
	n, ok := r.Engine().Store.Find([]byte("t"))
	if !ok || r.Engine().Store.Slot(n).State != state {
		r.T.Fatalf("in memory: %v; want state %d", ok, state)
	}
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig.Rig, row *transition) {
		_, before := r.Held("t")
		rig.Want(r.T, row.name, row.do(r), nil)
		rig.Pass(0)
		wantEnd(r, row.place, row.state)
		if row.check != nil {
			if err := row.check(before, r.InLedger("t", row.place)); err != nil {
				r.T.Fatal(err)
			}
		}
	})
}

// While a write is under way, others wait for its answer, and then act on what it
// has made of the task.
func TestBusyMakesOthersWait(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig.Rig, row *transition) {
		answer, release := begin(r, row)
		others := make(chan error, 3)
		go func() { _, err := r.Get(r.T.Context(), "t"); others <- err }()
		go func() { others <- r.Cancel(r.T.Context(), "t") }()
		go func() {
			_, err := r.Schedule(r.T.Context(), tasks.Request{ID: "t", Topic: "y"})
			others <- err
		}()
		rig.Pass(time.Millisecond)
		if len(others) != 0 {
			r.T.Fatalf("a caller did not wait: %v", <-others)
		}
		release()
		rig.Want(r.T, row.name, <-answer, nil)
		for range cap(others) {
			err := <-others
			if errors.Is(err, tasks.ErrUnavailable) || errors.Is(err, tasks.ErrUnknown) {
				r.T.Errorf("another caller was answered %v", err)
			}
		}
	})
}

// When the ledger does not answer, the caller and those who wait for it are told
// in time, and a busy task is not delivered. What it decides once it answers, counts.
func TestBusyAndNoAnswer(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig.Rig, row *transition) {
		answer, release := begin(r, row)
		began := time.Now()
		for _, err := range []error{
			r.Cancel(r.T.Context(), "t"),
			func() error { _, err := r.Get(r.T.Context(), "t"); return err }(),
		} {
			rig.Want(r.T, "another caller", err, tasks.ErrUnavailable)
		}
		if waited := time.Since(began); waited > 2*rig.Engine(r.Scheduler).Config.AnswerWithin {
			r.T.Errorf("they waited %v", waited)
		}
		if row.silent {
			rig.Want(r.T, row.name, <-answer, nil)
		} else {
			rig.Want(r.T, row.name, <-answer, tasks.ErrUnknown)
		}
		r.Pull("x") // not delivered
		wantBusy(r, row.busy)
		release()
		rig.Pass(0)
		switch {
		case row.gone:
			wantEnd(r, recovery.Nowhere, 0)
		case row.late != 0:
			wantEnd(r, row.place, row.late)
		default:
			wantEnd(r, row.place, row.state)
		}
	})
}

// A write that its caller gave up before it was sent leaves everything as it was,
// except a verdict, which is kept.
func TestGivenUpUnsent(t *testing.T) {
	each(t, func(r *rig.Rig, row *transition) {
		before, _ := r.Held("t")
		_, release := r.Faulty.Hold(ledgertest.Apply)
		blocked := make(chan error, 1)
		go func() {
			_, err := r.Schedule(r.T.Context(), tasks.Request{ID: "before", Topic: "other"})
			blocked <- err
		}()
		synctest.Wait()
		err := row.do(r)
		switch {
		case row.silent:
			rig.Want(r.T, row.name, err, nil)
		case row.kept, row.busy == store.Claiming:
			rig.Want(r.T, row.name, err, tasks.ErrUnknown)
		default:
			rig.Want(r.T, row.name, err, tasks.ErrUnavailable)
		}
		rig.Want(r.T, "the write before", <-blocked, tasks.ErrUnknown)
		release()
		rig.Pass(0)
		if row.kept {
			wantEnd(r, row.place, row.state)
		} else {
			wantEnd(r, before.Place, row.undone)
		}
	})
}

// A lost answer is asked for again: the caller does not notice.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig.Rig, row *transition) {
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, After: true, Times: 3})
		rig.Want(r.T, row.name, row.do(r), nil)
		rig.Pass(time.Second)
		wantEnd(r, row.place, row.state)
	})
}

// Killed before the ledger has answered, a task stands as before or as after.
func TestCrashInTransition(t *testing.T) {
	t.Parallel()
	for name, written := range map[string]bool{"Before": false, "After": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(r *rig.Rig, row *transition) {
				before, _ := r.Held("t")
				end := before.Place
				if written {
					end = row.place
				}
				r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, After: written, Times: -1})
				go func() { _ = row.do(r) }()
				if row.silent {
					rig.Pass(2 * hour)
				} else {
					rig.Pass(time.Second)
				}
				r.Crash()
				synctest.Wait()
				r.InLedger("t", end)
			})
		})
	}
}

// The rows that need no write before they hold.

func TestPendingBecomesReady(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(tasks.Request{ID: "t", Topic: "x", Delay: time.Minute})
		rig.Pass(time.Minute - time.Millisecond)
		wantEnd(r, recovery.Pending, tasks.Pending)
		rig.Pass(2 * time.Millisecond)
		wantEnd(r, recovery.Pending, tasks.Ready)
		r.CheckConsistency()
	})
}

func TestClockSetBackMakesReadyPending(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.Must(tasks.Request{ID: "t", Topic: "x", Delay: time.Minute})
		rig.Pass(time.Minute + time.Second)
		r.Clock.Step(-time.Hour)
		r.Pull("x")
		wantEnd(r, recovery.Pending, tasks.Pending)
		r.CheckConsistency()
		rig.Pass(time.Hour)
		r.Pull("x", "t")
	})
}

func TestHandedOutWritesNothing(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		dueNow(r)
		calls := r.Faulty.Calls(ledgertest.Apply)
		r.Pull("x", "t")
		if n := r.Faulty.Calls(ledgertest.Apply); n != calls {
			t.Errorf("%d writes", n-calls)
		}
		wantEnd(r, recovery.Pending, tasks.Delivering)
	})
}

// A retry is armed at once, and recorded as soon as the ledger answers.
func TestRetryIsArmedBeforeItIsRecorded(t *testing.T) {
	for name, end := range map[string]func(r *rig.Rig){
		"released": func(r *rig.Rig) { _ = settleT(tasks.Verdict{Verb: tasks.Release, Delay: rig.Ptr(time.Minute)})(r) },
		"lease out": func(r *rig.Rig) {
			rig.Pass(hour + time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: time.Minute, MaxBackoff: time.Minute}})
				handedOut(r)
				_, release := r.Faulty.Hold(ledgertest.Apply)
				end(r)
				if task := r.MustGet("t"); task.State != tasks.Pending || task.Attempt != 1 {
					t.Fatalf("before the answer: %v, attempt %d", task.State, task.Attempt)
				}
				rig.Pass(2 * time.Minute)
				d := r.Pull("x", "t")[0]
				if d.Attempt != 2 {
					t.Errorf("attempt %d, want 2", d.Attempt)
				}
				release()
				rig.Pass(0)
				if f := r.InLedger("t", recovery.Pending); f.Attempt != 1 || len(f.LastError) == 0 {
					t.Errorf("recorded: attempt %d, last error %q", f.Attempt, f.LastError)
				}
				r.Ack(d)
				wantEnd(r, recovery.Nowhere, 0)
				r.CheckConsistency()
			})
		})
	}
}
