package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/client"
)

// A tally counts how often each task was handled.
type tally struct {
	mu sync.Mutex
	by map[string]int
}

func (y *tally) add(id string) int {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.by == nil {
		y.by = map[string]int{}
	}
	y.by[id]++
	return y.by[id]
}

// check fails the test unless n tasks were handled, each at most that often.
func (y *tally) check(t *testing.T, n, most int) {
	t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	if len(y.by) != n {
		t.Errorf("%d tasks were handled, want %d", len(y.by), n)
	}
	for id, times := range y.by {
		if times > most {
			t.Errorf("%s was handled %d times", id, times)
		}
	}
}

// A server goes down and comes back in the middle, with all connections broken: all tasks are
// handled. After an orderly end each is handled once, since receipts outlive the server. After a
// crash the server has forgotten which tasks it had handed out.
func TestServerRestarts(t *testing.T) {
	const n, times = 3000, 3
	for _, test := range []struct {
		name string
		down func(*station)
		most int // times that a task may be handled
	}{{"in order", (*station).restart, 1}, {"by a crash", (*station).crash, 1 + times}} {
		t.Run(test.name, func(t *testing.T) {
			s, c := newStation(t)
			schedule(t, c, n)
			var handled tally
			var count atomic.Int64
			now := make(chan struct{})
			w := worker(t, c, client.WorkerOptions{Concurrency: 50, Lease: 10 * time.Second}, func(_ context.Context, d *client.Delivery) error {
				handled.add(d.ID)
				if k := count.Add(1); k%(n/4) == 0 && k <= times*n/4 {
					now <- struct{}{}
				}
				return nil
			})
			stop := run(t, w)
			for range times {
				<-now
				test.down(s)
			}
			finished(t, c)
			check(t, "Run", stop(), nil)
			handled.check(t, n, test.most)
		})
	}
}

// A task whose handler fails is delivered again until its attempts are exhausted: no attempt is
// left out, none is made twice, and every task is settled.
func TestManyFailures(t *testing.T) {
	_, c := newStation(t)
	const n, attempts = 10_000, 4
	ctx := t.Context()
	_, err := c.SetTopic(ctx, "x", client.Settings{Retry: client.Retry{MaxAttempts: attempts,
		MinBackoff: client.Duration(time.Millisecond), MaxBackoff: client.Duration(5 * time.Millisecond)}}, client.AnyRevision)
	check(t, "SetTopic", err, nil)
	schedule(t, c, n)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	// The seed decides whether an attempt fails, so that the outcome can be predicted.
	fails := func(id string, attempt int) bool {
		var i int
		_, _ = fmt.Sscan(id, &i)
		return rand.New(rand.NewPCG(seed, uint64(i*attempts+attempt))).IntN(100) < 30
	}
	var handled tally
	w := worker(t, c, client.WorkerOptions{Concurrency: 64}, func(_ context.Context, d *client.Delivery) error {
		if k := handled.add(d.ID); k != d.Attempt {
			t.Errorf("%s: attempt %d is the %dth", d.ID, d.Attempt, k)
		}
		if fails(d.ID, d.Attempt) {
			return fmt.Errorf("attempt %d has failed", d.Attempt)
		}
		return nil
	})
	stop := run(t, w)
	finished(t, c)
	check(t, "Run", stop(), nil)
	wantDead, wantCalls := map[string]bool{}, 0
	for i := range n {
		k := 1
		for k < attempts && fails(name(i), k) {
			k++
		}
		if wantCalls += k; k == attempts && fails(name(i), k) {
			wantDead[name(i)] = true
		}
		if handled.by[name(i)] != k {
			t.Errorf("%d had %d attempts, want %d", i, handled.by[name(i)], k)
		}
	}
	dead := 0
	for task, err := range c.AllDead(ctx, client.Query{Topic: "x"}) {
		if dead++; err != nil || !wantDead[task.ID] || task.Attempt != attempts || task.LastError != fmt.Sprintf("attempt %d has failed", attempts) {
			t.Fatalf("dead: %+v, %v", task, err)
		}
	}
	s := w.Stats()
	if dead != len(wantDead) || s.Acked != int64(n-dead) || s.Released != int64(wantCalls)-s.Acked || s.Reserved != int64(wantCalls) || s.Lost != 0 || s.Unsettled != 0 {
		t.Errorf("%d are dead, want %d; %d calls, %+v", dead, len(wantDead), wantCalls, s)
	}
}

// Two workers share a topic: no task comes to both, and when one of them stops the other
// takes over.
func TestWorkersCompete(t *testing.T) {
	_, c := newStation(t)
	const n = 4000
	schedule(t, c, n)
	var handled tally
	var both sync.WaitGroup // until both have had some
	handler := func() client.Handler {
		both.Add(1)
		some := sync.OnceFunc(both.Done)
		return func(_ context.Context, d *client.Delivery) error {
			handled.add(d.ID)
			some()
			both.Wait()
			return nil
		}
	}
	o := client.WorkerOptions{Concurrency: 20}
	first, other := worker(t, c, o, handler()), worker(t, c, o, handler())
	stopFirst, stopOther := run(t, first), run(t, other)
	both.Wait()
	check(t, "Run", stopFirst(), nil)
	finished(t, c)
	check(t, "Run", stopOther(), nil)
	a, b := first.Stats(), other.Stats()
	if a.Acked+b.Acked != n || a.Acked == 0 || b.Acked == 0 || a.Lost+b.Lost != 0 {
		t.Errorf("got %+v and %+v", a, b)
	}
	// A task that was given back was not handled before.
	handled.check(t, n, 1)
}

// A server that is away for long is called now and then, not in a loop. When it is back, the worker
// goes on.
func TestServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		var asked atomic.Int64
		set(faults, func(*http.Request, through) (*http.Response, error) {
			asked.Add(1)
			return nil, refusedDial
		})
		w := worker(t, c, client.WorkerOptions{}, func(context.Context, *client.Delivery) error { return nil })
		stop := run(t, w)
		pause(t.Context(), time.Hour)
		if n := asked.Load(); n < 3600/2 || n > 3600*2 {
			t.Errorf("asked %d times in an hour", n)
		}
		set(faults, nil)
		schedule(t, c, 100)
		from := time.Now()
		finished(t, c)
		if took := time.Since(from); took > 3*time.Second {
			t.Errorf("took %s", took)
		}
		check(t, "Run", stop(), nil)
	})
}

// A server that answers at once without tasks, as it does while it shuts down, is not called in a
// loop; nor is one that is overloaded.
func TestServerDeclines(t *testing.T) {
	for what, decline := range map[string]func() *http.Response{
		"nothing":    func() *http.Response { return answer(200, `{"tasks":[]}`) },
		"overloaded": func() *http.Response { return problem(429, "overloaded") },
		"no JSON":    func() *http.Response { return answer(200, `<html>`) },
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _, faults := within(t, client.Options{})
			var asked atomic.Int64
			set(faults, func(*http.Request, through) (*http.Response, error) {
				asked.Add(1)
				return decline(), nil
			})
			stop := run(t, worker(t, c, client.WorkerOptions{}, func(context.Context, *client.Delivery) error { return nil }))
			pause(t.Context(), time.Minute)
			if n := asked.Load(); n < 20 || n > 100 {
				t.Errorf("%s: asked %d times in a minute", what, n)
			}
			check(t, "Run", stop(), nil)
		})
	}
}

// An error that does not pass ends Run in order: handlers finish, and their results are settled if
// possible.
func TestWorkerGivesUp(t *testing.T) {
	for _, test := range []struct {
		name, route string
		status      int
		problem     string // empty: the answer is not from Lapse
		want        error
	}{
		{"no token", "/reserve", 401, "unauthorized", client.ErrUnauthorized},
		{"no right", "/reserve", 403, "forbidden", client.ErrUnauthorized},
		{"another way of delivery", "/reserve", 409, "handled", client.ErrHandled},
		{"a wrong name", "/reserve", 422, "invalid", client.ErrInvalid},
		{"no server of ours", "/reserve", 404, "", nil},
		{"a redirection", "/reserve", 302, "", nil},
		{"no token any more", "/extend", 401, "unauthorized", client.ErrUnauthorized},
		{"no token any more", "/ack", 401, "unauthorized", client.ErrUnauthorized},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _, faults := within(t, client.Options{})
				schedule(t, c, 1)
				var served, refused atomic.Bool
				set(faults, func(r *http.Request, serve through) (*http.Response, error) {
					// At first, there is a delivery for the handler.
					if !to(r, test.route) || to(r, "/reserve") && served.CompareAndSwap(false, true) {
						return serve(r)
					}
					refused.Store(true)
					if test.problem == "" {
						return answer(test.status, "not here", "Location: /login"), nil
					}
					return problem(test.status, test.problem), nil
				})
				w := worker(t, c, client.WorkerOptions{}, func(ctx context.Context, _ *client.Delivery) error {
					pause(ctx, 15*time.Second)
					return nil
				})
				err := w.Run(t.Context())
				p := (*client.Problem)(nil)
				if !errors.As(err, &p) || test.want != nil && !errors.Is(err, test.want) || !refused.Load() {
					t.Errorf("got %v", err)
				}
				if s := w.Stats(); test.route == "/ack" != errors.Is(err, client.ErrUnsettled) || (s.Acked == 1) != (test.route != "/ack") {
					t.Errorf("got %v, %+v", err, s)
				}
			})
		})
	}
}

// A server that fails the checks of TLS still fails them after a wait.
func TestWorkerDistrusts(t *testing.T) {
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	server.StartTLS()
	defer server.Close()
	c := made(t, client.Options{URL: server.URL})
	w := worker(t, c, client.WorkerOptions{}, func(context.Context, *client.Delivery) error { return nil })
	check(t, "Run", w.Run(t.Context()), client.ErrUnreachable)
}

// A server that is away when the worker stops does not delay it for ever.
func TestWorkerStopsWithoutServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, faults := within(t, client.Options{})
		schedule(t, c, 3)
		w := worker(t, c, client.WorkerOptions{}, func(ctx context.Context, _ *client.Delivery) error { pause(ctx, time.Second); return nil })
		stop := run(t, w)
		synctest.Wait()
		set(faults, hang)
		from := time.Now()
		check(t, "Run", stop(), client.ErrUnsettled)
		if took := time.Since(from); took > 10*time.Second {
			t.Errorf("took %s", took)
		}
	})
}
