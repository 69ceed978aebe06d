package tasks_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// each drives every transition, on a fresh rig.
func each(t *testing.T, test func(r *rig, row *transition)) {
	for i := range transitions {
		row := &transitions[i]
		t.Run(row.name, func(t *testing.T) {
			bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
				r.topic("x", row.settings)
				row.from(r)
				test(r, row)
				pass(0)
				r.checkConsistency()
			})
		})
	}
}

// wantEnd compares t with where a transition should have taken it.
func (r *rig) wantEnd(place recovery.Place, state tasks.State) {
	r.t.Helper()
	r.inLedger("t", place)
	task, err := r.Get(r.t.Context(), "t")
	if state == 0 {
		want(r.t, "Get", err, tasks.ErrNotFound)
	} else if err != nil || task.State != state {
		r.t.Fatalf("Get = %v, %v; want state %v", task.State, err, state)
	}
}

// begin starts a transition whose write the ledger holds up, and returns its
// answer and the end of the hold-up.
func (r *rig) begin(row *transition) (answer <-chan error, release func()) {
	r.t.Helper()
	_, release = r.faulty.Hold(ledgertest.Apply)
	ch := make(chan error, 1)
	go func() { ch <- row.do(r) }()
	if row.silent {
		ch <- <-ch // the event is over
	} else {
		synctest.Wait()
	}
	r.wantBusy(row.busy)
	return ch, release
}

func (r *rig) wantBusy(state store.State) {
	r.t.Helper()
	tasks.Mutex(r.Engine()).Lock()
	defer tasks.Mutex(r.Engine()).Unlock()
	n, ok := r.Engine().Store.Find([]byte("t"))
	if !ok || r.Engine().Store.Slot(n).State != state {
		r.t.Fatalf("in memory: %v; want state %d", ok, state)
	}
}

func TestTransitions(t *testing.T) {
	each(t, func(r *rig, row *transition) {
		_, before := r.held("t")
		want(r.t, row.name, row.do(r), nil)
		pass(0)
		r.wantEnd(row.place, row.state)
		if row.check != nil {
			if err := row.check(before, r.inLedger("t", row.place)); err != nil {
				r.t.Fatal(err)
			}
		}
	})
}

// While a write is under way, others wait for its answer, and then act on what it
// has made of the task.
func TestBusyMakesOthersWait(t *testing.T) {
	each(t, func(r *rig, row *transition) {
		answer, release := r.begin(row)
		others := make(chan error, 3)
		go func() { _, err := r.Get(r.t.Context(), "t"); others <- err }()
		go func() { others <- r.Cancel(r.t.Context(), "t") }()
		go func() {
			_, err := r.Schedule(r.t.Context(), tasks.Request{ID: "t", Topic: "y"})
			others <- err
		}()
		pass(time.Millisecond)
		if len(others) != 0 {
			r.t.Fatalf("a caller did not wait: %v", <-others)
		}
		release()
		want(r.t, row.name, <-answer, nil)
		for range cap(others) {
			err := <-others
			if errors.Is(err, tasks.ErrUnavailable) || errors.Is(err, tasks.ErrUnknown) {
				r.t.Errorf("another caller was answered %v", err)
			}
		}
	})
}

// When the ledger does not answer, the caller and those who wait for it are told
// in time, and a busy task is not delivered. What it decides once it answers, counts.
func TestBusyAndNoAnswer(t *testing.T) {
	each(t, func(r *rig, row *transition) {
		answer, release := r.begin(row)
		began := time.Now()
		for _, err := range []error{
			r.Cancel(r.t.Context(), "t"),
			func() error { _, err := r.Get(r.t.Context(), "t"); return err }(),
		} {
			want(r.t, "another caller", err, tasks.ErrUnavailable)
		}
		if waited := time.Since(began); waited > 2*r.Scheduler.Engine().Config.AnswerWithin {
			r.t.Errorf("they waited %v", waited)
		}
		if row.silent {
			want(r.t, row.name, <-answer, nil)
		} else {
			want(r.t, row.name, <-answer, tasks.ErrUnknown)
		}
		r.pull("x") // not delivered
		r.wantBusy(row.busy)
		release()
		pass(0)
		switch {
		case row.gone:
			r.wantEnd(recovery.Nowhere, 0)
		case row.late != 0:
			r.wantEnd(row.place, row.late)
		default:
			r.wantEnd(row.place, row.state)
		}
	})
}

// A write that its caller gave up before it was sent leaves everything as it was,
// except a verdict, which is kept.
func TestGivenUpUnsent(t *testing.T) {
	each(t, func(r *rig, row *transition) {
		before, _ := r.held("t")
		_, release := r.faulty.Hold(ledgertest.Apply)
		blocked := make(chan error, 1)
		go func() {
			_, err := r.Schedule(r.t.Context(), tasks.Request{ID: "before", Topic: "other"})
			blocked <- err
		}()
		synctest.Wait()
		err := row.do(r)
		switch {
		case row.silent:
			want(r.t, row.name, err, nil)
		case row.kept, row.busy == store.Claiming:
			want(r.t, row.name, err, tasks.ErrUnknown)
		default:
			want(r.t, row.name, err, tasks.ErrUnavailable)
		}
		want(r.t, "the write before", <-blocked, tasks.ErrUnknown)
		release()
		pass(0)
		if row.kept {
			r.wantEnd(row.place, row.state)
		} else {
			r.wantEnd(before.Place, row.undone)
		}
	})
}

// A lost answer is asked for again: the caller does not notice.
func TestLostAnswer(t *testing.T) {
	each(t, func(r *rig, row *transition) {
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, After: true, Times: 3})
		want(r.t, row.name, row.do(r), nil)
		pass(time.Second)
		r.wantEnd(row.place, row.state)
	})
}

// Killed before the ledger has answered, a task stands as before or as after.
func TestCrashInTransition(t *testing.T) {
	t.Parallel()
	for name, written := range map[string]bool{"Before": false, "After": true} {
		t.Run(name, func(t *testing.T) {
			each(t, func(r *rig, row *transition) {
				before, _ := r.held("t")
				end := before.Place
				if written {
					end = row.place
				}
				r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, After: written, Times: -1})
				go func() { _ = row.do(r) }()
				if row.silent {
					pass(2 * hour)
				} else {
					pass(time.Second)
				}
				r.crash()
				synctest.Wait()
				r.inLedger("t", end)
			})
		})
	}
}

// The rows that need no write before they hold.

func TestPendingBecomesReady(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.must(tasks.Request{ID: "t", Topic: "x", Delay: time.Minute})
		pass(time.Minute - time.Millisecond)
		r.wantEnd(recovery.Pending, tasks.Pending)
		pass(2 * time.Millisecond)
		r.wantEnd(recovery.Pending, tasks.Ready)
		r.checkConsistency()
	})
}

func TestClockSetBackMakesReadyPending(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		r.must(tasks.Request{ID: "t", Topic: "x", Delay: time.Minute})
		pass(time.Minute + time.Second)
		r.clock.step(-time.Hour)
		r.pull("x")
		r.wantEnd(recovery.Pending, tasks.Pending)
		r.checkConsistency()
		pass(time.Hour)
		r.pull("x", "t")
	})
}

func TestHandedOutWritesNothing(t *testing.T) {
	bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
		dueNow(r)
		calls := r.faulty.Calls(ledgertest.Apply)
		r.pull("x", "t")
		if n := r.faulty.Calls(ledgertest.Apply); n != calls {
			t.Errorf("%d writes", n-calls)
		}
		r.wantEnd(recovery.Pending, tasks.Delivering)
	})
}

// A retry is armed at once, and recorded as soon as the ledger answers.
func TestRetryIsArmedBeforeItIsRecorded(t *testing.T) {
	for name, end := range map[string]func(r *rig){
		"released": func(r *rig) { _ = settleT(tasks.Verdict{Verb: tasks.Release, Delay: ptr(time.Minute)})(r) },
		"lease out": func(r *rig) {
			pass(hour + time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, tasks.Config{}, func(t *testing.T, r *rig) {
				r.topic("x", tasks.TopicSettings{Retry: tasks.Retry{MinBackoff: time.Minute, MaxBackoff: time.Minute}})
				handedOut(r)
				_, release := r.faulty.Hold(ledgertest.Apply)
				end(r)
				if task := r.get("t"); task.State != tasks.Pending || task.Attempt != 1 {
					t.Fatalf("before the answer: %v, attempt %d", task.State, task.Attempt)
				}
				pass(2 * time.Minute)
				d := r.pull("x", "t")[0]
				if d.Attempt != 2 {
					t.Errorf("attempt %d, want 2", d.Attempt)
				}
				release()
				pass(0)
				if f := r.inLedger("t", recovery.Pending); f.Attempt != 1 || len(f.LastError) == 0 {
					t.Errorf("recorded: attempt %d, last error %q", f.Attempt, f.LastError)
				}
				r.ack(d)
				r.wantEnd(recovery.Nowhere, 0)
				r.checkConsistency()
			})
		})
	}
}
