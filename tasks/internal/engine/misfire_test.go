package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// missing runs a test, on both kinds of ledgers, on a rig that has a topic "x" with this policy.
func missing(t *testing.T, policy Misfire, test func(t *testing.T, r *rig.Rig)) {
	t.Helper()
	for name, options := range rig.Kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rig.New(t, Config{}, options...)
				r.MustSetTopic("x", TopicSettings{Misfire: policy})
				synctest.Wait()
				test(t, r)
				rig.Pass(time.Second)
				r.CheckConsistency()
				r.WantNoRescue()
			})
		})
	}
}

// inTopic schedules a task of the topic "x".
func inTopic(r *rig.Rig, delay time.Duration, id, group string) {
	r.T.Helper()
	r.Must(Request{ID: id, Topic: "x", Group: group, Delay: delay})
}

// down lets time pass with no process, and comes back.
func down(r *rig.Rig, d time.Duration) {
	r.T.Helper()
	r.Shut()
	rig.Pass(d)
	r.Open()
	synctest.Wait()
}

// heldUp is down, but replay does not begin before resume is called.
func heldUp(r *rig.Rig, d time.Duration) (resume func()) {
	r.T.Helper()
	r.Shut()
	rig.Pass(d)
	r.Faulty = ledgertest.Wrap(r.Mem)
	_, begin := r.Faulty.Hold(ledgertest.Scan)
	var err error
	if r.Scheduler, err = Open(r.T.Context(), r.Faulty, r.Cfg); err != nil {
		r.T.Fatal("Open:", err)
	}
	return func() { begin(); synctest.Wait() }
}

// come fails the test unless just these tasks are ready, in this order, and so many have
// been skipped. It acknowledges them.
func come(r *rig.Rig, skipped int64, ids ...string) {
	r.T.Helper()
	for _, d := range r.Pull("x", ids...) {
		r.Ack(d)
	}
	if n := r.Counts("x").Skipped; n != skipped {
		r.T.Fatalf("%d skipped; want %d", n, skipped)
	}
}

func TestMisfireDeliver(t *testing.T) {
	t.Parallel()
	missing(t, MisfireDeliver, func(t *testing.T, r *rig.Rig) {
		inTopic(r, time.Minute, "a", "g")
		inTopic(r, 2*time.Minute, "b", "g")
		inTopic(r, time.Hour, "future", "g")
		down(r, 10*time.Minute)
		come(r, 0, "a", "b")
		rig.Pass(time.Hour)
		come(r, 0, "future")
	})
}

func TestMisfireSkip(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(r *rig.Rig){
		"Close": (*rig.Rig).Shut,
		"Crash": (*rig.Rig).Cut,
	} {
		t.Run(name, func(t *testing.T) {
			missing(t, MisfireSkip, func(t *testing.T, r *rig.Rig) {
				for i := range 2*engine.AtOnce + 10 {
					inTopic(r, time.Minute, fmt.Sprint("t", i), "g")
				}
				inTopic(r, 10*time.Minute+time.Second, "next", "g")
				inTopic(r, time.Hour, "future", "")
				rig.Pass(time.Second)
				again(r)
				rig.Pass(10 * time.Minute)
				r.Open()
				rig.Pass(2 * time.Second)
				come(r, 2*engine.AtOnce+10, "next")
				rig.Pass(time.Second)
				if _, err := r.Get(t.Context(), "t0"); !errors.Is(err, ErrNotFound) {
					t.Errorf("a skipped task: %v", err)
				}
				inTopic(r, 0, "fresh", "g")
				rig.Pass(time.Millisecond)
				come(r, 2*engine.AtOnce+10, "fresh")
				rig.Pass(time.Hour)
				come(r, 2*engine.AtOnce+10, "future")
			})
		})
	}
}

// skips counts what observers are told of skipped tasks.
type skips struct{ rig.Collection[string] }

func (s *skips) Observe(e Event) {
	if e.Kind == EventSkipped {
		s.Add(e.ID)
	}
}

// A restart of no length is downtime too: what was due and not delivered before is
// misfired, what is due in the moment of Open is not.
func TestMisfireBoundary(t *testing.T) {
	missing(t, MisfireSkip, func(t *testing.T, r *rig.Rig) {
		told := &skips{}
		r.Cfg.Observer = told
		inTopic(r, time.Minute-time.Millisecond, "before", "")
		inTopic(r, time.Minute, "now", "")
		rig.Pass(time.Minute - time.Millisecond/2)
		r.Shut()
		rig.Pass(time.Millisecond / 2)
		r.Open()
		rig.Pass(time.Millisecond)
		come(r, 1, "now")
		if ids := told.List(); !slices.Equal(ids, []string{"before"}) {
			t.Errorf("the observer was told of %q", ids)
		}
	})
}

// What had begun before the restart is not misfired: a retry, an attempt on record, a
// delivery whose receipt still counts; nor is what a caller has moved since.
func TestNotMisfired(t *testing.T) {
	missing(t, MisfireSkip, func(t *testing.T, r *rig.Rig) {
		retry := TopicSettings{Misfire: MisfireSkip, Lease: time.Minute, Retry: Retry{MinBackoff: time.Second, MaxBackoff: time.Second}}
		r.MustSetTopic("x", retry)
		inTopic(r, 0, "retried", "")
		rig.Pass(time.Millisecond)
		r.SettleOne(Verdict{Verb: Release}, r.Pull("x", "retried")[0])
		inTopic(r, 0, "open", "")
		rig.Pass(time.Millisecond)
		open := r.Pull("x", "open")[0]
		inTopic(r, time.Second, "moved", "")
		inTopic(r, time.Second, "fired", "")
		inTopic(r, time.Second, "other", "")
		inTopic(r, time.Second, "missed", "")
		down(r, 30*time.Second)
		_, err := r.Fire(t.Context(), "fired")
		rig.Want(t, "Fire", err, nil)
		_, err = r.Reschedule(t.Context(), "moved", Move{Delay: rig.Ptr(time.Second)})
		rig.Want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(t.Context(), "other", Move{Payload: []byte(`1`)})
		rig.Want(t, "Reschedule", err, nil)
		rig.Pass(2 * time.Second)
		come(r, 1, "retried", "other", "fired", "moved")
		r.Ack(open)
	})
}

// In a topic that counts crashes, the attempt in which a process ended is one; in others
// nothing records it.
func TestMisfireOfACrashedAttempt(t *testing.T) {
	for counted, skipped := range map[bool]int64{true: 0, false: 1} {
		missing(t, MisfireSkip, func(t *testing.T, r *rig.Rig) {
			r.MustSetTopic("x", TopicSettings{Misfire: MisfireSkip, CountCrashes: counted})
			inTopic(r, 0, "t", "")
			rig.Pass(time.Millisecond)
			r.Pull("x", "t")
			r.Cut()
			rig.Pass(time.Second)
			r.Open()
			synctest.Wait()
			if counted {
				come(r, skipped, "t")
			} else {
				come(r, skipped)
			}
		})
	}
}

// A receipt of before the crash that comes in time makes its task one that has begun.
func TestMisfireAndALateReceipt(t *testing.T) {
	missing(t, MisfireSkip, func(t *testing.T, r *rig.Rig) {
		inTopic(r, 0, "t", "")
		rig.Pass(time.Millisecond)
		d := r.Pull("x", "t")[0]
		r.Cut()
		rig.Pass(time.Second)
		r.Open()
		synctest.Wait()
		if a := r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Second)}, d); a.Err != nil {
			t.Fatal(a.Err)
		}
		rig.Pass(2 * time.Second)
		come(r, 0, "t")
	})
}

// The policy that counts is the one that holds when a task would be delivered.
func TestMisfireChanges(t *testing.T) {
	schedule := func(r *rig.Rig) {
		for i := range 3 {
			inTopic(r, time.Duration(10+i)*time.Second, fmt.Sprint("t", i), "g")
		}
	}
	policy := func(p Misfire) TopicSettings { return TopicSettings{Misfire: p} }
	t.Run("CoalesceToDeliverWhileReplaying", func(t *testing.T) {
		missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
			schedule(r)
			resume := heldUp(r, 10*time.Minute)
			for i := range 3 {
				r.MustGet(fmt.Sprint("t", i))
			}
			come(r, 0)
			r.MustSetTopic("x", policy(MisfireDeliver))
			rig.Pass(time.Second)
			come(r, 0, "t0", "t1", "t2")
			resume()
		})
	})
	t.Run("CoalesceToSkipWhileReplaying", func(t *testing.T) {
		missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
			schedule(r)
			resume := heldUp(r, 10*time.Minute)
			r.MustGet("t1")
			come(r, 0)
			r.MustSetTopic("x", policy(MisfireSkip))
			rig.Pass(time.Second)
			come(r, 1)
			resume()
			come(r, 3)
		})
	})
	t.Run("DeliverToCoalesce", func(t *testing.T) {
		missing(t, MisfireDeliver, func(t *testing.T, r *rig.Rig) {
			schedule(r)
			down(r, 10*time.Minute)
			r.MustSetTopic("x", policy(MisfireCoalesce))
			r.Pull("x") // which finds that there is a choice to be made
			rig.Pass(time.Second)
			come(r, 2, "t2")
		})
	})
	t.Run("Paused", func(t *testing.T) {
		missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
			schedule(r)
			rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", true), nil)
			down(r, 10*time.Minute)
			rig.Pass(time.Second)
			come(r, 0) // nothing is lost while a caller may still think it over
			rig.Want(t, "Cancel", r.Cancel(t.Context(), "t2"), nil)
			rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", false), nil)
			rig.Pass(time.Second)
			come(r, 1, "t1")
		})
	})
}

// A place that was not passed is not missed, however long ago the deadline was.
func TestMisfireInsideTheWindow(t *testing.T) {
	missing(t, MisfireSkip, func(t *testing.T, r *rig.Rig) {
		const n, window = 200, time.Hour
		r.MustSetTopic("x", TopicSettings{Misfire: MisfireSkip, Spread: window})
		due := instant(r, "x", n, time.Minute)
		down(r, 31*time.Minute)
		opened, missed := r.Clock.Now(), 0
		for i := range n {
			if place(fmt.Sprint("t", i), due, window).Before(opened) {
				missed++
			}
		}
		r.MustSetTopic("x", TopicSettings{Misfire: MisfireSkip}) // nor does it become so
		rig.Pass(time.Second)
		ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		if c := r.Counts("x"); len(ds) != n-missed || c.Skipped != int64(missed) || missed < n/3 {
			t.Errorf("%d delivered, %d skipped; %d places have passed", len(ds), c.Skipped, missed)
		}
	})
}
