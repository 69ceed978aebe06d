package tasks_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

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

// Of tasks with the same deadline the one that was created last is the newest, also within a
// millisecond.
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
		r.come(4, "a", "y")
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
		// A reason to look again.
		r.topic("x", TopicSettings{Misfire: MisfireCoalesce, Lease: time.Hour})
		pass(5 * time.Second)
		r.come(0)
		resume()
		r.come(4, "t4")
	})
}

// A pass that began while replay ran leaves the choice to another, also where it comes to
// the tasks after the end of replay.
func TestMisfireCoalesceAtTheEndOfReplay(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
		r.in(time.Second, "t0", "g")
		r.in(time.Minute, "t1", "g")
		resume := r.heldUp(10 * time.Minute)
		r.get("t0")
		r.get("t1")
		r.come(0)
		v := r.misfirePass("x")
		resume()
		v.Run()
		synctest.Wait()
		r.come(1, "t1")
	})
}

// The newest so far that is cancelled before the pass is over does not make others be
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
		v := r.misfirePass("x")
		compare := func(id string) {
			Mutex(r.Engine()).Lock()
			n, _ := r.Engine().Store.Find([]byte(id))
			v.CompareLocked(n, r.Engine().Store.Slot(n))
			Mutex(r.Engine()).Unlock()
		}
		compare("t2")
		want(t, "Cancel", r.Cancel(t.Context(), "t2"), nil)
		compare("t0")
		compare("t1")
		v.LetGo()
		v.Leave()
		r.come(1, "t1")
		resume()
	})
}

// visit is one that begins now.
func (r *rig) misfirePass(name string) *engine.MisfirePass {
	Mutex(r.Engine()).Lock()
	defer Mutex(r.Engine()).Unlock()
	x := r.Engine().TopicTable.ByName[name]
	x.Undecided = false
	return r.Engine().NewMisfirePassLocked(map[*engine.Topic]bool{x: true})
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

// One that is past its max_lateness is not delivered, and others are not skipped for it.
func TestMisfireCoalesceTooLate(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig) {
		for i, lateness := range []time.Duration{0, time.Hour, time.Minute} {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: "x", Group: "g", Delay: time.Duration(10+i) * time.Second, MaxLateness: lateness})
		}
		r.down(10 * time.Minute)
		r.come(2, "t1")
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
		r.faulty = ledgertest.Wrap(r.mem)
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
		r.faulty = ledgertest.Wrap(r.mem)
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
