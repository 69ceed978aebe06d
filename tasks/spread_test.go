package tasks_test

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
)

// place is when a task with that deadline has its place in a window.
func place(id string, due time.Time, window time.Duration) time.Time {
	return due.Add(time.Duration(engine.Offset([]byte(id), window)) * time.Millisecond)
}

// comings are deliveries with the time at which they came.
type comings struct {
	collection[coming]
	r *rig
}

type coming struct {
	Delivery
	at time.Time
}

func (a *comings) handler(_ context.Context, d *Delivery) error {
	a.add(coming{*d, a.r.clock.now()})
	return nil
}

// spreading runs a test on a rig with a topic "x" of that spread, and a handler of it.
func spreading(t *testing.T, window time.Duration, test func(t *testing.T, r *rig, got *comings)) {
	t.Helper()
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Spread: window})
		got := &comings{r: r}
		r.handle("x", got.handler)
		test(t, r, got)
	})
}

// instant schedules n tasks t0, t1, ... that are due at one instant.
func (r *rig) instant(topic string, n int, delay time.Duration) (due time.Time) {
	r.t.Helper()
	due = record.FromMillis(record.Millis(r.clock.now().Add(delay)))
	requests := make([]Request, n)
	for i := range requests {
		requests[i] = Request{ID: fmt.Sprint("t", i), Topic: topic, Due: due}
	}
	for part := range slices.Chunk(requests, MaxBatch) {
		results, err := r.ScheduleBatch(r.t.Context(), part)
		want(r.t, "ScheduleBatch", err, nil)
		for _, res := range results {
			want(r.t, res.ID, res.Err, nil)
		}
	}
	return due
}

// atPlace fails the test unless each task came once, at its place: not before, and at
// most a tick of the wheel after.
func (a *comings) atPlace(n int, window time.Duration) {
	a.r.t.Helper()
	all := a.list()
	seen := make(map[string]bool)
	for _, d := range all {
		if late := d.at.Sub(place(d.ID, d.Due, window)); late < 0 || late > 2*time.Millisecond {
			a.r.t.Fatalf("%s, due %v, came %v after its place", d.ID, d.Due, late)
		}
		if !d.Next.Equal(place(d.ID, d.Due, window)) {
			a.r.t.Fatalf("%s, due %v, shows next %v", d.ID, d.Due, d.Next)
		}
		seen[d.ID] = true
	}
	if len(all) != n || len(seen) != n {
		a.r.t.Fatalf("%d deliveries of %d tasks; want %d", len(all), len(seen), n)
	}
}

// The tasks of one instant fill their window evenly: of 100 parts of it each gets what a
// fair draw would give it, and so do all together (chi-square with 99 degrees of freedom).
func TestSpreadIsEven(t *testing.T) {
	const n, window, parts = 10_000, 10 * time.Second, 100
	spreading(t, window, func(t *testing.T, r *rig, got *comings) {
		due := r.instant("x", n, time.Minute)
		pass(time.Minute + window)
		got.atPlace(n, window)
		var count [parts]int
		for _, d := range got.list() {
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
		l := r.counts("x").Lateness
		if early := l.Counts[0] + l.Counts[1]; early != n {
			t.Errorf("lateness %+v: all are on time", l)
		}
		r.checkConsistency()
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
	const window = time.Hour
	spreading(t, window, func(t *testing.T, r *rig, got *comings) {
		due := r.instant("x", 100, time.Minute)
		pass(time.Minute + time.Millisecond)
		writes := r.faulty.Calls(ledgertest.Apply)
		early := 0
		for i := range 100 {
			id := fmt.Sprint("t", i)
			at := place(id, due, window)
			if !at.After(r.clock.now()) {
				early++
				continue
			}
			if task := r.get(id); task.State != Pending || !task.Due.Equal(due) || !task.Next.Equal(at) {
				t.Fatalf("in its window: %+v; its place is %v", task, at)
			}
			if spot, f := r.held(id); spot.At != due.UnixMilli() || f.Next != f.Due {
				t.Fatalf("the ledger has %+v, next %d", spot, f.Next)
			}
		}
		if n := r.faulty.Calls(ledgertest.Apply); n > writes+early {
			t.Errorf("%d writes for the window", n-writes)
		}
		last := time.Time{}
		for _, task := range r.pages(Query{Topic: "x"}) {
			if task.Next.Before(last) {
				t.Fatalf("%s is listed for %v after %v", task.ID, task.Next, last)
			}
			last = task.Next
		}
		f, err := r.Forecast(t.Context(), Outlook{Topic: "x", Window: window, Step: window / 4})
		if want(t, "Forecast", err, nil); slices.Min(f.Counts) < 10 || f.Ready != 0 {
			t.Errorf("the forecast has %v, %d ready", f.Counts, f.Ready)
		}
		r.checkConsistency()

		late := slices.MaxFunc(r.pages(Query{Topic: "x", Limit: 1000}), func(a, b Task) int { return a.Next.Compare(b.Next) })
		want(t, "Cancel", r.Cancel(t.Context(), late.ID), nil)
		pass(window / 2)
		if n := len(got.list()); n < 30 || n > 70 {
			t.Errorf("%d of 100 came in half of the window", n)
		}
		p, err := r.Purge(t.Context(), "x")
		if want(t, "Purge", err, nil); p.Cancelled+len(got.list()) != 99 {
			t.Errorf("%d purged, %d delivered", p.Cancelled, len(got.list()))
		}
		pass(window)
		r.checkConsistency()
	})
}

// A restart in the middle of a window changes no place: what is still to come comes at its
// place, the rest at once.
func TestRestartInsideTheWindow(t *testing.T) {
	for name, again := range map[string]func(r *rig, down time.Duration){
		"Close": func(r *rig, down time.Duration) { r.shut(); pass(down); r.open() },
		"Crash": func(r *rig, down time.Duration) { r.cut(); pass(down); r.open() },
	} {
		t.Run(name, func(t *testing.T) {
			const n, window = 300, 30 * time.Second
			spreading(t, window, func(t *testing.T, r *rig, got *comings) {
				due := r.instant("x", n, time.Minute)
				pass(70 * time.Second)
				got.atPlace(len(got.list()), window)
				again(r, 10*time.Second)
				opened := r.clock.now()
				r.handle("x", got.handler)
				pass(time.Minute)
				overdue := 0
				for _, d := range got.list() {
					at := place(d.ID, due, window)
					if at.Before(opened) && at.After(opened.Add(-10*time.Second)) {
						overdue++
						at = opened
					}
					if late := d.at.Sub(at); late < 0 || late > 2*time.Millisecond {
						t.Fatalf("%s came %v after %v", d.ID, late, at)
					}
				}
				if total := len(got.list()); total != n || overdue < n/6 {
					t.Errorf("%d delivered, %d of them overdue", total, overdue)
				}
				r.checkConsistency()
			})
		})
	}
}

// The window is for first attempts: one that was moved after an attempt comes at its deadline.
func TestSpreadOfALaterAttempt(t *testing.T) {
	t.Parallel()
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Spread: time.Hour})
		for i := range 20 {
			id := fmt.Sprint("t", i)
			r.must(Request{ID: id, Topic: "x"})
			_, err := r.Fire(t.Context(), id)
			want(t, "Fire", err, nil)
			r.settle(Verdict{Verb: Release, Delay: ptr(24 * time.Hour)}, r.pull("x", id)[0])
			_, err = r.Reschedule(t.Context(), id, Move{Delay: ptr(time.Minute)})
			want(t, "Reschedule", err, nil)
			pass(time.Minute)
			d := r.pull("x", id)[0]
			if d.Attempt != 2 {
				t.Errorf("%s: attempt %d", id, d.Attempt)
			}
			r.settle(Verdict{Verb: Ack}, d)
		}
	})
}

// What waits in a window follows the settings within a second, whatever its place was.
func TestSpreadChanges(t *testing.T) {
	const n = 1000
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		r.topic("x", TopicSettings{Spread: time.Hour})
		got := &comings{r: r}
		r.handle("x", got.handler)
		due := r.instant("x", n, time.Minute)
		pass(10 * time.Minute)
		first := len(got.list())
		got.atPlace(first, time.Hour)

		// A wider one: what has been delivered stays so, the others get other places.
		r.topic("x", TopicSettings{Spread: 3 * time.Hour})
		pass(time.Hour)
		for _, d := range got.list()[first:] {
			if late := d.at.Sub(place(d.ID, due, 3*time.Hour)); late < 0 || late > 2*time.Millisecond {
				t.Fatalf("%s came %v after its place in the wider window", d.ID, late)
			}
		}
		r.checkConsistency()

		// A narrower one: those whose places have passed come at once.
		before := len(got.list())
		if before <= first || before > n/2 {
			t.Fatalf("%d, then %d delivered", first, before)
		}
		r.topic("x", TopicSettings{Spread: 2 * time.Hour})
		pass(time.Second)
		if more := len(got.list()); more <= before+n/10 || more > n*2/3 {
			t.Fatalf("%d, then %d delivered", before, more)
		}

		// None: with the settings gone, all come at once.
		r.topic("x", TopicSettings{})
		pass(time.Second)
		if total := len(got.list()); total != n {
			t.Errorf("%d of %d delivered", total, n)
		}
		r.checkConsistency()
	})
}

// A task that is being changed while the spread changes follows too, if the change is
// undone.
func TestSpreadChangesBesideAnUndoneCancel(t *testing.T) {
	spreading(t, time.Hour, func(t *testing.T, r *rig, got *comings) {
		r.must(Request{ID: "t1", Topic: "x"}) // its place is past the middle
		_, release := r.faulty.Hold(ledgertest.Apply)
		go func() { _, _ = r.Schedule(t.Context(), Request{ID: "before", Topic: "y", Delay: time.Hour}) }()
		pass(time.Millisecond)
		answer := make(chan error, 1)
		go func() { answer <- r.Cancel(t.Context(), "t1") }()
		pass(time.Second)
		r.topic("x", TopicSettings{})
		want(t, "Cancel", <-answer, ErrUnavailable)
		pass(time.Millisecond)
		if n := len(got.list()); n != 1 {
			t.Errorf("%d delivered", n)
		}
		release()
		pass(time.Second)
		r.checkConsistency()
	})
}

// Nothing comes before its place on the clock that holds, and what is late comes within a
// period of the sweep, however the clock is set in the middle of a window.
func TestClockStepsInsideTheWindow(t *testing.T) {
	const n, window = 500, time.Hour
	spreading(t, window, func(t *testing.T, r *rig, got *comings) {
		due := r.instant("x", n, 10*time.Minute)
		came := func() (share float64) {
			t.Helper()
			pass(1100 * time.Millisecond)
			r.checkConsistency()
			for _, d := range got.list() {
				if d.at.Before(place(d.ID, due, window)) {
					t.Fatalf("%s came %v before its place", d.ID, place(d.ID, due, window).Sub(d.at))
				}
			}
			return float64(len(got.list())) / n
		}
		pass(20 * time.Minute)
		if share := came(); share < 0.1 || share > 0.25 {
			t.Fatalf("%v of the tasks came in a sixth of the window", share)
		}
		r.clock.step(20 * time.Minute) // to the middle
		half := came()
		if half < 0.4 || half > 0.6 {
			t.Fatalf("%v of the tasks came by the middle of the window", half)
		}
		r.clock.step(-35 * time.Minute) // before its beginning
		pass(30 * time.Minute)
		if share := came(); share != half {
			t.Fatalf("%v, then %v came, while the clock was back", half, share)
		}
		r.clock.step(90 * time.Minute)
		if share := came(); share != 1 {
			t.Fatalf("%v came by the end", share)
		}
	})
}
