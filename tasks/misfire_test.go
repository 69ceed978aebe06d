package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
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
	r.faulty, r.forgiven = ledgertest.Wrap(r.mem), 0
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
	for name, again := range map[string]func(r *rig){
		"Close": (*rig).shut,
		"Crash": (*rig).cut,
	} {
		t.Run(name, func(t *testing.T) {
			missing(t, MisfireSkip, func(t *testing.T, r *rig) {
				for i := range 2*atOnce + 10 {
					r.in(time.Minute, fmt.Sprint("t", i), "g")
				}
				r.in(10*time.Minute+time.Second, "next", "g")
				r.in(time.Hour, "future", "")
				pass(time.Second)
				again(r)
				pass(10 * time.Minute)
				r.open()
				pass(2 * time.Second)
				r.come(2*atOnce+10, "next")
				pass(time.Second)
				if _, err := r.Get(t.Context(), "t0"); !errors.Is(err, ErrNotFound) {
					t.Errorf("a skipped task: %v", err)
				}
				r.in(0, "fresh", "g")
				pass(time.Millisecond)
				r.come(2*atOnce+10, "fresh")
				pass(time.Hour)
				r.come(2*atOnce+10, "future")
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
// nobody knows of it.
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

// Of each group only the newest of those that were missed comes; tasks without a group,
// of other topics and of the future are let alone.
func TestMisfireCoalesce(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
		for i, group := range []string{"a", "b", "c", "a", "b", "", "a", ""} {
			r.in(time.Duration(10+i)*time.Second, fmt.Sprint(group, i), group)
		}
		r.in(time.Hour, "future", "a")
		r.must(Request{ID: "other", Topic: "y", Group: "a", Delay: time.Minute})
		r.down(10 * time.Minute)
		r.come(3, "c2", "b4", "5", "a6", "7")
		r.ack(r.pull("y", "other")[0])
		pass(time.Hour)
		r.come(3, "future")
	})
}

// Of tasks with the same deadline the one that was created last is the newest, then the
// one with the greater id.
func TestMisfireCoalesceTies(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
		due := r.clock.now().Add(time.Minute)
		for _, id := range []string{"d", "b", "c", "a"} {
			r.must(Request{ID: id, Topic: "x", Group: "g", Due: due})
		}
		pass(time.Second)
		for _, id := range []string{"z", "y"} {
			r.must(Request{ID: id, Topic: "x", Group: "h", Due: due.Add(time.Second)})
			pass(time.Second)
		}
		r.down(10 * time.Minute)
		r.come(4, "d", "y")
	})
}

// While replay runs, a group is not complete: its tasks wait, those of others do not.
func TestMisfireCoalesceWaitsForReplay(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
		for i := range 5 {
			r.in(time.Duration(10+i)*time.Second, fmt.Sprint("t", i), "g")
		}
		r.in(time.Minute, "alone", "")
		resume := r.heldUp(10 * time.Minute)
		for _, id := range []string{"t0", "t4", "alone"} {
			r.get(id) // which replay has not reached
		}
		r.in(0, "fresh", "g")
		pass(10 * time.Second)
		r.come(0, "alone", "fresh")
		if task := r.get("t4"); task.State != Pending {
			t.Errorf("while replay runs: %v", task.State)
		}
		r.topic("x", TopicSettings{Misfire: MisfireCoalesce, Lease: time.Hour}) // a reason to look again
		pass(5 * time.Second)
		r.come(0)
		resume()
		r.come(4, "t4")
	})
}

// A visit that began while replay ran leaves the choice to another, also where it comes to
// the tasks after the end of replay.
func TestMisfireCoalesceAtTheEndOfReplay(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
		r.in(time.Second, "t0", "g")
		r.in(time.Minute, "t1", "g")
		resume := r.heldUp(10 * time.Minute)
		r.get("t1")
		r.come(0)
		v := r.visit("x")
		resume()
		v.run()
		synctest.Wait()
		r.come(1, "t1")
	})
}

// The newest so far that is cancelled before the visit is over does not make others be
// skipped any more.
func TestMisfireCoalesceBesideACancel(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
		for i := range 3 {
			r.in(time.Duration(1+i)*time.Second, fmt.Sprint("t", i), "g")
		}
		resume := r.heldUp(10 * time.Minute)
		for i := range 3 {
			r.get(fmt.Sprint("t", i))
		}
		v := r.visit("x")
		compare := func(id string) {
			r.mu.Lock()
			n, _ := r.book.find([]byte(id))
			v.compareLocked(n, r.book.slot(n))
			r.unlock()
		}
		compare("t2")
		want(t, "Cancel", r.Cancel(t.Context(), "t2"), nil)
		compare("t0")
		compare("t1")
		v.release()
		v.leave()
		r.come(1, "t1")
		resume()
	})
}

// visit is one that begins now.
func (r *rig) visit(name string) *visit {
	r.mu.Lock()
	defer r.unlock()
	x := r.topics[name]
	x.undecided = false
	return &visit{walk: r.walkLocked("", ""), topics: map[*topic]bool{x: true}, newest: make(map[groupOf]candidate), decides: r.isReplayed()}
}

// The newest is the newest of those that are there when replay is over: one that was
// cancelled or moved until then does not count.
func TestMisfireCoalesceWithoutTheNewest(t *testing.T) {
	for name, change := range map[string]func(r *rig){
		"Cancel": func(r *rig) { want(r.t, "Cancel", r.Cancel(r.t.Context(), "t2"), nil) },
		"Move": func(r *rig) {
			_, err := r.Reschedule(r.t.Context(), "t2", Move{Delay: ptr(time.Hour)})
			want(r.t, "Reschedule", err, nil)
		},
		"Topic": func(r *rig) {
			_, err := r.Replace(r.t.Context(), Request{ID: "t2", Topic: "y"})
			want(r.t, "Replace", err, nil)
		},
		"Group": func(r *rig) {
			_, err := r.Replace(r.t.Context(), Request{ID: "t2", Topic: "x", Group: "h", Delay: time.Hour})
			want(r.t, "Replace", err, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
				for i := range 3 {
					r.in(time.Duration(10+i)*time.Second, fmt.Sprint("t", i), "g")
				}
				resume := r.heldUp(10 * time.Minute)
				change(r)
				resume()
				pass(time.Second)
				r.come(1, "t1")
			})
		})
	}
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
			r.come(0) // nothing is lost while somebody may still think it over
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

// Many groups, more than one lock's worth, delivered by a handler; and a second restart
// before the ledger has heard of what was skipped.
func TestMisfireCoalesceMany(t *testing.T) {
	const groups, each = 1200, 4
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
		for i := range each {
			requests := make([]Request, groups)
			for g := range requests {
				requests[g] = Request{ID: fmt.Sprintf("g%d.%d", g, i), Topic: "x", Group: fmt.Sprint("g", g), Delay: time.Duration(1+(i+g)%each) * time.Second}
			}
			_, err := r.ScheduleBatch(t.Context(), requests)
			want(t, "ScheduleBatch", err, nil)
		}
		r.shut()
		pass(time.Minute)
		r.faulty, r.forgiven = ledgertest.Wrap(r.mem), 0
		_, release := r.faulty.Hold(ledgertest.Apply)
		var err error
		r.Scheduler, err = Open(t.Context(), r.faulty, r.cfg)
		want(t, "Open", err, nil)
		pass(time.Second)
		if n := r.counts("x").Skipped; n != groups*(each-1) {
			t.Errorf("%d skipped; want %d", n, groups*(each-1))
		}
		release()
		r.crash()
		var got collection[string]
		r.handle("x", func(_ context.Context, d *Delivery) error { got.add(d.ID); return nil })
		pass(time.Minute)
		newest := make([]string, groups)
		for g := range newest {
			newest[g] = fmt.Sprintf("g%d.%d", g, ((each-1-g)%each+each)%each)
		}
		ids := got.list()
		slices.Sort(ids)
		slices.Sort(newest)
		if !slices.Equal(ids, newest) {
			t.Errorf("%d delivered; want the newest of each of %d groups", len(ids), groups)
		}
	})
}

// A ledger that fails in the middle does not make a choice of half of a group.
func TestMisfireCoalesceAndAFailingScan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, memledger.Shards(4))
		r.topic("x", TopicSettings{Misfire: MisfireCoalesce})
		for i := range 50 {
			r.in(time.Duration(1+i)*time.Second, fmt.Sprint("t", i), "g")
		}
		r.shut()
		pass(time.Hour)
		r.faulty, r.forgiven = ledgertest.Wrap(r.mem), 0
		r.faulty.Inject(ledgertest.Fault{Op: ledgertest.Scan, Times: 3, After: true})
		var err error
		r.Scheduler, err = Open(t.Context(), r.faulty, r.cfg)
		want(t, "Open", err, nil)
		pass(time.Minute)
		r.come(49, "t49")
		pass(time.Second)
		r.checkConsistency()
		r.wantNoRescue()
	})
}
