package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine/events"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// subscribe makes a subscription that ends with the test.
func subscribe(r *rig.Rig, f EventFilter) *Subscription {
	r.T.Helper()
	u, err := r.Subscribe(f)
	rig.Want(r.T, "Subscribe", err, nil)
	r.T.Cleanup(u.Close)
	return u
}

// told is what a subscription has heard so far, as "kind id attempt"; a gap is "lost n".
func told(r *rig.Rig, u *Subscription) (all []string) {
	r.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond) // fake
	defer cancel()
	for {
		events, lost, err := u.Next(ctx)
		if err != nil {
			rig.Want(r.T, "Next", err, context.DeadlineExceeded)
			return all
		}
		for _, e := range events {
			all = append(all, fmt.Sprint(e.Kind, " ", e.ID, " ", e.Attempt))
		}
		if lost > 0 {
			all = append(all, fmt.Sprint("lost ", lost))
		}
	}
}

func wantTold(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// The life of a task is told in order, with all that an event may say.
func TestEventsOfALife(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 2, MinBackoff: time.Second}})
		u := subscribe(r, EventFilter{})
		r.Must(Request{ID: "a", Topic: "x", Delay: time.Second})
		rig.Pass(1500 * time.Millisecond)
		began := r.Clock.Now()
		d := r.Pull("x", "a")[0]
		if a := r.SettleOne(Verdict{Verb: Release, Reason: "no stock", Delay: rig.Ptr(time.Second)}, d); a.Err != nil {
			t.Fatal(a.Err)
		}
		rig.Pass(2 * time.Second)
		r.Ack(r.Pull("x", "a")[0])
		events, lost, err := u.Next(t.Context())
		rig.Want(t, "Next", err, nil)
		if lost != 0 || len(events) != 5 {
			t.Fatalf("told %+v and %d lost", events, lost)
		}
		for i, want := range []Event{
			{Kind: EventScheduled}, {Kind: EventStarted, Attempt: 1, Lateness: 500 * time.Millisecond, At: began},
			{Kind: EventRetried, Attempt: 1, Err: "no stock", At: began}, {Kind: EventStarted, Attempt: 2}, {Kind: EventDelivered, Attempt: 2},
		} {
			got := events[i]
			if want.ID, want.Topic = "a", "x"; want.At.IsZero() {
				want.At = got.At
			}
			if got != want || got.At.IsZero() {
				t.Errorf("%d: told %+v, want %+v", i, got, want)
			}
		}
		d = r.One("b", "x")
		rig.Want(t, "Release", r.SettleOne(Verdict{Verb: Release, Delay: rig.Ptr(time.Duration(0))}, d).Err, nil)
		d = r.Pull("x", "b")[0]
		rig.Want(t, "Release", r.SettleOne(Verdict{Verb: Release, Reason: "again"}, d).Err, nil)
		r.Must(Request{ID: "c", Topic: "x", Delay: time.Hour})
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "c"), nil)
		r.Must(Request{ID: "d", Topic: "x", MaxLateness: time.Second})
		rig.Pass(2 * time.Second)
		r.Pull("x")
		_, err = r.Admin().DeleteDead(t.Context(), "x", []string{"b"})
		rig.Want(t, "DeleteDead", err, nil)
		wantTold(t, told(r, u), "scheduled b 0", "started b 1", "retried b 1", "started b 2", "dead b 2",
			"scheduled c 0", "cancelled c 0", "scheduled d 0", "skipped d 0", "cancelled b 0")
	})
}

func TestEventFilters(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		all := subscribe(r, EventFilter{})
		x := subscribe(r, EventFilter{Topics: []string{"x", "x"}})
		xy := subscribe(r, EventFilter{Topics: []string{"y", "unknown", "x"}, Kinds: []EventKind{EventDelivered, EventCancelled}})
		for _, topic := range []string{"x", "y", "z"} {
			r.Ack(r.One(topic+"1", topic))
		}
		wantTold(t, told(r, all), "scheduled x1 0", "started x1 1", "delivered x1 1", "scheduled y1 0", "started y1 1", "delivered y1 1",
			"scheduled z1 0", "started z1 1", "delivered z1 1")
		wantTold(t, told(r, x), "scheduled x1 0", "started x1 1", "delivered x1 1")
		wantTold(t, told(r, xy), "delivered x1 1", "delivered y1 1")
		x.Close()
		x.Close()
		_, _, err := x.Next(t.Context())
		rig.Want(t, "Next", err, ErrClosed)
		r.Must(Request{ID: "x2", Topic: "x", Delay: time.Hour})
		wantTold(t, told(r, all), "scheduled x2 0")
		if n := r.Stats().Subscriptions; n != 2 {
			t.Errorf("%d subscriptions are open", n)
		}
		all.Close()
		xy.Close()
		if c := r.Engine().Feed.Counts(); c != (events.Counts{}) {
			t.Errorf("left behind: %+v", c)
		}
	})
}

func TestBadEventFilters(t *testing.T) {
	r := rig.New(t, Config{})
	for _, c := range []struct {
		filter EventFilter
		fields string
	}{
		{EventFilter{Topics: []string{"x", "not a name"}}, "topic"},
		{EventFilter{Topics: []string{""}}, "topic"},
		{EventFilter{Topics: slices.Repeat([]string{"x"}, MaxEventTopics+1)}, "topic"},
		{EventFilter{Kinds: []EventKind{EventDied, "died"}}, "kind"},
		{EventFilter{Buffer: -1}, "buffer"},
		{EventFilter{Topics: []string{"?"}, Kinds: []EventKind{""}, Buffer: MaxEventBuffer + 1}, "topic kind buffer"},
	} {
		_, err := r.Subscribe(c.filter)
		e := (*InvalidError)(nil)
		if rig.Want(t, "Subscribe", err, ErrInvalid); !errors.As(err, &e) {
			t.Fatal(err)
		}
		var fields []string
		for _, f := range e.Fields {
			fields = append(fields, f.Field)
		}
		if got := strings.Join(fields, " "); got != c.fields {
			t.Errorf("%+v: %s is wrong, want %s", c.filter, got, c.fields)
		}
	}
	if n := r.Stats().Subscriptions; n != 0 {
		t.Errorf("%d subscriptions are open", n)
	}
}

// Who reads slowly is told where the gap is and how large, and nothing else is missing.
func TestSlowReaderIsToldTheGap(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		slow := subscribe(r, EventFilter{Buffer: 3, Kinds: []EventKind{EventScheduled}})
		other := subscribe(r, EventFilter{Topics: []string{"y"}, Buffer: 1})
		schedule := func(from, to int) {
			for i := from; i < to; i++ {
				r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
			}
		}
		schedule(0, 3)
		wantTold(t, told(r, slow), "scheduled t0 0", "scheduled t1 0", "scheduled t2 0")
		schedule(3, 10)
		r.Must(Request{ID: "y", Topic: "y", Delay: time.Hour})
		if n := r.Stats().EventsLost; n != 5 {
			t.Errorf("%d lost", n)
		}
		wantTold(t, told(r, slow), "scheduled t3 0", "scheduled t4 0", "scheduled t5 0", "lost 5")
		schedule(10, 12)
		wantTold(t, told(r, slow), "scheduled t10 0", "scheduled t11 0")
		wantTold(t, told(r, other), "scheduled y 0")
	})
}

// Long ids and errors fill a buffer as many events do.
func TestEventsAreBoundedInBytes(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		u := subscribe(r, EventFilter{Buffer: 100, Kinds: []EventKind{EventRetried}})
		r.MustHandle("x", func(context.Context, *Delivery) error { return errors.New(strings.Repeat("long ", task.MaxReason)) })
		for i := range 60 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		rig.Pass(time.Millisecond)
		events, lost, err := u.Next(t.Context())
		rig.Want(t, "Next", err, nil)
		if n := len(events); n < 20 || n > 26 || n+int(lost) != 60 {
			t.Errorf("told of %d, and %d lost", n, lost)
		}
		for _, e := range events {
			if len(e.Err) != task.MaxReason {
				t.Errorf("an error of %d bytes", len(e.Err))
			}
		}
	})
}

// What happens while the scheduler closes is told, and then that it has closed.
func TestSubscriptionsEndWithTheScheduler(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		u := subscribe(r, EventFilter{Kinds: []EventKind{EventDelivered}})
		// The time is fake.
		r.MustHandle("x", func(context.Context, *Delivery) error { time.Sleep(time.Second); return nil })
		r.Must(Request{ID: "a", Topic: "x"})
		rig.Pass(time.Millisecond)
		rig.Want(t, "Close", r.Close(context.Background()), nil)
		events, _, err := u.Next(t.Context())
		if rig.Want(t, "Next", err, nil); len(events) != 1 || events[0].ID != "a" {
			t.Errorf("told %+v", events)
		}
		_, _, err = u.Next(t.Context())
		rig.Want(t, "Next", err, ErrClosed)
		_, err = r.Subscribe(EventFilter{})
		rig.Want(t, "Subscribe", err, ErrClosed)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err = u.Next(gone)
		rig.Want(t, "Next", err, context.Canceled)
	})
}

// A Next that waits ends with its subscription, and with its context.
func TestNextWaits(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		u := subscribe(r, EventFilter{})
		errs := make(chan error, 1)
		next := func() { _, _, err := u.Next(t.Context()); errs <- err }
		go next()
		rig.Pass(time.Minute)
		r.Must(Request{Topic: "x", Delay: time.Hour})
		rig.Want(t, "Next", <-errs, nil)
		go next()
		rig.Pass(time.Minute)
		u.Close()
		rig.Want(t, "Next", <-errs, ErrClosed)
	})
}

// Readers come and go while tasks live and die on several goroutines. Each hears of
// every task in order, and of as many events as there were, those that it lost included.
func TestReadersBesideDeliveries(t *testing.T) {
	const number = 2000
	r := rig.New(t, Config{})
	r.MustSetTopic("x", TopicSettings{Retry: Retry{MaxAttempts: 3, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond}})
	quick, slow := subscribe(r, EventFilter{Buffer: MaxEventBuffer}), subscribe(r, EventFilter{Buffer: 7})
	var readers, writers sync.WaitGroup
	heard := func(u *Subscription) (tasks map[string][]EventKind, told, lost int64) {
		tasks = make(map[string][]EventKind)
		for {
			events, gap, err := u.Next(context.Background())
			if err != nil {
				rig.Want(t, "Next", err, ErrClosed)
				return tasks, told, lost
			}
			for _, e := range events {
				tasks[e.ID] = append(tasks[e.ID], e.Kind)
			}
			told, lost = told+int64(len(events)), lost+gap
		}
	}
	var all map[string][]EventKind
	var quickly, quicklyLost, slowly, slowlyLost int64
	readers.Go(func() { all, quickly, quicklyLost = heard(quick) })
	readers.Go(func() { _, slowly, slowlyLost = heard(slow) })
	r.MustHandle("x", func(_ context.Context, d *Delivery) error {
		if d.Attempt == 1 {
			return errors.New("not yet")
		}
		return nil
	})
	passing, stop := context.WithCancel(context.Background())
	defer stop()
	var passersBy sync.WaitGroup
	passersBy.Go(func() {
		for passing.Err() == nil {
			u := subscribe(r, EventFilter{Buffer: 1 + rand.IntN(100)})
			_, _, _ = u.Next(passing)
			u.Close()
		}
	})
	for w := range 4 {
		writers.Go(func() {
			for i := range number / 4 {
				r.Must(Request{ID: fmt.Sprintf("t%d-%d", w, i), Topic: "x"})
			}
		})
	}
	writers.Wait()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for r.Stats().Total.Delivered < number {
		<-tick.C
	}
	r.Must(Request{ID: "last", Topic: "y", Delay: time.Hour})
	stop()
	passersBy.Wait()
	rig.Want(t, "Close", r.Close(context.Background()), nil)
	readers.Wait()
	if quicklyLost != 0 || len(all) != number+1 || quickly != 5*number+1 {
		t.Errorf("told of %d tasks by %d events, and %d lost", len(all), quickly, quicklyLost)
	}
	if slowly+slowlyLost != quickly {
		t.Errorf("%d told and %d lost of %d", slowly, slowlyLost, quickly)
	}
	for id, kinds := range all {
		if id != "last" && !slices.Equal(kinds, []EventKind{EventScheduled, EventStarted, EventRetried, EventStarted, EventDelivered}) {
			t.Fatalf("%s: %v", id, kinds)
		}
	}
}
