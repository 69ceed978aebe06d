package engine_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

func TestHandlerGetsTheTask(t *testing.T) {
	rig.Bubble(t, tasks.Config{Node: "n1"}, func(t *testing.T, r *rig.Rig) {
		got := make(chan tasks.Delivery, 1)
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error { got <- *d; return nil })
		due := r.Clock.Now().Add(time.Minute)
		r.Must(tasks.Request{ID: "t", Topic: "x", Due: due, Payload: []byte(`{"a":1}`), Headers: map[string]string{"tenant": "eu"}, Group: "g"})
		d := <-got
		if d.ID != "t" || d.Topic != "x" || string(d.Payload) != `{"a":1}` || d.Headers["tenant"] != "eu" || d.Group != "g" || d.Attempt != 1 || d.Node != "n1" || d.Receipt() == "" || d.State != tasks.Delivering {
			t.Errorf("delivered %+v", d)
		}
		rig.Pass(0)
		wantEnd(r, recovery.Nowhere, 0)
		if c := r.Counts("x"); c.Delivered != 1 || c.Scheduled != 1 || c.Failed != 0 {
			t.Errorf("counts %+v", c)
		}
		r.CheckConsistency()
	})
}

// A handler may write to the payload that it was given, and beyond its end: the next attempt gets
// what was scheduled.
func TestHandlerWritesToThePayload(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		got := make(chan string, 2)
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			got <- d.ID + string(d.Payload)
			clear(append(d.Payload, 1, 2, 3))
			clear(d.Payload)
			if d.Attempt == 1 {
				return task.RetryAfter(errors.New("once more"), 0)
			}
			return nil
		})
		r.Must(tasks.Request{ID: "t", Topic: "x", Payload: []byte("payload")})
		rig.Pass(time.Second)
		for attempt := 1; attempt <= 2; attempt++ {
			if text := <-got; text != "tpayload" {
				t.Errorf("attempt %d got %q", attempt, text)
			}
		}
		r.CheckConsistency()
	})
}

func TestTypedHandler(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		var sum atomic.Int64
		type order struct{ N int64 }
		rig.Want(t, "Handle", tasks.NewTopic[order]("x").Handle(r.Scheduler, func(_ context.Context, v order, _ *tasks.Delivery) error { sum.Add(v.N); return nil }), nil)
		r.Must(tasks.Request{ID: "t", Topic: "x", Payload: []byte(`{"N":42}`)})
		r.Must(tasks.Request{ID: "bad", Topic: "x", Payload: []byte(`{"N":`)})
		rig.Pass(time.Second)
		if sum.Load() != 42 {
			t.Errorf("sum %d", sum.Load())
		}
		if task := r.MustGet("bad"); task.State != tasks.Dead || task.Attempt != 1 {
			t.Errorf("a payload that does not decode: %v after %d attempts", task.State, task.Attempt)
		}
	})
}

// What a handler's error does to the task.
func TestHandlerErrors(t *testing.T) {
	failure := errors.New("no luck")
	for name, c := range map[string]struct {
		err     error
		state   tasks.State
		pause   time.Duration // exactly, if not 0
		message string
	}{
		"error":                 {failure, tasks.Pending, 0, "no luck"},
		"Kill":                  {tasks.Kill(failure), tasks.Dead, 0, "no luck"},
		"wrapped Kill":          {fmt.Errorf("so: %w", tasks.Kill(failure)), tasks.Dead, 0, "so: no luck"},
		"RetryAfter":            {tasks.RetryAfter(failure, 7*time.Minute), tasks.Pending, 7 * time.Minute, "no luck"},
		"RetryAfter 0":          {tasks.RetryAfter(failure, 0), tasks.Delivering, 0, "no luck"},
		"RetryAfter, negative":  {tasks.RetryAfter(failure, -time.Hour), tasks.Delivering, 0, "no luck"},
		"RetryAfter, endless":   {tasks.RetryAfter(failure, 1<<62), tasks.Pending, tasks.MaxAhead, "no luck"},
		"ErrLater":              {tasks.ErrLater, tasks.Delivering, 0, ""},
		"a very long message":   {errors.New(string(make([]byte, 5000))), tasks.Pending, 0, string(make([]byte, task.MaxReason))},
		"a cut character":       {errors.New(string(make([]byte, task.MaxReason-1)) + "ä"), tasks.Pending, 0, string(make([]byte, task.MaxReason-1))},
		"context.Canceled":      {context.Canceled, tasks.Pending, 0, "context canceled"},
		"Kill outside the rest": {tasks.Kill(tasks.RetryAfter(failure, time.Hour)), tasks.Dead, 0, "no luck"},
	} {
		t.Run(name, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", tasks.TopicSettings{Lease: time.Hour, Concurrency: 1, Retry: tasks.Retry{MinBackoff: time.Minute, MaxBackoff: time.Minute}})
				var calls atomic.Int32
				done := make(chan struct{})
				r.MustHandle("x", func(context.Context, *tasks.Delivery) error {
					if calls.Add(1) > 1 {
						<-done
					}
					return c.err
				})
				defer close(done)
				at := r.Clock.Now()
				dueNow(r)
				rig.Pass(time.Millisecond)
				task := r.MustGet("t")
				if task.State != c.state || task.LastError != c.message {
					t.Errorf("%v, last error %.50q; want %v, %.50q", task.State, task.LastError, c.state, c.message)
				}
				if c.pause != 0 && task.Next.Sub(at) != c.pause {
					t.Errorf("again after %v, want %v", task.Next.Sub(at), c.pause)
				}
			})
		})
	}
}

func TestPanicIsAFailedAttempt(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			if d.Attempt == 1 {
				panic("oh dear")
			}
			return nil
		})
		dueNow(r)
		rig.Pass(time.Millisecond)
		if task := r.MustGet("t"); task.State != tasks.Pending || task.LastError != "panic: oh dear" {
			t.Errorf("%v, last error %q", task.State, task.LastError)
		}
		if !r.Log.Has("a handler panicked") || !r.Log.Has("deliver_test.go") {
			t.Error("the log does not tell where")
		}
		rig.Pass(time.Minute)
		wantEnd(r, recovery.Nowhere, 0)
		if c := r.Counts("x"); c.Panicked != 1 || c.Failed != 1 || c.Delivered != 1 {
			t.Errorf("counts %+v", c)
		}
	})
}

func TestMaxAttempts(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Retry: tasks.Retry{MaxAttempts: 3}})
		var attempts rig.Collection[int]
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			attempts.Add(d.Attempt)
			return errors.New("never")
		})
		dueNow(r)
		rig.Pass(time.Hour)
		if fmt.Sprint(attempts.List()) != "[1 2 3]" {
			t.Errorf("attempts %v", attempts.List())
		}
		task := r.MustGet("t")
		if task.State != tasks.Dead || task.Attempt != 3 || task.LastError != "never" || task.Died.IsZero() {
			t.Errorf("afterwards %+v", task)
		}
		if c := r.Counts("x"); c.Died != 1 || c.Failed != 3 || c.Dead != 1 {
			t.Errorf("counts %+v", c)
		}
		r.CheckConsistency()
	})
}

// Deliveries at once never exceed the topic's concurrency, also when it is changed
// while they run.
func TestConcurrency(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		var running, total atomic.Int64
		var most rig.Peak
		r.MustSetTopic("x", tasks.TopicSettings{Concurrency: 3})
		r.MustHandle("x", func(context.Context, *tasks.Delivery) error {
			most.See(running.Add(1))
			time.Sleep(time.Second)
			running.Add(-1)
			total.Add(1)
			return nil
		})
		for range 200 {
			r.Must(tasks.Request{Topic: "x"})
		}
		for _, limit := range []int64{3, 10, 2} {
			r.MustSetTopic("x", tasks.TopicSettings{Concurrency: int(limit)})
			rig.Pass(1500 * time.Millisecond) // those that run under the old limit end
			most.Store(0)
			rig.Pass(3 * time.Second)
			if most.Load() != limit {
				t.Errorf("up to %d at once with a concurrency of %d", most.Load(), limit)
			}
		}
		rig.Pass(time.Hour)
		if total.Load() != 200 {
			t.Errorf("%d of 200 delivered", total.Load())
		}
		r.CheckConsistency()
	})
}

func TestPausedTopic(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		var calls atomic.Int32
		r.MustHandle("x", func(context.Context, *tasks.Delivery) error { calls.Add(1); return nil })
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "x", true), nil)
		rig.Want(t, "PauseTopic", r.Admin().PauseTopic(t.Context(), "pulled", true), nil)
		r.Must(tasks.Request{ID: "t", Topic: "x"})
		r.Must(tasks.Request{ID: "p", Topic: "pulled"})
		rig.Pass(time.Minute)
		wantEnd(r, recovery.Pending, tasks.Ready)
		r.Pull("pulled")
		if calls.Load() != 0 {
			t.Fatal("delivered while paused")
		}
		r.Restart()
		r.MustHandle("x", func(context.Context, *tasks.Delivery) error { calls.Add(1); return nil })
		rig.Pass(time.Minute)
		if calls.Load() != 0 {
			t.Fatal("a restart has resumed the topic")
		}
		rig.Want(t, "resume", r.Admin().PauseTopic(t.Context(), "x", false), nil)
		rig.Pass(0)
		if calls.Load() != 1 {
			t.Errorf("%d deliveries after the pause", calls.Load())
		}
		go func() { pause(r, time.Second) }()
		ds, err := r.Reserve(t.Context(), "pulled", 1, time.Minute, 0)
		if err != nil || len(ds) != 1 {
			t.Errorf("a receiver that waits is not woken by the resume: %v, %v", ds, err)
		}
	})
}

func pause(r *rig.Rig, d time.Duration) {
	time.Sleep(d)
	_ = r.Admin().PauseTopic(context.Background(), "pulled", false)
}

func TestMaxLateness(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{Paused: true})
		for id, lateness := range map[string]time.Duration{"5s": 5 * time.Second, "20s": 20 * time.Second, "any": 0} {
			r.Must(tasks.Request{ID: id, Topic: "x", MaxLateness: lateness})
		}
		rig.Pass(10 * time.Second)
		var mu sync.Mutex
		var got []string
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, d.ID)
			return nil
		})
		r.MustSetTopic("x", tasks.TopicSettings{})
		rig.Pass(time.Second)
		if len(got) != 2 {
			t.Errorf("delivered %v", got)
		}
		if c := r.Counts("x"); c.Skipped != 1 || c.Delivered != 2 {
			t.Errorf("skipped %d, delivered %d", c.Skipped, c.Delivered)
		}
		_, err := r.Get(t.Context(), "5s")
		rig.Want(t, "Get of the skipped one", err, tasks.ErrNotFound)
		rig.Want(t, "Cancel of the skipped one", r.Cancel(t.Context(), "5s"), tasks.ErrNotFound)
		r.CheckConsistency()
	})
}

func TestHandleTwice(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		f := func(context.Context, *tasks.Delivery) error { return nil }
		r.MustHandle("x", f)
		rig.Want(t, "a second handler", r.Handle("x", f), tasks.ErrHandled)
		rig.Want(t, "a bad name", r.Handle("no name", f), tasks.ErrInvalid)
		_, err := r.Reserve(t.Context(), "x", 1, 0, 0)
		rig.Want(t, "Reserve", err, tasks.ErrHandled)
	})
}

// A topic that counts crashes records the attempt before it is delivered.
func TestCountCrashes(t *testing.T) {
	for _, way := range []string{"handler", "pull"} {
		t.Run(way, func(t *testing.T) {
			rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
				r.MustSetTopic("x", tasks.TopicSettings{CountCrashes: true, Retry: tasks.Retry{MaxAttempts: 3}})
				r.Must(tasks.Request{ID: "t", Topic: "x"})
				var attempts rig.Collection[int]
				for range 5 {
					if way == "handler" {
						stop := make(chan struct{})
						r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error {
							attempts.Add(d.Attempt)
							<-stop
							return nil
						})
						synctest.Wait()
						r.Mem.Crash() // it dies while it delivers
						close(stop)
					} else if ds, err := r.Reserve(t.Context(), "x", 1, 0, 0); err != nil {
						t.Fatal(err)
					} else if len(ds) > 0 {
						attempts.Add(ds[0].Attempt)
					}
					r.Crash()
					rig.Pass(2 * time.Second)
				}
				if fmt.Sprint(attempts.List()) != "[1 2 3]" {
					t.Errorf("attempts %v; want 1 2 3, and then death", attempts.List())
				}
				r.MustHandle("x", func(context.Context, *tasks.Delivery) error { return nil })
				rig.Pass(time.Second)
				if task := r.MustGet("t"); task.State != tasks.Dead || task.Attempt != 3 {
					t.Errorf("afterwards %v, %d attempts", task.State, task.Attempt)
				}
				rig.Pass(time.Second)
				r.CheckConsistency()
			})
		})
	}
}

// With the ledger down, nothing that counts crashes is delivered, and nothing is lost.
func TestCountCrashesDuringOutage(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", tasks.TopicSettings{CountCrashes: true})
		var attempts rig.Collection[int]
		r.Must(tasks.Request{ID: "t", Topic: "x", Delay: time.Second})
		r.MustHandle("x", func(_ context.Context, d *tasks.Delivery) error { attempts.Add(d.Attempt); return nil })
		r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Times: -1})
		rig.Pass(time.Minute)
		if len(attempts.List()) != 0 {
			t.Fatal("delivered without its claim")
		}
		r.Faulty.Heal()
		rig.Pass(time.Minute)
		if fmt.Sprint(attempts.List()) != "[1]" {
			t.Errorf("attempts %v", attempts.List())
		}
		r.CheckConsistency()
	})
}
