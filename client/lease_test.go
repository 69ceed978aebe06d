package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/client"
)

// to reports whether a request is for a route.
func to(r *http.Request, route string) bool { return strings.HasSuffix(r.URL.Path, route) }

// hang answers a request when its caller has given up.
func hang(r *http.Request, _ through) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A handler slower than its lease keeps it: the lease is extended between a third and
// half of its time, and those of many deliveries with one call.
func TestLeaseIsExtended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		var times []time.Time
		set(faults, func(r *http.Request, serve through) (*http.Response, error) {
			if to(r, "/extend") {
				times = append(times, time.Now())
			}
			return serve(r)
		})
		schedule(t, c, 50)
		var calls atomic.Int64
		w := worker(t, c, client.WorkerOptions{Concurrency: 30, Prefetch: 20, Lease: 12 * time.Second}, func(ctx context.Context, _ *client.Delivery) error {
			calls.Add(1)
			pause(ctx, 10*time.Minute)
			return context.Cause(ctx)
		})
		from := time.Now()
		stop := run(t, w)
		finished(t, c) // two rounds of ten minutes
		check(t, "Run", stop(), nil)
		if s := w.Stats(); s.Acked != 50 || calls.Load() != 50 || s.Lost+s.Released != 0 {
			t.Errorf("%d calls: %+v", calls.Load(), s)
		}
		for i, at := range times {
			if gap := at.Sub(from); gap < 4*time.Second || gap > 6*time.Second+time.Millisecond {
				t.Fatalf("extension %d came %s after the one before", i, gap)
			}
			from = at
		}
		if len(times) < 190 {
			t.Errorf("%d calls to extend", len(times))
		}
	})
}

// A worker may hold more than a call can carry.
func TestManyLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := within(t, client.Options{})
		const n = 2500
		schedule(t, c, n)
		w := worker(t, c, client.WorkerOptions{Concurrency: n, Lease: 12 * time.Second}, func(ctx context.Context, _ *client.Delivery) error {
			pause(ctx, 20*time.Second)
			return context.Cause(ctx)
		})
		stop := run(t, w)
		finished(t, c)
		check(t, "Run", stop(), nil)
		if s := w.Stats(); s.Acked != n || s.Reserved != n || s.Extended < 3*n || s.Extended > 5*n {
			t.Errorf("got %+v", s)
		}
	})
}

// A delivery that the server reports as over ends its handler, and is not settled. One that still
// waits for a handler gets none.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		schedule(t, c, 3)
		stolen, caught := make(chan []client.Delivery, 1), false
		set(faults, func(r *http.Request, serve through) (*http.Response, error) {
			resp, err := serve(r)
			switch {
			case to(r, "/ack"), to(r, "/release"):
				t.Error("a delivery that is over was settled")
			case to(r, "/reserve") && !caught:
				caught = true
				body, _ := io.ReadAll(resp.Body)
				resp.Body = io.NopCloser(bytes.NewReader(body))
				var answer struct{ Tasks []client.Delivery }
				if err := json.Unmarshal(body, &answer); err != nil || len(answer.Tasks) != 3 {
					t.Errorf("got %s, %v", body, err)
				}
				stolen <- answer.Tasks
			}
			return resp, err
		})
		began := make(chan string, 3)
		causes := make(chan error, 3)
		w := worker(t, c, client.WorkerOptions{Concurrency: 1, Prefetch: 2, Lease: time.Minute}, func(ctx context.Context, d *client.Delivery) error {
			began <- d.ID
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil
		})
		stop := run(t, w)
		from := time.Now()
		first, all := <-began, <-stolen
		for _, d := range all[:2] { // the one that runs, and one that waits
			if _, err := c.Bury(t.Context(), "stolen", d.Receipt); err != nil {
				t.Fatal(err)
			}
		}
		check(t, "the cause", <-causes, client.ErrLeaseLost)
		if took := time.Since(from); took > 31*time.Second {
			t.Errorf("took %s", took)
		}
		if next := <-began; first != all[0].ID || next != all[2].ID {
			t.Errorf("%s and %s have begun of %+v", first, next, all)
		}
		if s := w.Stats(); s.Lost != 2 || s.Running != 1 || s.Waiting != 0 || s.Unsettled != 1 {
			t.Errorf("got %+v", s)
		}
		_, err := c.Bury(t.Context(), "stolen", all[2].Receipt)
		check(t, "Bury", err, nil)
		check(t, "the cause", <-causes, client.ErrLeaseLost)
		check(t, "Run", stop(), nil)
		if s := w.Stats(); s.Lost != 3 || s.Acked != 0 || s.Unsettled != 0 {
			t.Errorf("got %+v", s)
		}
	})
}

// A settled delivery whose receipt is stale is counted as lost, and nothing else.
func TestStaleAck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := within(t, client.Options{})
		schedule(t, c, 1)
		w := worker(t, c, client.WorkerOptions{}, func(ctx context.Context, d *client.Delivery) error {
			if d.Attempt == 1 {
				_, err := c.Release(ctx, new(time.Duration), "thief", d.Receipt)
				check(t, "Release", err, nil)
			}
			return nil
		})
		stop := run(t, w)
		finished(t, c)
		synctest.Wait()
		check(t, "Run", stop(), nil)
		if s := w.Stats(); s.Lost != 1 || s.Acked != 1 || s.Reserved != 2 {
			t.Errorf("got %+v", s)
		}
	})
}

// A server that does not answer for less than a lease costs nothing. After a longer silence the
// handler learns that another worker may have the task.
func TestServerHangs(t *testing.T) {
	for _, test := range []struct {
		name string
		long time.Duration
		lost int64
	}{{"briefly", 40 * time.Second, 0}, {"for long", 90 * time.Second, 5}} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _, faults := within(t, client.Options{})
				schedule(t, c, 20)
				var calls, told atomic.Int64
				w := worker(t, c, client.WorkerOptions{Concurrency: 5, Lease: time.Minute, Wait: time.Second}, func(ctx context.Context, _ *client.Delivery) error {
					calls.Add(1)
					from := time.Now()
					pause(ctx, 100*time.Second)
					err := context.Cause(ctx)
					if err != nil {
						told.Add(1)
						if took := time.Since(from); took > 63*time.Second || !errors.Is(err, client.ErrLeaseLost) {
							t.Errorf("the handler was told %v after %s", err, took)
						}
					}
					return err
				})
				stop := run(t, w)
				pause(t.Context(), 11*time.Second)
				set(faults, hang)
				pause(t.Context(), test.long)
				set(faults, nil)
				finished(t, c)
				check(t, "Run", stop(), nil)
				s := w.Stats()
				if s.Acked != 20 {
					t.Errorf("got %+v", s)
				}
				if again := calls.Load() - 20; again != test.lost || told.Load() != test.lost {
					t.Errorf("%d handlers were called again, %d were told", again, told.Load())
				}
			})
		})
	}
}

// Settling calls are repeated until they are answered, whether the request or its answer was lost,
// and no handler runs twice for that.
func TestSettlingIsRepeated(t *testing.T) {
	for _, route := range []string{"/ack", "/release", "/bury"} {
		for _, served := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				c, _, faults := within(t, client.Options{Retries: -1})
				schedule(t, c, 100)
				var asked atomic.Int64
				well := time.Now().Add(2 * time.Minute)
				set(faults, func(r *http.Request, serve through) (*http.Response, error) {
					if to(r, route) && time.Now().Before(well) {
						asked.Add(1)
						if served {
							_, _ = serve(r)
						}
						return nil, brokenPipe
					}
					return serve(r)
				})
				var calls atomic.Int64
				w := worker(t, c, client.WorkerOptions{}, func(context.Context, *client.Delivery) error {
					calls.Add(1)
					switch route {
					case "/release":
						return client.RetryAfter(errors.New("later"), time.Hour)
					case "/bury":
						return client.Kill(errors.New("poison"))
					}
					return nil
				})
				stop := run(t, w)
				eventually(t, "all are settled", func() bool { s := w.Stats(); return s.Acked+s.Released+s.Buried == 100 })
				check(t, "Run", stop(), nil)
				if s := w.Stats(); calls.Load() != 100 || s.Lost != 0 {
					t.Errorf("%s, served %v: %d calls, %+v", route, served, calls.Load(), s)
				}
				// There are up to four calls at once, every second or two.
				if n := asked.Load(); n < 50 || n > 1000 {
					t.Errorf("%s, served %v: asked %d times", route, served, n)
				}
			})
		}
	}
}

// An extension that finds a delivery settled by an answer that is still on its way is no
// lost lease.
func TestExtendedWhileSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{Timeout: time.Hour})
		schedule(t, c, 1)
		var extended atomic.Bool
		set(faults, func(r *http.Request, serve through) (*http.Response, error) {
			resp, err := serve(r)
			if to(r, "/extend") {
				extended.Store(true)
			}
			if to(r, "/ack") {
				pause(r.Context(), 20*time.Minute)
			}
			return resp, err
		})
		var log bytes.Buffer
		w := worker(t, c, client.WorkerOptions{Log: slog.New(slog.NewTextHandler(&log, nil))}, func(context.Context, *client.Delivery) error { return nil })
		stop := run(t, w)
		eventually(t, "it is settled", func() bool { return w.Stats().Acked == 1 })
		check(t, "Run", stop(), nil)
		if s := w.Stats(); !extended.Load() || s.Lost != 0 || log.Len() > 0 {
			t.Errorf("got %+v, and in the log %s", s, log.String())
		}
	})
}

// A receipt that the server cannot judge yet is asked about again.
func TestSettlingWaitsForReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		schedule(t, c, 1)
		sent := 0
		set(faults, func(r *http.Request, serve through) (*http.Response, error) {
			if !to(r, "/ack") {
				return serve(r)
			}
			if sent++; sent == 1 {
				return answer(200, `{"settled":0,"recorded":true,"errors":[{"index":0,"problem":{"type":"/problems/replaying","title":"T","status":503}}]}`), nil
			}
			return serve(r)
		})
		w := worker(t, c, client.WorkerOptions{Concurrency: 1}, func(context.Context, *client.Delivery) error { return nil })
		stop := run(t, w)
		finished(t, c)
		check(t, "Run", stop(), nil)
		if s := w.Stats(); s.Acked != 1 || s.Reserved != 1 || sent != 2 {
			t.Errorf("got %+v after %d acks", s, sent)
		}
	})
}
