package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A desk delivers while it is open. It counts its calls.
type desk struct {
	open  atomic.Bool
	calls atomic.Int64
	took  rig.Collection[string] // ids, with the attempt
}

func (d *desk) Deliver(_ context.Context, t *Delivery) error {
	d.calls.Add(1)
	if !d.open.Load() {
		return fmt.Errorf("the desk is closed: %w", ErrNoReceiver)
	}
	d.took.Add(fmt.Sprint(t.ID, " ", t.Attempt))
	return nil
}

// wantTook wants so many deliveries, all of them the first attempt.
func (d *desk) wantTook(t *testing.T, tasks int) {
	t.Helper()
	got := d.took.List()
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
func crowd(r *rig.Rig, topic string, count int) {
	r.T.Helper()
	for i := range count {
		r.Must(Request{ID: fmt.Sprint(topic, "-", i), Topic: topic, Group: fmt.Sprint("g", i%10)})
	}
}

// wantWaiting wants so many tasks to wait because there is no receiver.
func wantWaiting(r *rig.Rig, topic string, tasks int64) {
	r.T.Helper()
	x, err := r.Topic(topic)
	rig.Want(r.T, "Topic", err, nil)
	c := x.Counts
	if c.Ready != tasks || c.Delivering != 0 || c.Pending != 0 || c.Failed != 0 || c.Retried != 0 || x.LastError != "" {
		r.T.Errorf("%+v, last error %q", c, x.LastError)
	}
	if x.Undeliverable != "the desk is closed: no receiver at the moment" {
		r.T.Errorf("undeliverable: %q", x.Undeliverable)
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
					rig.Bubble(t, Config{SweepBacklog: 100}, func(t *testing.T, r *rig.Rig) {
						d := &desk{}
						var by Deliverer = d
						if batches {
							by = batchDesk{d}
						}
						r.MustSetTopic("x", settings)
						rig.Want(t, "Deliver", r.Deliver("x", by), nil)
						crowd(r, "x", tasks)
						rig.Pass(settings.Spread)
						// Until the first attempt has ended, they may be a backlog.
						first, raised := d.calls.Load(), r.Stats().Backlogs
						rig.Pass(10*time.Second + time.Millisecond)
						if n := d.calls.Load() - first; first > 64 || n < 9 || n > 11 {
							t.Errorf("it was called %d times at once, and then %d times in 10 s", first, n)
						}
						wantWaiting(r, "x", tasks)
						if st := r.Stats(); st.Backlogs != raised || st.Backlog != 0 {
							t.Errorf("tasks without a receiver are a backlog: %+v", st)
						}
						rig.Pass(300 * time.Millisecond)
						d.open.Store(true)
						if told {
							r.Admin().ReceiverCame("other", "x")
							rig.Pass(0)
						} else {
							rig.Pass(time.Second)
						}
						d.wantTook(t, tasks)
						if x, err := r.Topic("x"); err != nil || x.Undeliverable != "" || x.Counts.Ready != 0 {
							t.Errorf("%+v, %v", x, err)
						}
						for i := range 100 {
							r.Must(Request{ID: fmt.Sprint("later-", i), Topic: "x"})
						}
						rig.Pass(settings.Spread)
						d.wantTook(t, tasks+100)
						r.CheckConsistency()
					})
				})
			}
		}
	}
}

// A task that comes after the rest of a second is tried at once, and no second passes in which a
// topic without tasks is looked after.
func TestNoReceiverForOneTask(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		d := &desk{}
		rig.Want(t, "Deliver", r.Deliver("x", d), nil)
		r.Must(Request{ID: "a", Topic: "x"})
		rig.Pass(0)
		rig.Want(t, "Cancel", r.Cancel(t.Context(), "a"), nil)
		if x, err := r.Topic("x"); err != nil || x.Undeliverable != "" {
			t.Errorf("no task waits, and it is undeliverable: %+v, %v", x, err)
		}
		rig.Pass(time.Hour)
		if n := d.calls.Load(); n != 1 {
			t.Errorf("it was called %d times", n)
		}
		d.open.Store(true)
		r.Must(Request{ID: "b", Topic: "x"})
		rig.Pass(0)
		d.wantTook(t, 1)
		r.Must(Request{ID: "c", Topic: "x"})
		rig.Pass(0)
		d.wantTook(t, 2)
	})
}

// A receiver that comes while a deliverer is about to find none is not missed.
func TestReceiverComesMeanwhile(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		var here atomic.Bool
		var took rig.Collection[string]
		rig.Want(t, "Handle", r.Handle("x", func(_ context.Context, d *Delivery) error {
			found := here.Load()
			time.Sleep(10 * time.Millisecond)
			if !found {
				return ErrNoReceiver
			}
			took.Add(d.ID)
			return nil
		}), nil)
		r.Must(Request{ID: "a", Topic: "x"})
		rig.Pass(5 * time.Millisecond)
		here.Store(true)
		r.Admin().Reconsider()
		rig.Pass(15 * time.Millisecond)
		if got := took.List(); len(got) != 1 {
			t.Errorf("delivered: %q", got)
		}
	})
}

// Where a part of a batch has a receiver, the topic goes on.
func TestNoReceiverForSome(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
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
		rig.Want(t, "Deliver", r.Deliver("x", c), nil)
		r.MustSetTopic("x", TopicSettings{Concurrency: 4, Retry: Retry{MaxAttempts: 1}})
		for i := range 40 {
			r.Must(Request{ID: fmt.Sprint("t", i), Topic: "x", Payload: []byte{"nay"[i%2]}})
		}
		r.Must(Request{ID: "failing", Topic: "x", Payload: []byte("f")})
		rig.Pass(time.Minute)
		n := r.Counts("x")
		if n.Delivered != 20 || n.Ready+n.Delivering != 20 || n.Failed != 1 {
			t.Errorf("%+v", n)
		}
		c.taken()
		rig.Pass(10 * time.Second)
		if batches, most := c.taken(); len(batches) > 6 || most > 1 { // each takes a second
			t.Errorf("it was called with %q, %d tasks at once", batches, most)
		}
	})
}

// Other settings of a topic, and another deliverer, end its rest. What the deliverer before says
// then counts no more.
func TestNoReceiverOfTheSettingsBefore(t *testing.T) {
	p := &rig.Postal{}
	rig.Bubble(t, Config{Ways: []Way{p}}, func(t *testing.T, r *rig.Rig) {
		d := &desk{}
		rig.Want(t, "Deliver", r.Deliver("x", d), nil)
		r.Must(Request{ID: "a", Topic: "x"})
		rig.Pass(0)
		wantWaiting(r, "x", 1)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", true), nil)
		d.open.Store(true)
		rig.Pass(5 * time.Second)
		d.wantTook(t, 0)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", false), nil)
		rig.Pass(0)
		d.wantTook(t, 1)
	})
}

// A restart ends an attempt that has found no receiver as any other.
func TestNoReceiverAtTheEnd(t *testing.T) {
	for _, count := range []bool{false, true} {
		rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
			d := &desk{}
			r.MustSetTopic("x", TopicSettings{CountCrashes: count, Retry: Retry{MaxAttempts: 1}})
			rig.Want(t, "Deliver", r.Deliver("x", d), nil)
			crowd(r, "x", 100)
			for range 5 {
				rig.Pass(1500 * time.Millisecond)
				wantWaiting(r, "x", 100)
				r.Restart()
				rig.Want(t, "Deliver", r.Deliver("x", d), nil)
			}
			rig.Pass(0)
			d.open.Store(true)
			r.Admin().ReceiverCame()
			rig.Pass(0)
			d.wantTook(t, 100)
		})
	}
}

// Tasks that no receiver wants hold up no other ones. They wait aside, a few are tried each second,
// and all once a receiver has come.
func TestUnwanted(t *testing.T) {
	for _, settings := range []TopicSettings{{}, {CountCrashes: true}, {ConcurrencyPerGroup: 3}, {Spread: time.Second}, {Rate: Rate{PerSecond: 10, Burst: 5}}} {
		t.Run(fmt.Sprintf("%+v", settings), func(t *testing.T) {
			rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
				const tasks = 500
				var wanted atomic.Bool
				r.MustHandle("x", func(_ context.Context, d *Delivery) error {
					if d.Payload[0] == 'n' && !wanted.Load() {
						return ErrUnwanted
					}
					return nil
				})
				r.MustSetTopic("x", settings)
				for i := range tasks {
					r.Must(Request{ID: fmt.Sprint("n", i), Topic: "x", Group: fmt.Sprint("g", i%10), Payload: []byte("n")})
				}
				rig.Pass(settings.Spread + time.Millisecond)
				r.Must(Request{ID: "y", Topic: "x", Group: "g1", Payload: []byte("y")})
				rig.Pass(settings.Spread)
				if n := r.Counts("x"); n.Delivered != 1 || n.Ready != tasks || n.Strays != tasks || n.Failed != 0 {
					t.Errorf("%+v", n)
				}
				before := r.Counts("x").Returned
				rig.Pass(10*time.Second + time.Millisecond)
				if n := r.Counts("x").Returned - before; n < 9*64 || n > 11*64 {
					t.Errorf("%d were tried again in 10 s", n)
				}
				rig.Want(t, "Cancel", r.Cancel(t.Context(), "n7"), nil)
				r.CheckConsistency()
				wanted.Store(true)
				r.Admin().ReceiverCame("x")
				rig.Pass(settings.Spread + time.Second)
				if settings.Rate.PerSecond > 0 {
					rig.Pass(time.Minute)
				}
				if n := r.Counts("x"); n.Delivered != tasks || n.Ready != 0 || n.Strays != 0 {
					t.Errorf("%+v", n)
				}
				r.CheckConsistency()
			})
		})
	}
}

// Tasks that are wanted do not stand behind those that are not, however often receivers come.
func TestUnwantedWhileReceiversCome(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Concurrency: 4})
		r.MustHandle("x", func(_ context.Context, d *Delivery) error {
			time.Sleep(2 * time.Millisecond)
			if d.Payload[0] == 'n' {
				return ErrUnwanted
			}
			return nil
		})
		for i := range 5000 {
			r.Must(Request{ID: fmt.Sprint("n", i), Topic: "x", Payload: []byte("n")})
		}
		rig.Pass(10 * time.Second)
		before := r.Counts("x").Returned
		for i := range 20 {
			r.Admin().ReceiverCame()
			r.Must(Request{ID: fmt.Sprint("y", i), Topic: "x", Payload: []byte("y")})
			rig.Pass(time.Second)
			if n := r.Counts("x"); n.Delivered != int64(i)+1 {
				t.Fatalf("in second %d: %+v", i, n)
			}
		}
		if n := r.Counts("x").Returned - before; n < 2*5000 || n > 6*5000 {
			t.Errorf("%d were tried again in 20 s", n)
		}
		r.CheckConsistency()
	})
}

// A topic some of whose tasks have no receiver, while others are unwanted, is not tried without
// end.
func TestUnwantedBesideNoReceiver(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{Concurrency: 8})
		r.MustHandle("x", func(_ context.Context, d *Delivery) error {
			time.Sleep(time.Millisecond)
			if d.Payload[0] == 'n' {
				return ErrUnwanted
			}
			return ErrNoReceiver
		})
		for i := range 102 {
			r.Must(Request{ID: fmt.Sprint("n", i), Topic: "x", Payload: []byte("nl"[i/100:][:1])})
		}
		rig.Pass(5 * time.Second)
		before := r.Counts("x").Returned
		rig.Pass(10 * time.Second)
		if n := r.Counts("x").Returned - before; n < 9 || n > 1500 {
			t.Errorf("%d were tried again in 10 s", n)
		}
	})
}
