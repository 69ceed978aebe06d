package engine_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// place is when a task with that deadline has its place in a window.
func place(id string, due time.Time, window time.Duration) time.Time {
	return due.Add(time.Duration(engine.Offset([]byte(id), window)) * time.Millisecond)
}

// comings are deliveries with the time at which they came.
type comings struct {
	rig.Collection[coming]
	r *rig.Rig
}

type coming struct {
	Delivery
	at time.Time
}

func (a *comings) handler(_ context.Context, d *Delivery) error {
	a.Add(coming{*d, a.r.Clock.Now()})
	return nil
}

// spreading runs a test on a rig with a topic "x" of that spread, and a handler of it.
func spreading(t *testing.T, window time.Duration, test func(t *testing.T, r *rig.Rig, got *comings)) {
	t.Helper()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Spread: window})
		got := &comings{r: r}
		r.MustHandle("x", got.handler)
		test(t, r, got)
	})
}

// instant schedules n tasks t0, t1, ... that are due at one instant.
func instant(r *rig.Rig, topic string, n int, delay time.Duration) (due time.Time) {
	r.T.Helper()
	due = record.FromMillis(record.Millis(r.Clock.Now().Add(delay)))
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = Request{ID: fmt.Sprint("t", i), Topic: topic, Due: due}
	}
	for part := range slices.Chunk(requests, MaxBatch) {
		results, err := r.ScheduleBatch(r.T.Context(), part)
		rig.Want(r.T, "ScheduleBatch", err, nil)
		for _, res := range results {
			rig.Want(r.T, res.ID, res.Err, nil)
		}
	}
	return due
}

// atPlace fails the test unless each task came once, at its place: not before, and at
// most a tick of the wheel after.
func (a *comings) atPlace(n int, window time.Duration) {
	a.r.T.Helper()
	all := a.List()
	seen := make(map[string]bool)
	for _, d := range all {
		if late := d.at.Sub(place(d.ID, d.Due, window)); late < 0 || late > 2*time.Millisecond {
			a.r.T.Fatalf("%s, due %v, came %v after its place", d.ID, d.Due, late)
		}
		if !d.Next.Equal(place(d.ID, d.Due, window)) {
			a.r.T.Fatalf("%s, due %v, shows next %v", d.ID, d.Due, d.Next)
		}
		seen[d.ID] = true
	}
	if len(all) != n || len(seen) != n {
		a.r.T.Fatalf("%d deliveries of %d tasks; want %d", len(all), len(seen), n)
	}
}

// The tasks of one instant fill their window evenly: of 100 parts of it each gets what a
// fair draw would give it, and so do all together (chi-square with 99 degrees of freedom).
func TestSpreadIsEven(t *testing.T) {
	t.Parallel()
	const n, window, parts = 10_000, 10 * time.Second, 100
	spreading(t, window, func(t *testing.T, r *rig.Rig, got *comings) {
		due := instant(r, "x", n, time.Minute)
		rig.Pass(time.Minute + window)
		got.atPlace(n, window)
		var count [parts]int
		for _, d := range got.List() {
			count[min(d.at.Sub(due)*parts/window, parts-1)]++
		}
		fair := float64(n) / parts
		square := 0.0
		for i, k := range count {
			if math.Abs(float64(k)-fair) > 5*math.Sqrt(fair) {
				t.Errorf("part %d of the window has %d tasks; fair is %v", i, k, fair)
			}
			square += (float64(k) - fair) * (float64(k) - fair) / fair
		}
		if square > 99+5*math.Sqrt(2*99) {
			t.Errorf("chi-square %.1f", square)
		}
		l := r.Counts("x").Lateness
		if early := l.Counts[0] + l.Counts[1]; early != n {
			t.Errorf("lateness %+v: all are on time", l)
		}
		r.CheckConsistency()
	})
}

// A place is in its window, whatever the window, and grows with it.
func TestOffset(t *testing.T) {
	for _, window := range []time.Duration{0, time.Microsecond, time.Millisecond, 7 * time.Millisecond, time.Hour, 24 * time.Hour} {
		for range 1000 {
			id := []byte(NewID())
			o := engine.Offset(id, window)
			if o < 0 || o >= max(1, window.Milliseconds()) || o != engine.Offset(id, window) {
				t.Fatalf("offset(%s, %v) = %d", id, window, o)
			}
			if day := engine.Offset(id, 24*time.Hour); o > day {
				t.Fatalf("offset(%s, %v) = %d, %d in a day", id, window, o, day)
			}
		}
	}
	// Where a task has its place must never change: after an update the rest of a window
	// would come twice as thick, or not at all.
	if o := engine.Offset([]byte("order-42"), 24*time.Hour); o != 61_217_022 {
		t.Errorf("the place of order-42 is %d", o)
	}
}

// Inside its window a task is pending, and everything can be done to it that can be done
// to a pending task. The ledger hears nothing of the window.
func TestInsideTheWindow(t *testing.T) {
	t.Parallel()
	const window = time.Hour
	spreading(t, window, func(t *testing.T, r *rig.Rig, got *comings) {
		due := instant(r, "x", 100, time.Minute)
		f, err := r.Admin().Forecast(t.Context(), Outlook{Topic: "x", Window: window + time.Minute, Step: (window + time.Minute) / 4})
		if rig.Want(t, "Forecast", err, nil); slices.Min(f.Counts) < 10 || f.Later != 0 {
			t.Errorf("before the deadline the forecast has %v, %d later", f.Counts, f.Later)
		}
		rig.Pass(time.Minute + time.Millisecond)
		writes := r.Faulty.Calls(ledgertest.Apply)
		early := 0
		for i := range 100 {
			id := fmt.Sprint("t", i)
			at := place(id, due, window)
			if !at.After(r.Clock.Now()) {
				early++
				continue
			}
			if task := r.MustGet(id); task.State != Pending || !task.Due.Equal(due) || !task.Next.Equal(at) {
				t.Fatalf("in its window: %+v; its place is %v", task, at)
			}
			if spot, f := r.Held(id); spot.At != due.UnixMilli() || f.Next != f.Due {
				t.Fatalf("the ledger has %+v, next %d", spot, f.Next)
			}
		}
		if n := r.Faulty.Calls(ledgertest.Apply); n > writes+early {
			t.Errorf("%d writes for the window", n-writes)
		}
		last := time.Time{}
		for _, task := range r.Pages(Query{Topic: "x"}) {
			if task.Next.Before(last) {
				t.Fatalf("%s is listed for %v after %v", task.ID, task.Next, last)
			}
			last = task.Next
		}
		f, err = r.Admin().Forecast(t.Context(), Outlook{Topic: "x", Window: window, Step: window / 4})
		if rig.Want(t, "Forecast", err, nil); slices.Min(f.Counts) < 10 || f.Ready != 0 {
			t.Errorf("the forecast has %v, %d ready", f.Counts, f.Ready)
		}
		r.CheckConsistency()

		late := slices.MaxFunc(r.Pages(Query{Topic: "x", Limit: 1000}), func(a, b Task) int { return a.Next.Compare(b.Next) })
		rig.Want(t, "Cancel", r.Cancel(t.Context(), late.ID), nil)
		rig.Pass(window / 2)
		if n := len(got.List()); n < 30 || n > 70 {
			t.Errorf("%d of 100 came in half of the window", n)
		}
		p, err := r.Admin().Purge(t.Context(), "x")
		if rig.Want(t, "Purge", err, nil); p.Cancelled+len(got.List()) != 99 {
			t.Errorf("%d purged, %d delivered", p.Cancelled, len(got.List()))
		}
		rig.Pass(window)
		r.CheckConsistency()
	})
}

// A restart in the middle of a window changes no place: what is still to come comes at its
// place, the rest at once.
func TestRestartInsideTheWindow(t *testing.T) {
	for name, again := range map[string]func(r *rig.Rig, down time.Duration){
		"Close": func(r *rig.Rig, down time.Duration) { r.Shut(); rig.Pass(down); r.Open() },
		"Crash": func(r *rig.Rig, down time.Duration) { r.Cut(); rig.Pass(down); r.Open() },
	} {
		t.Run(name, func(t *testing.T) {
			const n, window = 300, 30 * time.Second
			spreading(t, window, func(t *testing.T, r *rig.Rig, got *comings) {
				due := instant(r, "x", n, time.Minute)
				rig.Pass(70 * time.Second)
				got.atPlace(len(got.List()), window)
				again(r, 10*time.Second)
				opened := r.Clock.Now()
				r.MustHandle("x", got.handler)
				rig.Pass(time.Minute)
				overdue := 0
				for _, d := range got.List() {
					at := place(d.ID, due, window)
					if at.Before(opened) && at.After(opened.Add(-10*time.Second)) {
						overdue++
						at = opened
					}
					if late := d.at.Sub(at); late < 0 || late > 2*time.Millisecond {
						t.Fatalf("%s came %v after %v", d.ID, late, at)
					}
				}
				if total := len(got.List()); total != n || overdue < n/6 {
					t.Errorf("%d delivered, %d of them overdue", total, overdue)
				}
				r.CheckConsistency()
			})
		})
	}
}

// The window is for first attempts: one that was moved after an attempt comes at its deadline.
func TestSpreadOfALaterAttempt(t *testing.T) {
	t.Parallel()
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Spread: time.Hour})
		for i := range 20 {
			id := fmt.Sprint("t", i)
			r.Must(Request{ID: id, Topic: "x"})
			_, err := r.Fire(t.Context(), id)
			rig.Want(t, "Fire", err, nil)
			r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(24 * time.Hour)}, r.Pull("x", id)[0])
			_, err = r.Reschedule(t.Context(), id, Move{Delay: rig.Ptr(time.Minute)})
			rig.Want(t, "Reschedule", err, nil)
			rig.Pass(time.Minute)
			d := r.Pull("x", id)[0]
			if d.Attempt != 2 {
				t.Errorf("%s: attempt %d", id, d.Attempt)
			}
			r.SettleOne(Verdict{Verb: Ack}, d)
		}
	})
}

// What waits in a window follows the settings within a second, whatever its place was.
func TestSpreadChanges(t *testing.T) {
	t.Parallel()
	const n = 1000
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Spread: time.Hour})
		got := &comings{r: r}
		r.MustHandle("x", got.handler)
		due := instant(r, "x", n, time.Minute)
		rig.Pass(10 * time.Minute)
		first := len(got.List())
		got.atPlace(first, time.Hour)

		// A wider one: what has been delivered stays so, the others get other places.
		r.MustSetTopic("x", TopicSettings{Spread: 3 * time.Hour})
		rig.Pass(time.Hour)
		for _, d := range got.List()[first:] {
			if late := d.at.Sub(place(d.ID, due, 3*time.Hour)); late < 0 || late > 2*time.Millisecond {
				t.Fatalf("%s came %v after its place in the wider window", d.ID, late)
			}
		}
		r.CheckConsistency()

		// A narrower one: those whose places have passed come at once.
		before := len(got.List())
		if before <= first || before > n/2 {
			t.Fatalf("%d, then %d delivered", first, before)
		}
		r.MustSetTopic("x", TopicSettings{Spread: 2 * time.Hour})
		rig.Pass(time.Second)
		if more := len(got.List()); more <= before+n/10 || more > n*2/3 {
			t.Fatalf("%d, then %d delivered", before, more)
		}

		// None: with the settings gone, all come at once.
		r.MustSetTopic("x", TopicSettings{})
		rig.Pass(time.Second)
		if total := len(got.List()); total != n {
			t.Errorf("%d of %d delivered", total, n)
		}
		r.CheckConsistency()
	})
}

// A task that is being changed while the spread changes follows too, if the change is
// undone.
func TestSpreadChangesBesideAnUndoneCancel(t *testing.T) {
	spreading(t, time.Hour, func(t *testing.T, r *rig.Rig, got *comings) {
		r.Must(Request{ID: "t1", Topic: "x"}) // its place is past the middle
		_, release := r.Faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Schedule(t.Context(), Request{ID: "before", Topic: "y", Delay: time.Hour}) }()
		rig.Pass(time.Millisecond)
		answer := make(chan error, 1)
		go func() { answer <- r.Cancel(t.Context(), "t1") }()
		rig.Pass(time.Second)
		r.MustSetTopic("x", TopicSettings{})
		rig.Want(t, "Cancel", <-answer, ErrUnavailable)
		rig.Pass(time.Millisecond)
		if n := len(got.List()); n != 1 {
			t.Errorf("%d delivered", n)
		}
		release()
		rig.Pass(time.Second)
		r.CheckConsistency()
	})
}

// Nothing comes before its place on the clock that holds, and what is late comes within a
// period of the sweep, however the clock is set in the middle of a window.
func TestClockStepsInsideTheWindow(t *testing.T) {
	t.Parallel()
	const n, window = 500, time.Hour
	spreading(t, window, func(t *testing.T, r *rig.Rig, got *comings) {
		due := instant(r, "x", n, 10*time.Minute)
		came := func() (share float64) {
			t.Helper()
			rig.Pass(1100 * time.Millisecond)
			r.CheckConsistency()
			for _, d := range got.List() {
				if d.at.Before(place(d.ID, due, window)) {
					t.Fatalf("%s came %v before its place", d.ID, place(d.ID, due, window).Sub(d.at))
				}
			}
			return float64(len(got.List())) / n
		}
		rig.Pass(20 * time.Minute)
		if share := came(); share < 0.1 || share > 0.25 {
			t.Fatalf("%v of the tasks came in a sixth of the window", share)
		}
		r.Clock.Step(20 * time.Minute) // to the middle
		half := came()
		if half < 0.4 || half > 0.6 {
			t.Fatalf("%v of the tasks came by the middle of the window", half)
		}
		r.Clock.Step(-35 * time.Minute) // before its beginning
		rig.Pass(30 * time.Minute)
		if share := came(); share != half {
			t.Fatalf("%v, then %v came, while the clock was back", half, share)
		}
		r.Clock.Step(90 * time.Minute)
		if share := came(); share != 1 {
			t.Fatalf("%v came by the end", share)
		}
	})
}
