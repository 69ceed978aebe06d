package tasks_test

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
)

// missing runs a test, on both kinds of ledgers, on a rig that has a topic "x" with this policy.
func missing(t *testing.T, policy Misfire, test func(t *testing.T, r *rig)) {
	t.Helper()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, Config{}, options...)
				r.topic("x", TopicSettings{Misfire: policy})
				synctest.Wait()
				test(t, r)
				pass(time.Second)
				r.checkConsistency()
				r.wantNoRescue()
			})
		})
	}
}

// in schedules a task of the topic "x".
func (r *rig) in(delay time.Duration, id, group string) {
	r.t.Helper()
	r.must(Request{ID: id, Topic: "x", Group: group, Delay: delay})
}

// down lets time pass with no process, and comes back.
func (r *rig) down(d time.Duration) {
	r.t.Helper()
	r.shut()
	pass(d)
	r.open()
	synctest.Wait()
}

// heldUp is down, but replay does not begin before resume is called.
func (r *rig) heldUp(d time.Duration) (resume func()) {
	r.t.Helper()
	r.shut()
	pass(d)
	r.faulty = ledgertest.Wrap(r.mem)
	_, begin := r.faulty.Hold(ledgertest.Scan)
	var err error
	if r.Scheduler, err = Open(r.t.Context(), r.faulty, r.cfg); err != nil {
		r.t.Fatal("Open:", err)
	}
	return func() { begin(); synctest.Wait() }
}

// come fails the test unless just these tasks are ready, in this order, and so many have
// been skipped. It acknowledges them.
func (r *rig) come(skipped int64, ids ...string) {
	r.t.Helper()
	for _, d := range r.pull("x", ids...) {
		r.ack(d)
	}
	if n := r.counts("x").Skipped; n != skipped {
		r.t.Fatalf("%d skipped; want %d", n, skipped)
	}
}

func TestMisfireDeliver(t *testing.T) {
	missing(t, MisfireDeliver, func(t *testing.T, r *rig) {
		r.in(time.Minute, "a", "g")
		r.in(2*time.Minute, "b", "g")
		r.in(time.Hour, "future", "g")
		r.down(10 * time.Minute)
		r.come(0, "a", "b")
		pass(time.Hour)
		r.come(0, "future")
	})
}

func TestMisfireSkip(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(r *rig){
		"Close": (*rig).shut,
		"Crash": (*rig).cut,
	} {
		t.Run(name, func(t *testing.T) {
			missing(t, MisfireSkip, func(t *testing.T, r *rig) {
				for i := range 2*engine.AtOnce + 10 {
					r.in(time.Minute, fmt.Sprint("t", i), "g")
				}
				r.in(10*time.Minute+time.Second, "next", "g")
				r.in(time.Hour, "future", "")
				pass(time.Second)
				again(r)
				pass(10 * time.Minute)
				r.open()
				pass(2 * time.Second)
				r.come(2*engine.AtOnce+10, "next")
				pass(time.Second)
				if _, err := r.Get(t.Context(), "t0"); !errors.Is(err, ErrNotFound) {
					t.Errorf("a skipped task: %v", err)
				}
				r.in(0, "fresh", "g")
				pass(time.Millisecond)
				r.come(2*engine.AtOnce+10, "fresh")
				pass(time.Hour)
				r.come(2*engine.AtOnce+10, "future")
			})
		})
	}
}

// skips counts what observers are told of skipped tasks.
type skips struct{ collection[string] }

func (s *skips) Observe(e Event) {
	if e.Kind == EventSkipped {
		s.add(e.ID)
	}
}

// A restart of no length is downtime too: what was due and not delivered before is
// misfired, what is due in the moment of Open is not.
func TestMisfireBoundary(t *testing.T) {
	missing(t, MisfireSkip, func(t *testing.T, r *rig) {
		told := &skips{}
		r.cfg.Observer = told
		r.in(time.Minute-time.Millisecond, "before", "")
		r.in(time.Minute, "now", "")
		pass(time.Minute - time.Millisecond/2)
		r.shut()
		pass(time.Millisecond / 2)
		r.open()
		pass(time.Millisecond)
		r.come(1, "now")
		if ids := told.list(); !slices.Equal(ids, []string{"before"}) {
			t.Errorf("the observer was told of %q", ids)
		}
	})
}

// What had begun before the restart is not misfired: a retry, an attempt on record, a
// delivery whose receipt still counts; nor is what a caller has moved since.
func TestNotMisfired(t *testing.T) {
	missing(t, MisfireSkip, func(t *testing.T, r *rig) {
		retry := TopicSettings{Misfire: MisfireSkip, Lease: time.Minute, Retry: Retry{MinBackoff: time.Second, MaxBackoff: time.Second}}
		r.topic("x", retry)
		r.in(0, "retried", "")
		pass(time.Millisecond)
		r.settle(Verdict{Verb: Release}, r.pull("x", "retried")[0])
		r.in(0, "open", "")
		pass(time.Millisecond)
		open := r.pull("x", "open")[0]
		r.in(time.Second, "moved", "")
		r.in(time.Second, "fired", "")
		r.in(time.Second, "other", "")
		r.in(time.Second, "missed", "")
		r.down(30 * time.Second)
		_, err := r.Fire(t.Context(), "fired")
		want(t, "Fire", err, nil)
		_, err = r.Reschedule(t.Context(), "moved", Move{Delay: ptr(time.Second)})
		want(t, "Reschedule", err, nil)
		_, err = r.Reschedule(t.Context(), "other", Move{Payload: []byte(`1`)})
		want(t, "Reschedule", err, nil)
		pass(2 * time.Second)
		r.come(1, "retried", "other", "fired", "moved")
		r.ack(open)
	})
}

// In a topic that counts crashes, the attempt in which a process ended is one; in others
// nothing records it.
func TestMisfireOfACrashedAttempt(t *testing.T) {
	for counted, skipped := range map[bool]int64{true: 0, false: 1} {
		missing(t, MisfireSkip, func(t *testing.T, r *rig) {
			r.topic("x", TopicSettings{Misfire: MisfireSkip, CountCrashes: counted})
			r.in(0, "t", "")
			pass(time.Millisecond)
			r.pull("x", "t")
			r.cut()
			pass(time.Second)
			r.open()
			synctest.Wait()
			if counted {
				r.come(skipped, "t")
			} else {
				r.come(skipped)
			}
		})
	}
}

// A receipt of before the crash that comes in time makes its task one that has begun.
func TestMisfireAndALateReceipt(t *testing.T) {
	missing(t, MisfireSkip, func(t *testing.T, r *rig) {
		r.in(0, "t", "")
		pass(time.Millisecond)
		d := r.pull("x", "t")[0]
		r.cut()
		pass(time.Second)
		r.open()
		synctest.Wait()
		if a := r.settle(Verdict{Verb: Release, Delay: ptr(time.Second)}, d); a.Err != nil {
			t.Fatal(a.Err)
		}
		pass(2 * time.Second)
		r.come(0, "t")
	})
}

// The policy that counts is the one that holds when a task would be delivered.
func TestMisfireChanges(t *testing.T) {
	schedule := func(r *rig) {
		for i := range 3 {
			r.in(time.Duration(10+i)*time.Second, fmt.Sprint("t", i), "g")
		}
	}
	policy := func(p Misfire) TopicSettings { return TopicSettings{Misfire: p} }
	t.Run("CoalesceToDeliverWhileReplaying", func(t *testing.T) {
		missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
			schedule(r)
			resume := r.heldUp(10 * time.Minute)
			for i := range 3 {
				r.get(fmt.Sprint("t", i))
			}
			r.come(0)
			r.topic("x", policy(MisfireDeliver))
			pass(time.Second)
			r.come(0, "t0", "t1", "t2")
			resume()
		})
	})
	t.Run("CoalesceToSkipWhileReplaying", func(t *testing.T) {
		missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
			schedule(r)
			resume := r.heldUp(10 * time.Minute)
			r.get("t1")
			r.come(0)
			r.topic("x", policy(MisfireSkip))
			pass(time.Second)
			r.come(1)
			resume()
			r.come(3)
		})
	})
	t.Run("DeliverToCoalesce", func(t *testing.T) {
		missing(t, MisfireDeliver, func(t *testing.T, r *rig) {
			schedule(r)
			r.down(10 * time.Minute)
			r.topic("x", policy(MisfireCoalesce))
			r.pull("x") // which finds that there is a choice to be made
			pass(time.Second)
			r.come(2, "t2")
		})
	})
	t.Run("Paused", func(t *testing.T) {
		missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
			schedule(r)
			want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", true), nil)
			r.down(10 * time.Minute)
			pass(time.Second)
			r.come(0) // nothing is lost while a caller may still think it over
			want(t, "Cancel", r.Cancel(t.Context(), "t2"), nil)
			want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", false), nil)
			pass(time.Second)
			r.come(1, "t1")
		})
	})
}

// A place that was not passed is not missed, however long ago the deadline was.
func TestMisfireInsideTheWindow(t *testing.T) {
	missing(t, MisfireSkip, func(t *testing.T, r *rig) {
		const n, window = 200, time.Hour
		r.topic("x", TopicSettings{Misfire: MisfireSkip, Spread: window})
		due := r.instant("x", n, time.Minute)
		r.down(31 * time.Minute)
		opened, missed := r.clock.now(), 0
		for i := range n {
			if place(fmt.Sprint("t", i), due, window).Before(opened) {
				missed++
			}
		}
		r.topic("x", TopicSettings{Misfire: MisfireSkip}) // nor does it become so
		pass(time.Second)
		ds, err := r.Reserve(t.Context(), "x", MaxReserve, 0, 0)
		want(t, "Reserve", err, nil)
		if c := r.counts("x"); len(ds) != n-missed || c.Skipped != int64(missed) || missed < n/3 {
			t.Errorf("%d delivered, %d skipped; %d places have passed", len(ds), c.Skipped, missed)
		}
	})
}
