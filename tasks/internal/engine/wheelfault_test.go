package engine_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// late is by how much the sweep finds overdue what it does not ask the wheel for yet, and waits for
// the wheel.
const late = 200*time.Millisecond + time.Millisecond

// wheelFaultBubble runs a test with fake time on a rig whose wheel's batches go through spoil.
func wheelFaultBubble(t *testing.T, cfg Config, spoil func([]uint64) []uint64, test func(t *testing.T, r *rig.Rig)) {
	cfg.SweepEvery = cmp.Or(cfg.SweepEvery, time.Second) // the bounds of the tests go by it
	t.Helper()
	rig.Bubble(t, cfg, func(t *testing.T, r *rig.Rig) {
		r.Parts.Fired = spoil
		r.Restart()
		synctest.Wait() // for replay
		r.Rescues = true
		test(t, r)
	})
}

// arrivals are deliveries that a handler has seen.
type arrivals struct {
	rig.Collection[string]
	early  atomic.Int64
	latest rig.Peak
}

func (a *arrivals) handler(r *rig.Rig) HandlerFunc {
	return func(_ context.Context, d *Delivery) error {
		late := r.Clock.Now().Sub(d.Due)
		if late < 0 {
			a.early.Add(1)
		}
		a.latest.See(int64(late))
		a.Add(d.ID)
		return nil
	}
}

// complete fails the test unless n different tasks came, none of them early or later
// than that.
func (a *arrivals) complete(t *testing.T, n int, latest time.Duration) {
	t.Helper()
	got := a.List()
	slices.Sort(got)
	if distinct := len(slices.Compact(slices.Clone(got))); len(got) != n || distinct != n {
		t.Errorf("%d deliveries of %d tasks; want %d", len(got), distinct, n)
	}
	if a.early.Load() != 0 || time.Duration(a.latest.Load()) > latest {
		t.Errorf("%d early, the latest by %v", a.early.Load(), time.Duration(a.latest.Load()))
	}
}

// The wheel fires nothing at all: the sweep alone delivers everything, none of it
// early, and says so.
func TestSweepAloneDeliversEverything(t *testing.T) {
	const n = 5000
	var fired atomic.Int64
	lose := func(values []uint64) []uint64 { fired.Add(int64(len(values))); return nil }
	wheelFaultBubble(t, Config{}, lose, func(t *testing.T, r *rig.Rig) {
		var a arrivals
		r.MustHandle("x", a.handler(r))
		for i := range n {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Second + time.Duration(i)*7*time.Millisecond})
		}
		rig.Pass(time.Minute)
		a.complete(t, n, late+r.Cfg.SweepEvery+time.Second)
		s := r.Stats()
		if s.Rescued != n || fired.Load() != n || s.MissedWakes != 0 {
			t.Errorf("%d rescued of %d that the wheel has lost; %d wakes missed", s.Rescued, fired.Load(), s.MissedWakes)
		}
		if !r.Log.Has("the timing wheel does not fire") || !r.Log.Has("lost_by_wheel=") || len(r.Readiness().Waiting) != 1 {
			t.Error("neither the log nor Readiness says so")
		}
		rig.Pass(time.Minute)
		if !r.Log.Has("the timing wheel fires again") || len(r.Readiness().Waiting) != 0 {
			t.Error("it is still said that the wheel does not fire")
		}
		r.CheckConsistency()
	})
}

// A pause of the whole process, or a step of the clock, is no fault of the wheel, however long the
// wheel needs to catch up.
func TestPauseIsNoFaultOfTheWheel(t *testing.T) {
	const n = 20_000
	var slowed atomic.Bool
	slow := func(values []uint64) []uint64 {
		if slowed.Load() {
			time.Sleep(400 * time.Millisecond)
		}
		return values
	}
	wheelFaultBubble(t, Config{}, slow, func(t *testing.T, r *rig.Rig) {
		r.Rescues = false
		var a arrivals
		r.MustHandle("x", a.handler(r))
		requests := make([]Request, MaxBatch)
		for i := range n {
			requests[i%MaxBatch] = Request{Topic: "x", Delay: 10 * time.Second}
			if i%MaxBatch == MaxBatch-1 {
				_, err := r.ScheduleBatch(t.Context(), requests)
				rig.Want(t, "ScheduleBatch", err, nil)
			}
		}
		rig.Pass(1500 * time.Millisecond)
		slowed.Store(true)
		r.Clock.Step(time.Hour)
		rig.Pass(time.Minute)
		a.complete(t, n, time.Hour)
		if s := r.Stats(); s.Rescued != 0 || r.Log.Has("the timing wheel does not fire") {
			t.Errorf("%d rescued", s.Rescued)
		}
	})
}

// The wheel's own goroutine hangs in its first batch for ever: what the wheel still
// holds is fired by the sweep.
func TestSweepInPlaceOfTheWheelsGoroutine(t *testing.T) {
	const n = 1000
	var hung chan struct{} // of the bubble
	var first atomic.Bool
	hang := func(values []uint64) []uint64 {
		if first.CompareAndSwap(false, true) {
			values = slices.Clone(values)
			<-hung
		}
		return values
	}
	wheelFaultBubble(t, Config{SweepEvery: 3 * time.Second}, hang, func(t *testing.T, r *rig.Rig) {
		hung = make(chan struct{})
		defer close(hung)
		var a arrivals
		r.MustHandle("x", a.handler(r))
		for i := range n {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: 3100*time.Millisecond + time.Duration(i)*7*time.Millisecond})
		}
		rig.Pass(time.Minute)
		a.complete(t, n, late+r.Cfg.SweepEvery+time.Second)
		if s := r.Stats(); s.Rescued != n {
			t.Errorf("%d rescued of %d", s.Rescued, n)
		}
		if w := r.Readiness(); !w.Ready || len(w.Waiting) != 1 || w.Waiting[0].What != "timing wheel" ||
			!strings.Contains(w.Waiting[0].Detail, "the sweep has delivered 1000 overdue tasks in its place") {
			t.Errorf("Readiness: %+v", w)
		}
		if n := r.Log.Count("the timing wheel does not fire"); n != 1 {
			t.Errorf("%d lines in the log", n)
		}
	})
}

// The wheel loses every third task: just those are rescued, and the others are on time.
func TestSweepRescuesWhatIsLost(t *testing.T) {
	const n = 3000
	lose := func(values []uint64) (left []uint64) {
		for _, v := range values {
			if uint32(v)%3 != 0 { // by slot
				left = append(left, v)
			}
		}
		return left
	}
	wheelFaultBubble(t, Config{}, lose, func(t *testing.T, r *rig.Rig) {
		var a arrivals
		r.MustHandle("x", a.handler(r))
		for i := range n {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Second + time.Duration(i)*7*time.Millisecond})
		}
		rig.Pass(time.Minute)
		a.complete(t, n, late+r.Cfg.SweepEvery+time.Second)
		s := r.Stats()
		onTime := int64(0)
		for i, c := range s.Total.Lateness.Counts {
			if i < len(LatenessBounds) && LatenessBounds[i] <= 10*time.Millisecond {
				onTime += c
			}
		}
		if s.Rescued == 0 || s.Rescued+onTime != n {
			t.Errorf("%d rescued, %d on time, of %d", s.Rescued, onTime, n)
		}
		r.CheckConsistency()
	})
}

// In a book of many chunks a sweep looks at a part of it: the first find has all of it
// searched, and so do the times of a full sweep.
func TestSearchOfALargeBook(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("fills memory with 300,000 tasks")
	}
	const n = 36 * store.ChunkSlots // three sweeps would see all of it, at their usual pace
	fill := func(r *rig.Rig, delay time.Duration) {
		requests := make([]Request, MaxBatch)
		for left := n; left > 0; left -= len(requests) {
			requests = requests[:min(left, MaxBatch)]
			for i := range requests {
				requests[i] = Request{Topic: "x", Delay: delay}
			}
			_, err := r.ScheduleBatch(r.T.Context(), requests)
			rig.Want(r.T, "ScheduleBatch", err, nil)
		}
	}
	lose := func([]uint64) []uint64 { return nil }
	t.Run("after a find", func(t *testing.T) {
		wheelFaultBubble(t, Config{}, lose, func(t *testing.T, r *rig.Rig) {
			fill(r, 10*time.Second)
			rig.Pass(13*time.Second + time.Millisecond) // a sweep that finds some, and one more
			if s := r.Stats(); s.Rescued != n || s.Total.Ready != n {
				t.Errorf("%d rescued, %d ready, of %d", s.Rescued, s.Total.Ready, n)
			}
			r.CheckConsistency()
		})
	})
	t.Run("at its time", func(t *testing.T) {
		// Fake time begins at midnight.
		wheelFaultBubble(t, Config{SweepAt: []string{"1 0 * * *"}, SweepEvery: time.Minute}, lose, func(t *testing.T, r *rig.Rig) {
			fill(r, 10*time.Second)
			rig.Pass(59 * time.Second)
			if s := r.Stats(); s.Rescued != 0 {
				t.Errorf("%d rescued before any sweep", s.Rescued)
			}
			rig.Pass(2 * time.Second)
			if s := r.Stats(); s.Rescued != n {
				t.Errorf("%d rescued, of %d", s.Rescued, n)
			}
			rig.Pass(10 * time.Minute)
			s := r.Stats()
			if s.FullSweeps != 1 || s.FullSweepAt.Minute() != 1 || s.AuditChecked < n || !r.Log.Has("a full sweep is over") {
				t.Errorf("%d full sweeps, at %v, %d checked", s.FullSweeps, s.FullSweepAt, s.AuditChecked)
			}
		})
	})
}

// A wheel that loses everything, and more overdue at once than may wait.
func TestWheelFaultAndBacklog(t *testing.T) {
	const n = 3000
	lose := func([]uint64) []uint64 { return nil }
	wheelFaultBubble(t, Config{SweepBacklog: 1000, SweepMaxConcurrency: 500}, lose, func(t *testing.T, r *rig.Rig) {
		var a arrivals
		var running atomic.Int64
		var most rig.Peak
		r.MustHandle("x", func(ctx context.Context, d *Delivery) error {
			most.See(running.Add(1))
			time.Sleep(100 * time.Millisecond)
			running.Add(-1)
			return a.handler(r)(ctx, d)
		})
		due := r.Clock.Now().Add(5 * time.Second)
		for i := range n {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Due: due})
		}
		rig.Pass(time.Minute)
		a.complete(t, n, 2*time.Second+time.Duration(n/500+2)*100*time.Millisecond+time.Second)
		s := r.Stats()
		if s.Rescued != n || s.Backlogs != 1 || s.Backlog != 0 || s.Concurrency != task.DefaultConcurrency || most.Load() != 500 {
			t.Errorf("rescued %d; %d backlogs, %d left, concurrency %d, %d at once", s.Rescued, s.Backlogs, s.Backlog, s.Concurrency, most.Load())
		}
		r.CheckConsistency()
	})
}

// readyUnnoticed makes a pending task ready, as readyLocked does, but wakes no receiver.
func readyUnnoticed(r *rig.Rig, id string) {
	rig.Mutex(r.Engine()).Lock()
	defer rig.Mutex(r.Engine()).Unlock()
	n, _ := r.Engine().Store.Find([]byte(id))
	sl := r.Engine().Store.Slot(n)
	r.Engine().DisarmLocked(sl)
	sl.Next = r.Engine().Now()
	r.Engine().SetLocked(sl, store.Ready)
	t := r.Engine().TopicTable.ByNumber[sl.Topic]
	t.Queue.Push(dispatch.Item{Next: sl.Next, Value: sl.Value(n)})
	r.Engine().QueuedLocked(t)
}

// Ready tasks whose receiver was not woken are found by the next sweep.
func TestLostWakes(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.Rescues = true
		var a arrivals
		r.MustHandle("handled", a.handler(r))
		for _, id := range []string{"h1", "h2"} {
			r.Must(Request{ID: id, Topic: "handled", Delay: time.Hour})
		}
		for _, id := range []string{"p1", "p2"} {
			r.Must(Request{ID: id, Topic: "pulled", Delay: time.Hour})
		}
		var got rig.Collection[string]
		for range 2 {
			go func() {
				ds, err := r.Reserve(context.Background(), "pulled", 1, time.Minute, 0)
				if err != nil || len(ds) != 1 {
					t.Errorf("Reserve = %v, %v", ds, err)
					return
				}
				got.Add(ds[0].ID)
			}()
		}
		synctest.Wait()
		for _, id := range []string{"h1", "h2", "p1", "p2"} {
			readyUnnoticed(r, id)
		}
		synctest.Wait()
		if len(a.List()) != 0 || len(got.List()) != 0 {
			t.Fatal("a receiver got a task though the wake was lost")
		}
		rig.Pass(rig.Engine(r.Scheduler).Config.SweepEvery)
		if len(a.List()) != 2 || len(got.List()) != 2 {
			t.Errorf("handled %v, pulled %v", a.List(), got.List())
		}
		if s := r.Stats(); s.MissedWakes != 2 || s.Rescued != 0 || !r.Log.Has("missed_wakes=2") {
			t.Errorf("%d missed wakes, %d rescued", s.MissedWakes, s.Rescued)
		}
		r.CheckConsistency()
	})
}
