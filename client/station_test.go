package client_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

var quiet = slog.New(slog.DiscardHandler)

// A fault stands between client and server: it may have a request served or not, and answer
// differently.
type fault func(r *http.Request, serve through) (*http.Response, error)

// within runs a whole server in the test's bubble, where time is synthetic, and without
// connections. Its faults can be changed at any time.
func within(t *testing.T, o client.Options) (*client.Client, *tasks.Scheduler, *atomic.Pointer[fault]) {
	t.Helper()
	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	faults := &atomic.Pointer[fault]{}
	o.URL = "http://lapse.test"
	serve := func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		if r.Context().Err() != nil {
			return nil, r.Context().Err()
		}
		return w.Result(), nil
	}
	o.HTTPClient = &http.Client{Transport: through(func(r *http.Request) (*http.Response, error) {
		if f := faults.Load(); f != nil {
			return (*f)(r, serve)
		}
		return serve(r)
	})}
	c := made(t, o)
	t.Cleanup(func() {
		api.Close()
		if err := scheduler.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c, scheduler, faults
}

type through func(*http.Request) (*http.Response, error)

func (f through) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// set makes a fault the current one; nil for none.
func set(faults *atomic.Pointer[fault], f fault) {
	if f == nil {
		faults.Store(nil)
		return
	}
	faults.Store(&f)
}

// A station is a server over real connections, which can be restarted.
type station struct {
	t       testing.TB
	ledger  *memledger.Ledger
	address string
	end     func(crashed bool)
}

// newStation starts a server.
func newStation(t testing.TB) (*station, *client.Client) {
	s := &station{t: t, ledger: memledger.New(), address: "127.0.0.1:0"}
	s.start()
	t.Cleanup(func() { s.end(false) })
	return s, made(t, client.Options{URL: "http://" + s.address})
}

func (s *station) start() {
	s.t.Helper()
	scheduler, err := tasks.Open(context.Background(), s.ledger, tasks.Config{Log: quiet, Node: "n1"})
	if err != nil {
		s.t.Fatal(err)
	}
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Log: quiet})
	if err != nil {
		s.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = listener.Addr().String()
	server := api.HTTPServer()
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	s.end = func(crashed bool) {
		_ = server.Close() // connections break off
		if err := scheduler.Close(context.Background()); err != nil && !crashed {
			s.t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			s.t.Error(err)
		}
	}
}

// restart ends the server with all its connections, and starts it again.
func (s *station) restart() {
	s.t.Helper()
	s.end(false)
	s.start()
}

// crash does so without any clean-up.
func (s *station) crash() {
	s.t.Helper()
	old := s.ledger
	s.ledger = old.Reopen()
	old.Crash()
	s.end(true)
	s.start()
}

// worker makes a worker of topic x.
func worker(t testing.TB, c *client.Client, o client.WorkerOptions, h client.Handler) *client.Worker {
	t.Helper()
	if o.Log == nil {
		o.Log = quiet
	}
	w, err := client.NewWorker(c, "x", h, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// run starts a worker. The function that it returns stops it and says what Run has returned.
func run(t testing.TB, w *client.Worker) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(cancel)
	return func() error { cancel(); return <-done }
}

// schedule puts n tasks into topic x, which are due at once: "0" and so on.
func schedule(t testing.TB, c *client.Client, n int) {
	t.Helper()
	for from := 0; from < n; from += 5000 {
		batch := make([]client.Request, min(5000, n-from))
		for i := range batch {
			batch[i] = client.Request{ID: name(from + i), Topic: "x"}
		}
		results, err := c.ScheduleBatch(t.Context(), batch)
		check(t, "ScheduleBatch", err, nil)
		for _, r := range results {
			if r.Problem != nil {
				t.Fatal(r.Problem)
			}
		}
	}
}

// eventually waits until ok, asking again and again.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	over := time.NewTimer(time.Hour) // of synthetic time, mostly
	defer over.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-over.C:
			t.Fatal("it never came about that " + what)
		}
	}
}

// finished waits until the server has no unfinished task but dead ones, and cannot find one in its
// replay.
func finished(t testing.TB, c *client.Client) {
	t.Helper()
	eventually(t, "all tasks were finished", func() bool {
		s, err := c.Stats(context.Background())
		return err == nil && s.State.Ready && s.Total.Pending+s.Total.Ready+s.Total.Delivering == 0
	})
}
