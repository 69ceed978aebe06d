package webhook

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// counting counts the connections that a receiver gets.
func counting(t *testing.T, h http.HandlerFunc) (s *httptest.Server, connections *atomic.Int64) {
	t.Helper()
	connections = new(atomic.Int64)
	s = httptest.NewUnstartedServer(h)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s, connections
}

// Connections are used again, whatever the answer was, up to a body of 64 KiB.
func TestConnectionsAreKept(t *testing.T) {
	var status atomic.Int64
	s, connections := counting(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(int(status.Load()))
		_, _ = io.WriteString(w, strings.Repeat("x", 60<<10))
	})
	w := newWay(t, here)
	one, other := to(t, w, s.URL+"/one"), to(t, w, s.URL+"/other")
	for i := range 20 {
		status.Store([]int64{200, 404, 500, 429, 302, 410}[i%6])
		_ = one.Deliver(t.Context(), order("{}"))
		_ = other.Deliver(t.Context(), order("{}"))
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// As many as are needed at once are kept, too.
func TestConnectionsOfManyAtOnce(t *testing.T) {
	const many, rounds = 64, 10
	var round sync.WaitGroup
	s, connections := counting(t, func(http.ResponseWriter, *http.Request) { round.Done(); round.Wait() })
	w := newWay(t, here)
	d := to(t, w, s.URL)
	for range rounds {
		round.Add(many)
		var done sync.WaitGroup
		for range many {
			done.Go(func() {
				if err := d.Deliver(t.Context(), order("{}")); err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
	}
	if n := connections.Load(); n > many+many/4 {
		t.Errorf("%d connections for %d at once", n, many)
	}
}

// An attempt is one request, even if a kept connection breaks and the task has a header that
// would let the transport try once more.
func TestConnectionThatBreaks(t *testing.T) {
	var count atomic.Int64
	s, _ := counting(t, func(w http.ResponseWriter, r *http.Request) {
		if count.Add(1)%2 == 0 {
			panic(http.ErrAbortHandler)
		}
	})
	w := newWay(t, here)
	d := to(t, w, s.URL)
	task := order("{}")
	task.Headers = map[string]string{"idempotency-key": "k", "x-idempotency-key": "k"}
	for range 10 {
		_ = d.Deliver(t.Context(), task)
	}
	if tally := w.Tally(); count.Load() != 10 || tally["2xx"] != 5 || tally["broken"] != 5 {
		t.Errorf("%d requests, %v", count.Load(), tally)
	}
}

// Close may be called twice. Nothing is sent afterwards.
func TestClose(t *testing.T) {
	s, connections := counting(t, func(http.ResponseWriter, *http.Request) {})
	w := newWay(t, here)
	d := to(t, w, s.URL)
	if err := d.Deliver(t.Context(), order("{}")); err != nil {
		t.Error(err)
	}
	w.Close()
	w.Close()
	if err := d.Deliver(t.Context(), order("{}")); err == nil {
		t.Error("it is delivered")
	}
	if n, tally := connections.Load(), w.Tally(); n != 1 || tally["stopped"] != 1 {
		t.Errorf("%d connections, %v", n, tally)
	}
}

// Connections that a server does not answer are given up soon after the attempts that needed them:
// a topic whose attempts are short must not pile them up.
func TestDialsDoNotPileUp(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	stuck := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		<-release
		return nil, net.ErrClosed
	}}
	w := newWay(t, Config{Resolver: stuck})
	d := to(t, w, "http://shop.test/", "timeout", "100ms")
	ended := make(chan error, 1)
	transport := w.connections.at(time.Now())
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		ended <- err
		return c, err
	}
	_ = d.Deliver(t.Context(), order("{}"))
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it connected")
		}
	case <-time.After(20 * time.Second): // the dialer's own bound is longer
		w.Close()
		t.Errorf("the dial outlasts the attempt: %v", <-ended)
	}
}

// A host that moves is found at its new address, however busy its connections are.
func TestHostMoves(t *testing.T) {
	n := newNames(t, map[string][]string{"shop.test": {"127.0.0.2"}})
	old, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skip("this machine has no 127.0.0.2:", err)
	}
	port := old.Addr().(*net.TCPAddr).Port
	moved, err := net.Listen("tcp", fmt.Sprintf("127.0.0.3:%d", port))
	if err != nil {
		t.Skip("the port is taken at 127.0.0.3:", err)
	}
	var atOld, atNew atomic.Int64
	for l, count := range map[net.Listener]*atomic.Int64{old: &atOld, moved: &atNew} {
		served := http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { count.Add(1) })}
		done := make(chan struct{})
		go func() { defer close(done); _ = served.Serve(l) }()
		t.Cleanup(func() { served.Close(); <-done })
	}
	w := newWay(t, Config{Allow: []string{"127.0.0.2", "127.0.0.3"}, Resolver: n.resolver()})
	d := to(t, w, fmt.Sprintf("http://shop.test:%d", port))
	deliver := func() {
		t.Helper()
		if err := d.Deliver(t.Context(), order("{}")); err != nil {
			t.Fatal(err)
		}
	}
	deliver()
	n.set("shop.test", "127.0.0.3")
	deliver()
	if atOld.Load() != 2 || atNew.Load() != 0 {
		t.Errorf("%d requests to the old address, %d to the new one: no connection is kept", atOld.Load(), atNew.Load())
	}
	w.connections.mu.Lock()
	w.connections.since = w.connections.since.Add(-usedFor)
	w.connections.mu.Unlock()
	deliver()
	if atOld.Load() != 2 || atNew.Load() != 1 {
		t.Errorf("%d requests to the old address, %d to the new one", atOld.Load(), atNew.Load())
	}
}
