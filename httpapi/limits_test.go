package httpapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// pipes is a listener whose connections are pipes, which know fake time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A wire is the client's end of a connection to a server in fake time.
type wire struct {
	net.Conn
	t       *testing.T
	answers *bufio.Reader
	api     *Server
}

// slowly runs a test against a server in fake time.
func slowly(t *testing.T, test func(w *wire, s *tasks.Scheduler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.DiscardHandler)
		scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		api, err := New(Config{Scheduler: scheduler, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		server := api.HTTPServer()
		p := &pipes{make(chan net.Conn), make(chan struct{})}
		served := make(chan error, 1)
		go func() { served <- server.Serve(p) }()
		ours, theirs := net.Pipe()
		p.conns <- theirs
		test(&wire{ours, t, bufio.NewReader(ours), api}, scheduler)
		ours.Close()
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		if err := scheduler.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func (w *wire) say(text string) {
	w.t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		w.t.Fatal(err)
	}
}

// closedAfter checks that the server closes the connection, and when.
func (w *wire) closedAfter(d time.Duration) {
	w.t.Helper()
	began := time.Now()
	if rest, err := io.ReadAll(w.answers); err != nil || len(rest) > 0 {
		w.t.Errorf("read %q, %v", rest, err)
	}
	if took := time.Since(began); took < d || took > d+2*time.Second {
		w.t.Errorf("closed after %v, want %v", took, d)
	}
}

func (w *wire) answer() (status int, v map[string]any) {
	w.t.Helper()
	a, err := http.ReadResponse(w.answers, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer a.Body.Close()
	if err := json.NewDecoder(a.Body).Decode(&v); err != nil {
		w.t.Fatal(err)
	}
	return a.StatusCode, v
}

func TestSlowHeader(t *testing.T) {
	slowly(t, func(w *wire, _ *tasks.Scheduler) {
		w.say("GET /v1/stats HTTP/1.1\r\nHost: x\r\n")
		w.closedAfter(headerTimeout)
	})
	slowly(t, func(w *wire, _ *tasks.Scheduler) { w.closedAfter(headerTimeout) }) // says nothing
}

// A sender of one byte every second cannot keep a connection for ever.
func TestSlowBody(t *testing.T) {
	slowly(t, func(w *wire, s *tasks.Scheduler) {
		began := time.Now()
		w.say("POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
		over := make(chan struct{})
		go func() {
			defer close(over)
			for {
				if _, err := io.WriteString(w, " "); err != nil {
					return
				}
				time.Sleep(time.Second) // fake
			}
		}()
		status, v := w.answer()
		if took := time.Since(began); status != 408 || v["type"] != "/problems/too_slow" || took != bodyTimeout {
			t.Errorf("after %v it is answered %d %v", took, status, v)
		}
		w.closedAfter(0)
		<-over
		if n := s.Stats().Total.Scheduled; n != 0 {
			t.Errorf("%d were scheduled", n)
		}
	})
}

// A caller that does not read its answer is cut off.
func TestSlowReader(t *testing.T) {
	slowly(t, func(w *wire, s *tasks.Scheduler) {
		payload := []byte(`"` + strings.Repeat("x", 60<<10) + `"`)
		if _, err := s.Schedule(context.Background(), tasks.Request{ID: "a", Topic: "t", Delay: time.Hour, Payload: payload}); err != nil {
			t.Error(err)
		}
		w.say("GET /v1/tasks/a HTTP/1.1\r\nHost: x\r\n\r\n")
		time.Sleep(writeTimeout + time.Second) // fake
		if text, err := io.ReadAll(w.answers); err != nil || len(text) > 60<<10 {
			t.Errorf("read %d bytes of the answer, %v", len(text), err)
		}
	})
}

// A long-poll and an idle connection are no slowness, within their own limits.
func TestLongPollsAndIdleness(t *testing.T) {
	slowly(t, func(w *wire, _ *tasks.Scheduler) {
		const poll = `{"wait":"60s"}`
		for range 2 {
			began := time.Now()
			w.say("POST /v1/topics/t/reserve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n" + poll)
			if status, _ := w.answer(); status != 200 || time.Since(began) != time.Minute {
				t.Errorf("after %v it is answered %d", time.Since(began), status)
			}
			time.Sleep(idleTimeout - time.Second) // fake
		}
		w.say("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
		if status, _ := w.answer(); status != 200 {
			t.Errorf("answered %d", status)
		}
		w.closedAfter(idleTimeout)
	})
}

func TestLargeHeader(t *testing.T) {
	r := newRig(t)
	if a := r.do("GET", "/healthz", "", "X-Large: "+strings.Repeat("x", maxHeaderBytes+8<<10)); a.status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("answered %d", a.status)
	}
}

// The id of a request stands in every problem, wherever it was made.
func TestProblemsNameTheRequest(t *testing.T) {
	log := make(lines, 10)
	r := guarded(t, Config{Log: slog.New(log)})
	broken := route{id: "broken", allow: readers, method: "GET", path: "/v1/broken", summary: "Fail"}
	add(r.api.newAPI(r.api.engine), broken, func(context.Context, *struct{}) (*struct{}, error) { return nil, errors.New("disk secret") })
	for path, status := range map[string]int{
		"/v1/tasks/none": 404, "/v1/none": 404, "/v1/tasks?limit=0": 422, "/v1/topics/t/reserve": 405, "/v1/broken": 500,
	} {
		a := r.do("GET", path, "", bearer("admin"), "X-Request-Id: mine")
		if v := r.want(a, status); v["request_id"] != "mine" || a.header.Get("X-Request-Id") != "mine" {
			t.Errorf("%s is answered %s", path, a.body)
		}
		if strings.Contains(string(a.body), "secret") {
			t.Errorf("%s tells %s", path, a.body)
		}
		if status != 500 {
			<-log
			continue
		}
		if line := <-log; !strings.Contains(line, "request_id=mine operation=broken error=disk secret") {
			t.Errorf("the log has %q", line)
		}
		<-log
	}
	if v := r.want(r.do("GET", "/v1/stats", ""), 401); len(v["request_id"].(string)) != 16 {
		t.Errorf("answered %v", v)
	}
}

// A body that is announced and never sent, to a request that is answered before it is read, delays
// neither the answer nor the end of the connection.
func TestUnsentBody(t *testing.T) {
	for name, request := range map[string]string{
		"refused":      "POST /v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n",
		"no route":     "POST /v1/none HTTP/1.1\r\nHost: x\r\n",
		"body ignored": "GET /v1/topics HTTP/1.1\r\nHost: x\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			slowly(t, func(w *wire, _ *tasks.Scheduler) {
				began := time.Now()
				cut := time.AfterFunc(time.Hour, func() { w.Close() }) // fake
				defer cut.Stop()
				w.say(request + "Content-Length: 1000\r\n\r\n")
				w.answer()
				if took := time.Since(began); took > 0 {
					t.Errorf("answered after %v", took)
				}
				_, _ = io.ReadAll(w.answers)
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("the connection was held for %v", took)
				}
			})
		})
	}
}
