package engine_test

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
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Of each group only the newest of those that were missed comes; tasks without a group,
// of other topics and of the future are let alone.
func TestMisfireCoalesce(t *testing.T) {
	t.Parallel()
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
		for i, group := range []string{"a", "b", "c", "a", "b", "", "a", ""} {
			inTopic(r, time.Duration(10+i)*time.Second, fmt.Sprint(group, i), group)
		}
		inTopic(r, time.Hour, "future", "a")
		r.Must(Request{ID: "other", Topic: "y", Group: "a", Delay: time.Minute})
		down(r, 10*time.Minute)
		come(r, 3, "c2", "b4", "5", "a6", "7")
		r.Ack(r.Pull("y", "other")[0])
		rig.Pass(time.Hour)
		come(r, 3, "future")
	})
}

// Of tasks with the same deadline the one that was created last is the newest, also within a
// millisecond.
func TestMisfireCoalesceTies(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
		due := r.Clock.Now().Add(time.Minute)
		for _, id := range []string{"d", "b", "c", "a"} {
			r.Must(Request{ID: id, Topic: "x", Group: "g", Due: due})
		}
		rig.Pass(time.Second)
		for _, id := range []string{"z", "y"} {
			r.Must(Request{ID: id, Topic: "x", Group: "h", Due: due.Add(time.Second)})
			rig.Pass(time.Second)
		}
		down(r, 10*time.Minute)
		come(r, 4, "a", "y")
	})
}

// While replay runs, a group is not complete: its tasks wait, those of others do not.
func TestMisfireCoalesceWaitsForReplay(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
		for i := range 5 {
			inTopic(r, time.Duration(10+i)*time.Second, fmt.Sprint("t", i), "g")
		}
		inTopic(r, time.Minute, "alone", "")
		resume := heldUp(r, 10*time.Minute)
		for _, id := range []string{"t0", "t4", "alone"} {
			r.MustGet(id) // which replay has not reached
		}
		inTopic(r, 0, "fresh", "g")
		rig.Pass(10 * time.Second)
		come(r, 0, "alone", "fresh")
		if task := r.MustGet("t4"); task.State != Pending {
			t.Errorf("while replay runs: %v", task.State)
		}
		// A reason to look again.
		r.MustSetTopic("x", TopicSettings{Misfire: MisfireCoalesce, Lease: time.Hour})
		rig.Pass(5 * time.Second)
		come(r, 0)
		resume()
		come(r, 4, "t4")
	})
}

// A pass that began while replay ran leaves the choice to another, also where it comes to
// the tasks after the end of replay.
func TestMisfireCoalesceAtTheEndOfReplay(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
		inTopic(r, time.Second, "t0", "g")
		inTopic(r, time.Minute, "t1", "g")
		resume := heldUp(r, 10*time.Minute)
		r.MustGet("t0")
		r.MustGet("t1")
		come(r, 0)
		v := misfirePass(r, "x")
		resume()
		v.Run()
		synctest.Wait()
		come(r, 1, "t1")
	})
}

// The newest so far that is cancelled before the pass is over does not make others be
// skipped any more.
func TestMisfireCoalesceBesideACancel(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
		for i := range 3 {
			inTopic(r, time.Duration(1+i)*time.Second, fmt.Sprint("t", i), "g")
		}
		resume := heldUp(r, 10*time.Minute)
		for i := range 3 {
			r.MustGet(fmt.Sprint("t", i))
		}
		v := misfirePass(r, "x")
		compare := func(id string) {
			rig.Mutex(r.Engine()).Lock()
			n, _ := r.Engine().Store.Find([]byte(id))
			v.CompareLocked(n, r.Engine().Store.Slot(n))
			rig.Mutex(r.Engine()).Unlock()
		}
		compare("t2")
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "t2"), nil)
		compare("t0")
		compare("t1")
		v.LetGo()
		v.Leave()
		come(r, 1, "t1")
		resume()
	})
}

// visit is one that begins now.
func misfirePass(r *rig.Rig, name string) *engine.MisfirePass {
	rig.Mutex(r.Engine()).Lock()
	defer rig.Mutex(r.Engine()).Unlock()
	x := r.Engine().TopicTable.ByName[name]
	x.Undecided = false
	return r.Engine().NewMisfirePassLocked(map[*engine.Topic]bool{x: true})
}

// The newest is the newest of those that are there when replay is over: one that was
// cancelled or moved until then does not count.
func TestMisfireCoalesceWithoutTheNewest(t *testing.T) {
	for name, change := range map[string]func(r *rig.Rig){
		"Cancel": func(r *rig.Rig) { rig.Want(r.T, "Cancel", r.Cancel(r.T.Context(), "t2"), nil) },
		"Move": func(r *rig.Rig) {
			_, err := r.Reschedule(r.T.Context(), "t2", Move{Delay: rig.Ptr(time.Hour)})
			rig.Want(r.T, "Reschedule", err, nil)
		},
		"Topic": func(r *rig.Rig) {
			_, err := r.Replace(r.T.Context(), Request{ID: "t2", Topic: "y"})
			rig.Want(r.T, "Replace", err, nil)
		},
		"Group": func(r *rig.Rig) {
			_, err := r.Replace(r.T.Context(), Request{ID: "t2", Topic: "x", Group: "h", Delay: time.Hour})
			rig.Want(r.T, "Replace", err, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
				for i := range 3 {
					inTopic(r, time.Duration(10+i)*time.Second, fmt.Sprint("t", i), "g")
				}
				resume := heldUp(r, 10*time.Minute)
				change(r)
				resume()
				rig.Pass(time.Second)
				come(r, 1, "t1")
			})
		})
	}
}

// One that is past its max_lateness is not delivered, and others are not skipped for it.
func TestMisfireCoalesceTooLate(t *testing.T) {
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
		for i, lateness := range []time.Duration{0, time.Hour, time.Minute} {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Group: "g", Delay: time.Duration(10+i) * time.Second, MaxLateness: lateness})
		}
		down(r, 10*time.Minute)
		come(r, 2, "t1")
	})
}

// Many groups, more than one lock's worth, delivered by a handler; and a second restart
// before the ledger has heard of what was skipped.
func TestMisfireCoalesceMany(t *testing.T) {
	const groups, each = 1200, 4
	missing(t, MisfireCoalesce, func(t *testing.T, r *rig.Rig) {
		for i := range each {
			requests := make([]Request, groups)
			for g := range requests {
				requests[g] = Request{ID: fmt.Sprintf("g%d.%d", g, i), Topic: "x", Group: fmt.Sprint("g", g), Delay: time.Duration(1+(i+g)%each) * time.Second}
			}
			_, err := r.ScheduleBatch(t.Context(), requests)
			rig.Want(t, "ScheduleBatch", err, nil)
		}
		r.Shut()
		rig.Pass(time.Minute)
		r.Faulty = ledgertest.Wrap(r.Mem)
		_, release := r.Faulty.Hold(ledgertest.Apply)
		var err error
		r.Scheduler, err = Open(t.Context(), r.Faulty, r.Cfg)
		rig.Want(t, "Open", err, nil)
		rig.Pass(time.Second)
		if n := r.Counts("x").Skipped; n != groups*(each-1) {
			t.Errorf("%d skipped; want %d", n, groups*(each-1))
		}
		release()
		r.Crash()
		var got rig.Collection[string]
		r.MustHandle("x", func(_ context.Context, d *Delivery) error { got.Add(d.ID); return nil })
		rig.Pass(time.Minute)
		newest := make([]string, groups)
		for g := range newest {
			newest[g] = fmt.Sprintf("g%d.%d", g, ((each-1-g)%each+each)%each)
		}
		ids := got.List()
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
		r := rig.New(t, Config{}, memledger.Shards(4))
		r.MustSetTopic("x", TopicSettings{Misfire: MisfireCoalesce})
		for i := range 50 {
			inTopic(r, time.Duration(1+i)*time.Second, fmt.Sprint("t", i), "g")
		}
		r.Shut()
		rig.Pass(time.Hour)
		r.Faulty = ledgertest.Wrap(r.Mem)
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Scan, Times: 3, After: true})
		var err error
		r.Scheduler, err = Open(t.Context(), r.Faulty, r.Cfg)
		rig.Want(t, "Open", err, nil)
		rig.Pass(time.Minute)
		come(r, 49, "t49")
		rig.Pass(time.Second)
		r.CheckConsistency()
		r.WantNoRescue()
	})
}
