package client_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/client"
)

func name(i int) string { return strconv.Itoa(i) }

// The result of a handler decides the outcome of its task.
func TestWorkerSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c, _, _ := within(t, client.Options{})
		_, err := c.SetTopic(ctx, "x", client.Settings{Retry: client.Retry{MaxAttempts: 3, MinBackoff: client.Duration(time.Hour), MaxBackoff: client.Duration(time.Hour)}}, client.AnyRevision)
		check(t, "SetTopic", err, nil)
		for _, id := range []string{"done", "failed", "killed", "paused", "panicked", "left", "nothing", "decoded"} {
			_, err := c.Schedule(ctx, client.Request{ID: id, Topic: "x", Payload: []byte(`{"n":7}`)})
			check(t, "Schedule", err, nil)
		}
		decode := client.NewTopic[struct{ N int }]("x").Handler(func(_ context.Context, v struct{ N int }, d *client.Delivery) error {
			if v.N != 7 || d.ID != "decoded" {
				t.Errorf("got %+v of %s", v, d.ID)
			}
			return nil
		})
		undecodable := client.NewTopic[[]int]("x").Handler(func(context.Context, []int, *client.Delivery) error { t.Error("called"); return nil })
		var log bytes.Buffer
		w := worker(t, c, client.WorkerOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(ctx context.Context, d *client.Delivery) error {
			switch d.ID {
			case "failed":
				return errors.New("no stock")
			case "killed":
				return client.Kill(errors.New("poison"))
			case "paused":
				return client.RetryAfter(errors.New("closed"), 20*time.Minute)
			case "panicked":
				panic("oh")
			case "left":
				runtime.Goexit()
			case "nothing":
				return undecodable(ctx, d)
			case "decoded":
				return decode(ctx, d)
			}
			return nil
		})
		stop := run(t, w)
		eventually(t, "all are settled", func() bool {
			s := w.Stats()
			return s.Acked+s.Released+s.Buried == 8 && s.Unsettled == 0
		})
		check(t, "Run", stop(), nil)
		if diff := cmp.Diff(client.WorkerStats{Reserved: 8, Acked: 2, Released: 4, Buried: 2, Panicked: 1}, w.Stats()); diff != "" {
			t.Error(diff)
		}
		if !strings.Contains(log.String(), "worker_test.go") || !strings.Contains(log.String(), "topic=x task=panicked attempt=1 panic=oh") {
			t.Errorf("the log has no stack of the panic: %s", log.String())
		}
		for _, test := range []struct {
			id    string
			state client.State
			next  time.Duration // at least, and no more than a minute more
			last  string
		}{
			{"failed", client.Pending, time.Hour, "no stock"},
			{"killed", client.Dead, 0, "poison"},
			{"paused", client.Pending, 20 * time.Minute, "closed"},
			{"panicked", client.Pending, time.Hour, "panic: oh"},
			{"left", client.Pending, time.Hour, "the handler ended its goroutine"},
			{"nothing", client.Dead, 0, "payload of "},
		} {
			got, err := c.Get(ctx, test.id)
			check(t, test.id, err, nil)
			next := got.NextAt.Sub(got.CreatedAt)
			if got.State != test.state || got.Attempt != 1 || !strings.HasPrefix(got.LastError, test.last) ||
				test.next > 0 && (next < test.next || next > test.next+time.Minute) {
				t.Errorf("%s: got %+v", test.id, got)
			}
		}
		for _, id := range []string{"done", "decoded"} {
			_, err := c.Get(ctx, id)
			check(t, id, err, client.ErrNotFound)
		}
	})
}

// A reason is cut where a rune begins, and every setting of a handler is brought into range.
func TestWorkerClampsJudgements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := within(t, client.Options{})
		schedule(t, c, 3)
		w := worker(t, c, client.WorkerOptions{}, func(_ context.Context, d *client.Delivery) error {
			switch {
			case d.Attempt > 1:
				return nil
			case d.ID == "0":
				return client.RetryAfter(nil, -time.Hour)
			case d.ID == "1":
				return client.RetryAfter(errors.New(strings.Repeat("é", 5000)), 1<<62)
			}
			return client.Kill(nil)
		})
		stop := run(t, w)
		eventually(t, "all are settled", func() bool { return w.Stats().Acked == 1 && w.Stats().Released == 2 && w.Stats().Buried == 1 })
		check(t, "Run", stop(), nil)
		far, err := c.Get(t.Context(), "1")
		if check(t, "Get", err, nil); time.Until(far.NextAt) < 9*365*24*time.Hour || far.LastError != strings.Repeat("é", 512) {
			t.Errorf("got %+v", far)
		}
		if dead, err := c.Get(t.Context(), "2"); err != nil || dead.LastError != "no reason given" {
			t.Errorf("got %+v, %v", dead, err)
		}
	})
}

// No more handlers run than Concurrency, and no more is reserved than they can begin, plus
// Prefetch.
func TestWorkerBounds(t *testing.T) {
	for _, o := range []client.WorkerOptions{{Concurrency: 1}, {Concurrency: 7}, {Concurrency: 3, Prefetch: 5}} {
		synctest.Test(t, func(t *testing.T) {
			c, _, _ := within(t, client.Options{})
			schedule(t, c, 100)
			var now, most atomic.Int64
			w := worker(t, c, o, func(ctx context.Context, _ *client.Delivery) error {
				n := now.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				defer now.Add(-1)
				pause(ctx, time.Second)
				return nil
			})
			stop := run(t, w)
			bound := int64(o.Concurrency + o.Prefetch)
			for w.Stats().Acked < 100 {
				pause(t.Context(), 10*time.Millisecond)
				synctest.Wait()
				s := w.Stats()
				if open := s.Reserved - s.Acked; open > 2*bound || int64(s.Running+s.Waiting) > bound || s.Waiting > o.Prefetch {
					t.Fatalf("%+v: got %+v", o, s)
				}
			}
			if check(t, "Run", stop(), nil); most.Load() != int64(o.Concurrency) {
				t.Errorf("%+v: %d handlers at once", o, most.Load())
			}
		})
	}
}

// pause waits by a timer.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// A worker that stops begins nothing more, gives back deliveries that have not begun, and lets
// handlers finish.
func TestWorkerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := within(t, client.Options{})
		schedule(t, c, 10)
		w := worker(t, c, client.WorkerOptions{Concurrency: 2, Prefetch: 3, Grace: time.Minute}, func(ctx context.Context, _ *client.Delivery) error {
			pause(ctx, 30*time.Second)
			return context.Cause(ctx)
		})
		stop := run(t, w)
		pause(t.Context(), 10*time.Second)
		from := time.Now()
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		synctest.Wait()
		// Before the handlers return, all other tasks are free for other workers.
		rest, err := c.Reserve(t.Context(), "x", client.Reservation{Max: 100})
		if check(t, "Reserve", err, nil); len(rest) != 8 {
			t.Errorf("%d are free, want 8", len(rest))
		}
		check(t, "Run", <-stopped, nil)
		if took := time.Since(from); took < 20*time.Second || took > 21*time.Second {
			t.Errorf("took %s", took)
		}
		if diff := cmp.Diff(client.WorkerStats{Reserved: 5, Acked: 2, Returned: 3, Extended: w.Stats().Extended}, w.Stats()); diff != "" {
			t.Error(diff)
		}
	})
}

// A worker that stops spends no attempt of a task that no handler has begun: with a single one, no
// task dies of it.
func TestWorkerStopKillsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := within(t, client.Options{})
		_, err := c.SetTopic(t.Context(), "x", client.Settings{Retry: client.Retry{MaxAttempts: 1}}, -1)
		check(t, "SetTopic", err, nil)
		schedule(t, c, 24)
		w := worker(t, c, client.WorkerOptions{Concurrency: 4, Prefetch: 8}, func(ctx context.Context, _ *client.Delivery) error {
			pause(ctx, 5*time.Second)
			return nil
		})
		stop := run(t, w)
		pause(t.Context(), time.Second)
		check(t, "Run", stop(), nil)
		if s := w.Stats(); s.Acked != 4 || s.Returned != 8 || s.Released != 0 {
			t.Errorf("got %+v", s)
		}
		rest, err := c.Reserve(t.Context(), "x", client.Reservation{Max: 100})
		if check(t, "Reserve", err, nil); len(rest) != 20 {
			t.Errorf("%d of 20 are left", len(rest))
		}
		for i := range rest {
			if d := &rest[i]; d.Attempt != 1 || d.LastError != "" {
				t.Errorf("%s is delivered as attempt %d after %q", d.ID, d.Attempt, d.LastError)
			}
		}
	})
}

// Deliveries that arrive after a worker has stopped are given back, too.
func TestWorkerStopsInAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		schedule(t, c, 10)
		set(faults, func(r *http.Request, serve through) (*http.Response, error) {
			resp, err := serve(r)
			if to(r, "/reserve") {
				pause(r.Context(), 400*time.Millisecond)
			}
			return resp, errors.Join(err, r.Context().Err())
		})
		w := worker(t, c, client.WorkerOptions{}, func(context.Context, *client.Delivery) error { t.Error("called"); return nil })
		stop := run(t, w)
		synctest.Wait()
		check(t, "Run", stop(), nil)
		set(faults, nil)
		if rest, err := c.Reserve(t.Context(), "x", client.Reservation{Max: 100}); err != nil || len(rest) != 10 || rest[0].Attempt != 1 {
			t.Errorf("got %+v, %v", rest, err)
		}
		// The worker does not wait for a call that waits for tasks.
		stop = run(t, w)
		pause(t.Context(), 10*time.Second)
		from := time.Now()
		if check(t, "Run", stop(), nil); time.Since(from) > 0 {
			t.Errorf("took %s", time.Since(from))
		}
	})
}

// Handlers that need longer than the grace learn it, and their tasks are free at once.
func TestWorkerGraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := within(t, client.Options{})
		schedule(t, c, 1)
		cause := make(chan error, 1)
		w := worker(t, c, client.WorkerOptions{Grace: 10 * time.Minute}, func(ctx context.Context, _ *client.Delivery) error {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return ctx.Err()
		})
		stop := run(t, w)
		synctest.Wait()
		from := time.Now()
		check(t, "Run", stop(), nil)
		if took := time.Since(from); took < 10*time.Minute || took > 11*time.Minute {
			t.Errorf("took %s", took)
		}
		check(t, "the cause", <-cause, client.ErrStopped)
		again, err := c.Reserve(t.Context(), "x", client.Reservation{Wait: time.Second})
		if check(t, "Reserve", err, nil); len(again) != 1 || again[0].Attempt != 2 {
			t.Errorf("got %+v", again)
		}
		// The worker can run again.
		check(t, "Release", second(c.Release(t.Context(), new(time.Duration), "", again[0].Receipt)), nil)
		stop = run(t, w)
		synctest.Wait()
		if s := w.Stats(); s.Running != 1 || s.Reserved != 2 {
			t.Errorf("got %+v", s)
		}
		check(t, "Run", w.Run(t.Context()), client.ErrRunning)
		check(t, "Run", stop(), nil)
	})
}

func second[T any](_ T, err error) error { return err }

// A handler that does not return is left behind, and Run reports it. Its task is not free before
// its lease is over: the handler may still work on it.
func TestWorkerLeavesHandlersBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := within(t, client.Options{})
		schedule(t, c, 1)
		done := make(chan struct{})
		defer close(done)
		w := worker(t, c, client.WorkerOptions{Lease: time.Minute}, func(context.Context, *client.Delivery) error { <-done; return nil })
		stop := run(t, w)
		synctest.Wait()
		from := time.Now()
		err := stop()
		if check(t, "Run", err, client.ErrUnsettled); !strings.Contains(err.Error(), "1 with handlers that still run") {
			t.Error(err)
		}
		if took := time.Since(from); took > 16*time.Second {
			t.Errorf("took %s", took)
		}
		if got, err := c.Reserve(t.Context(), "x", client.Reservation{Wait: 30 * time.Second}); err != nil || len(got) != 0 {
			t.Errorf("got %+v, %v", got, err)
		}
		if got, err := c.Reserve(t.Context(), "x", client.Reservation{Wait: time.Minute}); err != nil || len(got) != 1 {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

// All faults of the options are reported at once.
func TestWorkerOptions(t *testing.T) {
	_, err := client.NewWorker(nil, "", nil, client.WorkerOptions{Concurrency: -1, Prefetch: 1001, Lease: time.Millisecond,
		Wait: time.Hour, Grace: -1})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"client", "topic", "handler", "Concurrency must be from 1 to 10000", "Prefetch must be from 0 to 1000",
		"Lease must be from 1s to 1d", "Wait must be from 1s to 1m", "Grace must be from 1ms to 1d"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	_, err = client.NewBatcher(nil, client.BatcherOptions{Calls: -1, MaxBatch: 10_001, MaxWaiting: -1})
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("got %v", err)
	}
}

// Handlers see the values of Run's context, but not its end.
func TestWorkerContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := within(t, client.Options{})
		schedule(t, c, 1)
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		var once sync.Once
		w := worker(t, c, client.WorkerOptions{}, func(ctx context.Context, _ *client.Delivery) error {
			once.Do(cancel)
			synctest.Wait()
			if ctx.Value(key{}) != "v" || ctx.Err() != nil {
				t.Errorf("got %v, %v", ctx.Value(key{}), ctx.Err())
			}
			return nil
		})
		check(t, "Run", w.Run(ctx), nil)
		if s := w.Stats(); s.Acked != 1 {
			t.Errorf("got %+v", s)
		}
	})
}
