package httpapi

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/edge"
)

// limited starts a server that has room for n connections. GET /hold sends to entered and answers
// when the test sends to hold.
func limited(t *testing.T, n int, log *slog.Logger) (r *rig, listener *edge.Connections, entered, hold chan struct{}) {
	t.Helper()
	api, err := newServer(Config{Log: log})
	if err != nil {
		t.Fatal(err)
	}
	api.attach(stub{})
	entered, hold = make(chan struct{}, 2), make(chan struct{})
	api.engine.GET("/hold", func(*gin.Context) {
		entered <- struct{}{}
		<-hold
	})
	api.engine.GET("/quick", func(*gin.Context) {})
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r = &rig{TB: t, api: api, server: api.HTTPServer(), url: inner.Addr().String()}
	listener = api.connections(r.server, edge.ConnectionLimits{Most: n, Log: log})
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(listener.Listener(inner)) }()
	t.Cleanup(func() {
		if err := r.server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return r, listener, entered, hold
}

// A line is one connection of a client.
type line struct {
	net.Conn
	t      *testing.T
	answer *bufio.Reader
}

func (r *rig) connect(t *testing.T) *line {
	t.Helper()
	return r.connectBy(t, new(net.Dialer))
}

// connectUnread makes a connection that receives only a few kilobytes before the client reads. The
// buffer is bounded before the handshake. If it shrank afterwards, the client's system would
// discard what no longer fits, together with the acknowledgements in it, and would stall.
func (r *rig) connectUnread(t *testing.T) *line {
	t.Helper()
	return r.connectBy(t, &net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var refused error
		err := c.Control(func(fd uintptr) {
			refused = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
		})
		return cmp.Or(err, refused)
	}})
}

func (r *rig) connectBy(t *testing.T, d *net.Dialer) *line {
	t.Helper()
	c, err := d.DialContext(t.Context(), "tcp", r.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &line{c, t, bufio.NewReader(c)}
}

func (l *line) ask(path string) {
	l.t.Helper()
	if _, err := l.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		l.t.Fatal(err)
	}
}

func (l *line) answered() {
	l.t.Helper()
	a, err := http.ReadResponse(l.answer, nil)
	if err != nil {
		l.t.Fatal(err)
	}
	a.Body.Close()
	if a.StatusCode != 200 {
		l.t.Errorf("answered %d", a.StatusCode)
	}
}

// rested waits until the server has noticed that n connections are idle.
func rested(t *testing.T, c *edge.Connections, n int) {
	t.Helper()
	for t.Context().Err() == nil && c.Counts().Idle != n {
		runtime.Gosched()
	}
}

// unreadBy waits until n connections have been blocked in a write for long enough to give way.
func unreadBy(t *testing.T, c *edge.Connections, n int) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	over := time.After(answerTimeout)
	for have := -1; have != n; have = c.Counts().Unread {
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("%d connections are blocked in a write, want %d", have, n)
		}
	}
}

// A connection too many waits until another one is closed, and is answered then.
func TestConnectionsBeyondTheLimitWait(t *testing.T) {
	log := make(lines, 10)
	r, _, entered, hold := limited(t, 2, slog.New(log))
	a, b := r.connect(t), r.connect(t)
	a.ask("/hold")
	b.ask("/hold")
	<-entered
	<-entered
	c := r.connect(t)
	c.ask("/quick")
	if text := <-log; text != "all connections are in use; others wait limit=2" {
		t.Errorf("the log has %q", text)
	}
	hold <- struct{}{} // one of the two is answered, and idle: it gives way
	c.answered()
	hold <- struct{}{}
}

// A new connection takes the place of the connection that has been idle for the longest time.
func TestIdleConnectionsGiveWay(t *testing.T) {
	r, listener, _, _ := limited(t, 2, slog.New(slog.DiscardHandler))
	a, b := r.connect(t), r.connect(t)
	a.ask("/quick")
	a.answered()
	b.ask("/quick")
	b.answered()
	rested(t, listener, 2)
	a.ask("/quick") // now b has been idle longer
	a.answered()
	for range 3 {
		rested(t, listener, 2)
		c := r.connect(t)
		c.ask("/quick")
		c.answered()
		rested(t, listener, 2)
		a.ask("/quick") // now c has
		a.answered()
		rested(t, listener, 2)
	}
	if _, err := b.answer.Peek(1); err == nil {
		t.Error("the idle connection was kept")
	}
	a.ask("/quick")
	a.answered()
}

// The server stops although a connection waits for a place.
func TestShutdownAtTheLimit(t *testing.T) {
	log := make(lines, 10)
	r, _, entered, hold := limited(t, 1, slog.New(log))
	a, b := r.connect(t), r.connect(t)
	a.ask("/hold")
	<-entered
	b.ask("/quick")
	<-log // b waits
	r.server.RegisterOnShutdown(sync.OnceFunc(func() { close(hold) }))
	if err := r.server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	a.answered()
	if _, err := b.answer.Peek(1); err == nil {
		t.Error("a request was answered after the shutdown")
	}
}

// At the limit, a connection whose request stays incomplete gives way. The idle connections of
// callers that complete their requests do not.
func TestUnfinishedRequestsGiveWay(t *testing.T) {
	r, listener, _, _ := limited(t, 4, slog.New(slog.DiscardHandler))
	good := r.connect(t)
	good.ask("/quick")
	good.answered()
	rested(t, listener, 1)
	slow := []string{"", "GET /quick HTTP/1.1\r\n", "POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{"}
	var strangers []*line
	for _, said := range slow {
		s := r.connect(t)
		if _, err := s.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		strangers = append(strangers, s)
	}
	for range slow {
		l := r.connect(t)
		l.ask("/quick")
		l.answered()
	}
	for i, s := range strangers {
		if _, err := s.answer.Peek(1); err == nil {
			t.Errorf("%q was kept", slow[i])
		}
	}
	good.ask("/quick")
	good.answered()
	if n := r.api.Refusals()["unfinished"]; n != int64(len(slow)) {
		t.Errorf("%d connections are counted, want %d", n, len(slow))
	}
}

// At the limit, connections whose callers do not read their answers give way. The idle connections
// of the others do not.
func TestUnreadAnswersGiveWay(t *testing.T) {
	const strangers = 4
	r, listener, _, _ := limited(t, strangers+1, slog.New(slog.DiscardHandler))
	good := r.connect(t)
	good.ask("/quick")
	good.answered()
	requests := strings.Repeat("GET /problems/overloaded HTTP/1.1\r\nHost: x\r\nX-Pad: "+strings.Repeat("y", 4200)+"\r\n\r\n", 1000)
	for range strangers {
		l := r.connectUnread(t)
		go func() {
			for err := error(nil); err == nil; {
				_, err = l.Write([]byte(requests))
			}
		}()
	}
	unreadBy(t, listener, strangers)
	var callers []*line
	for range strangers - 1 {
		l := r.connect(t)
		l.ask("/quick")
		l.answered()
		callers = append(callers, l)
	}
	for _, l := range append(callers, good) {
		l.ask("/quick")
		l.answered()
	}
	if n := r.api.Refusals()["unread"]; n != strangers-1 {
		t.Errorf("%d connections are counted, want %d", n, strangers-1)
	}
}
