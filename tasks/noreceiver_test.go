package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
)

// A desk delivers while it is open. It counts its calls.
type desk struct {
	open  atomic.Bool
	calls atomic.Int64
	took  collection[string] // ids, with the attempt
}

func (d *desk) Deliver(_ context.Context, t *Delivery) error {
	d.calls.Add(1)
	if !d.open.Load() {
		return fmt.Errorf("the desk is closed: %w", ErrNoReceiver)
	}
	d.took.add(fmt.Sprint(t.ID, " ", t.Attempt))
	return nil
}

// wantTook wants so many deliveries, all of them the first attempt.
func (d *desk) wantTook(t *testing.T, tasks int) {
	t.Helper()
	got := d.took.list()
	if len(got) != tasks {
		t.Fatalf("%d tasks were delivered, not %d", len(got), tasks)
	}
	for _, text := range got {
		if !strings.HasSuffix(text, " 1") {
			t.Fatalf("an attempt without a receiver has counted: %s", text)
		}
	}
}

// A batchDesk takes batches.
type batchDesk struct{ *desk }

func (d batchDesk) DeliverBatch(ctx context.Context, ds []*Delivery) []error {
	errs := make([]error, len(ds))
	for i := range ds {
		errs[i] = d.Deliver(ctx, ds[i])
	}
	return errs
}

// crowd schedules tasks that are due now, in ten groups.
func (r *rig) crowd(topic string, count int) {
	r.t.Helper()
	for i := range count {
		r.must(Request{ID: fmt.Sprint(topic, "-", i), Topic: topic, Group: fmt.Sprint("g", i%10)})
	}
}

// wantWaiting wants so many tasks to wait because there is no receiver.
func (r *rig) wantWaiting(topic string, tasks int64) {
	r.t.Helper()
	x, err := r.Topic(topic)
	want(r.t, "Topic", err, nil)
	c := x.Counts
	if c.Ready != tasks || c.Delivering != 0 || c.Pending != 0 || c.Failed != 0 || c.Retried != 0 || x.LastError != "" {
		r.t.Errorf("%+v, last error %q", c, x.LastError)
	}
	if x.Undeliverable != "the desk is closed: no receiver at the moment" {
		r.t.Errorf("undeliverable: %q", x.Undeliverable)
	}
}

// Tasks without a receiver wait, at the cost of an attempt a second. They are delivered at once
// when one has come, or within a second if that is not told. Their attempts have not counted.
func TestNoReceiver(t *testing.T) {
	t.Parallel()
	const tasks = 2000
	for _, settings := range []TopicSettings{
		{}, {CountCrashes: true}, {ConcurrencyPerGroup: 3}, {Spread: time.Second}, {Concurrency: 3}, {Rate: Rate{PerSecond: 10_000, Burst: 5000}},
	} {
		for _, batches := range []bool{false, true} {
			for _, told := range []bool{false, true} {
				t.Run(fmt.Sprintf("%+v batches=%v told=%v", settings, batches, told), func(t *testing.T) {
					bubble(t, Config{SweepBacklog: 100}, func(t *testing.T, r *rig) {
						d := &desk{}
						var by Deliverer = d
						if batches {
							by = batchDesk{d}
						}
						r.topic("x", settings)
						want(t, "Deliver", r.Deliver("x", by), nil)
						r.crowd("x", tasks)
						pass(settings.Spread)
						// Until the first attempt has ended, they may be a backlog.
						first, raised := d.calls.Load(), r.Stats().Backlogs
						pass(10*time.Second + time.Millisecond)
						if n := d.calls.Load() - first; first > 64 || n < 9 || n > 11 {
							t.Errorf("it was called %d times at once, and then %d times in 10 s", first, n)
						}
						r.wantWaiting("x", tasks)
						if st := r.Stats(); st.Backlogs != raised || st.Backlog != 0 {
							t.Errorf("tasks without a receiver are a backlog: %+v", st)
						}
						pass(300 * time.Millisecond)
						d.open.Store(true)
						if told {
							r.ReceiverCame("other", "x")
							pass(0)
						} else {
							pass(time.Second)
						}
						d.wantTook(t, tasks)
						if x, err := r.Topic("x"); err != nil || x.Undeliverable != "" || x.Counts.Ready != 0 {
							t.Errorf("%+v, %v", x, err)
						}
						for i := range 100 {
							r.must(Request{ID: fmt.Sprint("later-", i), Topic: "x"})
						}
						pass(settings.Spread)
						d.wantTook(t, tasks+100)
						r.checkConsistency()
					})
				})
			}
		}
	}
}

// A task that comes after the rest of a second is tried at once, and no second passes in which a
// topic without tasks is looked after.
func TestNoReceiverForOneTask(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		d := &desk{}
		want(t, "Deliver", r.Deliver("x", d), nil)
		r.must(Request{ID: "a", Topic: "x"})
		pass(0)
		want(t, "Cancel", r.Cancel(t.Context(), "a"), nil)
		if x, err := r.Topic("x"); err != nil || x.Undeliverable != "" {
			t.Errorf("no task waits, and it is undeliverable: %+v, %v", x, err)
		}
		pass(time.Hour)
		if n := d.calls.Load(); n != 1 {
			t.Errorf("it was called %d times", n)
		}
		d.open.Store(true)
		r.must(Request{ID: "b", Topic: "x"})
		pass(0)
		d.wantTook(t, 1)
		r.must(Request{ID: "c", Topic: "x"})
		pass(0)
		d.wantTook(t, 2)
	})
}

// A receiver that comes while a deliverer is about to find none is not missed.
func TestReceiverComesMeanwhile(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		var here atomic.Bool
		var took collection[string]
		want(t, "Handle", r.Handle("x", func(_ context.Context, d *Delivery) error {
			found := here.Load()
			time.Sleep(10 * time.Millisecond)
			if !found {
				return ErrNoReceiver
			}
			took.add(d.ID)
			return nil
		}), nil)
		r.must(Request{ID: "a", Topic: "x"})
		pass(5 * time.Millisecond)
		here.Store(true)
		r.Reconsider()
		pass(15 * time.Millisecond)
		if got := took.list(); len(got) != 1 {
			t.Errorf("delivered: %q", got)
		}
	})
}

// Where a part of a batch has a receiver, the topic goes on.
func TestNoReceiverForSome(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, r *rig) {
		c := &crate{fate: func(ds []*Delivery) []error {
			errs := make([]error, len(ds))
			for i, d := range ds {
				switch d.Payload[0] {
				case 'n':
					errs[i] = ErrNoReceiver
				case 'f':
					errs[i] = errors.New("failed")
				}
			}
			return errs
		}}
		want(t, "Deliver", r.Deliver("x", c), nil)
		r.topic("x", TopicSettings{Concurrency: 4, Retry: Retry{MaxAttempts: 1}})
		for i := range 40 {
			r.must(Request{ID: fmt.Sprint("t", i), Topic: "x", Payload: []byte{"nay"[i%2]}})
		}
		r.must(Request{ID: "failing", Topic: "x", Payload: []byte("f")})
		pass(time.Minute)
		n := r.counts("x")
		if n.Delivered != 20 || n.Ready+n.Delivering != 20 || n.Failed != 1 {
			t.Errorf("%+v", n)
		}
		c.taken()
		pass(10 * time.Second)
		if batches, most := c.taken(); len(batches) > 6 || most > 1 { // each takes a second
			t.Errorf("it was called with %q, %d tasks at once", batches, most)
		}
	})
}

// Other settings of a topic, and another deliverer, end its rest. What the deliverer before says
// then counts no more.
func TestNoReceiverOfTheSettingsBefore(t *testing.T) {
	p := &postal{}
	bubble(t, Config{Ways: []Way{p}}, func(t *testing.T, r *rig) {
		d := &desk{}
		want(t, "Deliver", r.Deliver("x", d), nil)
		r.must(Request{ID: "a", Topic: "x"})
		pass(0)
		r.wantWaiting("x", 1)
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", true), nil)
		d.open.Store(true)
		pass(5 * time.Second)
		d.wantTook(t, 0)
		want(t, "PauseTopic", r.PauseTopic(t.Context(), "x", false), nil)
		pass(0)
		d.wantTook(t, 1)
	})
}

// A restart ends an attempt that has found no receiver as any other.
func TestNoReceiverAtTheEnd(t *testing.T) {
	for _, count := range []bool{false, true} {
		bubble(t, Config{}, func(t *testing.T, r *rig) {
			d := &desk{}
			r.topic("x", TopicSettings{CountCrashes: count, Retry: Retry{MaxAttempts: 1}})
			want(t, "Deliver", r.Deliver("x", d), nil)
			r.crowd("x", 100)
			for range 5 {
				pass(1500 * time.Millisecond)
				r.wantWaiting("x", 100)
				r.restart()
				want(t, "Deliver", r.Deliver("x", d), nil)
			}
			pass(0)
			d.open.Store(true)
			r.ReceiverCame()
			pass(0)
			d.wantTook(t, 100)
		})
	}
}

// A node without a receiver that helps another one gives its tasks back, and takes no more than one
// at a time until it has a receiver.
func TestHelperWithoutReceiver(t *testing.T) {
	t.Parallel()
	poolBubble(t, func(t *testing.T, f *fleet) {
		const tasks = 30_000
		a, b := f.nodes[0], f.nodes[1]
		var c deliveries
		var here atomic.Bool
		var refused atomic.Int64
		want(t, "Handle", a.Handle("x", c.by("a", time.Second, nil)), nil)
		want(t, "Handle", b.Handle("x", func(ctx context.Context, d *Delivery) error {
			if !here.Load() {
				refused.Add(1)
				return ErrNoReceiver
			}
			return c.by("b", time.Second, nil)(ctx, d)
		}), nil)
		a.herd("x", tasks)
		pass(5 * time.Second)
		first := refused.Load()
		if first == 0 || first > 600 || c.counts("b") != 0 {
			t.Errorf("%d deliveries were refused", first)
		}
		pass(5 * time.Second)
		if n := refused.Load() - first; n == 0 || n > 8 {
			t.Errorf("%d deliveries were refused in 5 s", n)
		}
		here.Store(true)
		pass(5 * time.Second)
		if c.counts("b") == 0 {
			t.Error("the node does not help with a receiver")
		}
		for a.Stats().Total.Delivered < tasks {
			pass(time.Second)
		}
		if len(c.of) != tasks || c.counts("a")+c.counts("b") != tasks {
			t.Errorf("%d tasks were delivered %d times", len(c.of), c.counts("a")+c.counts("b"))
		}
		if n := a.Stats().Total; n.Failed != 0 || n.LeaseExpired != 0 {
			t.Errorf("%+v", n)
		}
	}, Config{SweepBacklog: 100}, Config{SweepHelper: []string{"backlog"}})
}
