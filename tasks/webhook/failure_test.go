package webhook

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// failsAs makes one attempt and checks its outcome.
func failsAs(t *testing.T, w *Way, url, outcome, said string, fields ...any) {
	t.Helper()
	err := to(t, w, url, fields...).Deliver(t.Context(), order("{}"))
	if err == nil || !strings.Contains(err.Error(), said) {
		t.Errorf("the error is %v, want one with %q", err, said)
	}
	w.counted(t, outcome)
}

// speak accepts connections and handles each with f, which then are closed.
func speak(t *testing.T, f func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func TestFailuresOfDNS(t *testing.T) {
	n := newNames(t, map[string][]string{"empty.test": {}})
	cfg := Config{Resolver: n.resolver()}
	failsAs(t, newWay(t, cfg), "http://nowhere.test", "dns", "no such host")
	failsAs(t, newWay(t, cfg), "http://empty.test", "dns", "no such host")
	n.mu.Lock()
	n.silent = true
	n.mu.Unlock()
	failsAs(t, newWay(t, cfg), "http://shop.test", "dns", "the host's name was not resolved after 150ms", "timeout", "150ms")
}

func TestFailuresToConnect(t *testing.T) {
	s := serve(t, nil)
	s.Close()
	failsAs(t, newWay(t, here), s.URL, "dial", "connection refused")
	// One address of several is enough.
	n := newNames(t, map[string][]string{"shop.test": {"127.0.0.3", "127.0.0.1"}})
	up := serve(t, func(http.ResponseWriter, *http.Request) {})
	w := newWay(t, Config{Allow: here.Allow, Resolver: n.resolver()})
	if err := to(t, w, strings.Replace(up.URL, "127.0.0.1", "shop.test", 1)).Deliver(t.Context(), order("{}")); err != nil {
		t.Error(err)
	}
}

// A connection that is never made is reported with its stage when time runs out.
func TestStages(t *testing.T) {
	for s, want := range map[stage]string{connected: "timeout", resolving: "dns", connecting: "dial", securing: "tls"} {
		r := &receiver{way: newWay(t, here), timeout: time.Second}
		o, err := r.failure(context.Background(), context.DeadlineExceeded, s)
		if outcomeNames[o] != want || !strings.HasSuffix(err.Error(), "after 1s") {
			t.Errorf("%d: %s, %v", s, outcomeNames[o], err)
		}
	}
}

func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("it came by %s", r.Proto)
		}
		body, _ := io.ReadAll(r.Body)
		if string(body) != "{}" || r.Header.Get("ce-id") != "order-42" || r.Header.Get("tenant") != "eu" {
			t.Errorf("got %q, %v", body, r.Header)
		}
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = serve(t, nil).Config.ErrorLog
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	cfg := here
	failsAs(t, newWay(t, cfg), s.URL, "tls", "certificate")
	cfg.RootCAs = roots
	w := newWay(t, cfg)
	d := to(t, w, s.URL)
	for range 3 {
		task := order("{}")
		task.Headers = map[string]string{"tenant": "eu"}
		if err := d.Deliver(t.Context(), task); err != nil {
			t.Error(err)
		}
	}
	n := newNames(t, map[string][]string{"other.test": {"127.0.0.1"}})
	cfg.Resolver = n.resolver()
	failsAs(t, newWay(t, cfg), strings.Replace(s.URL, "127.0.0.1", "other.test", 1), "tls", "certificate")

	plain := serve(t, nil)
	failsAs(t, newWay(t, here), strings.Replace(plain.URL, "http:", "https:", 1), "tls", "TLS: ")
	old := httptest.NewUnstartedServer(nil)
	old.TLS = &tls.Config{MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
	old.Config.ErrorLog = plain.Config.ErrorLog
	old.StartTLS()
	t.Cleanup(old.Close)
	failsAs(t, newWay(t, cfg), old.URL, "tls", "TLS: ")

	hold := make(chan struct{})
	silent := speak(t, func(net.Conn) { <-hold })
	t.Cleanup(func() { close(hold) }) // before the listener waits for it
	failsAs(t, newWay(t, here), "https://"+silent, "tls", "no TLS after 150ms", "timeout", "150ms")
}

func TestBrokenAnswers(t *testing.T) {
	for what, answer := range map[string]string{
		"nothing":      "",
		"no HTTP":      "220 smtp.example ready\r\n",
		"half":         "HTTP/1.1 200",
		"long headers": "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2*maxAnswerHead) + "\r\n\r\n",
	} {
		addr := speak(t, func(c net.Conn) {
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(c, answer)
			}
		})
		w := newWay(t, here)
		if err := to(t, w, "http://"+addr).Deliver(t.Context(), order("{}")); err == nil || len(err.Error()) > 300 {
			t.Errorf("%s: %v", what, err)
		}
		w.counted(t, "broken")
	}
}

// The status is the answer, whatever happens to the body.
func TestBodies(t *testing.T) {
	for what, c := range map[string]struct {
		status int
		body   func(w io.Writer, gone <-chan struct{})
	}{
		"cut": {200, func(w io.Writer, _ <-chan struct{}) {
			_, _ = io.WriteString(w, "x")
			panic(http.ErrAbortHandler)
		}},
		"endless": {200, func(w io.Writer, _ <-chan struct{}) {
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}},
		"trickling":                 {200, trickle},
		"trickling about a failure": {500, trickle},
	} {
		ended := make(chan struct{})
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			w.WriteHeader(c.status)
			w.(http.Flusher).Flush()
			c.body(w, r.Context().Done())
		})
		w := newWay(t, here)
		err := to(t, w, s.URL, "timeout", "10m").Deliver(t.Context(), order("{}"))
		if (err == nil) != (c.status == 200) || err != nil && !strings.HasPrefix(err.Error(), "answered 500 Internal Server Error: xx") {
			t.Errorf("%s: %v", what, err)
		}
		w.counted(t, map[int]string{200: "2xx", 500: "5xx"}[c.status])
		<-ended // the receiver sees that the sender has closed the connection
	}
}

// trickle writes a little at a time until the reader has gone.
func trickle(w io.Writer, gone <-chan struct{}) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, _ = io.WriteString(w, "x")
		w.(http.Flusher).Flush()
		select {
		case <-gone:
			return
		case <-tick.C:
		}
	}
}

func TestReceiverThatHangs(t *testing.T) {
	s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise a closed connection goes unnoticed
		<-r.Context().Done()
	})
	failsAs(t, newWay(t, here), s.URL, "timeout", "no answer after 100ms", "timeout", "100ms")

	lease, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	w := newWay(t, here)
	if err := to(t, w, s.URL).Deliver(lease, order("{}")); err == nil || err.Error() != "no answer when the lease ran out" {
		t.Errorf("got %v", err)
	}
	w.counted(t, "timeout")

	stopping, stop := context.WithCancel(t.Context())
	w = newWay(t, here)
	came := make(chan struct{})
	s2 := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(came)
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	go func() { <-came; stop() }()
	if err := to(t, w, s2.URL).Deliver(stopping, order("{}")); err == nil || err.Error() != "given up: the server stops" {
		t.Errorf("got %v", err)
	}
	w.counted(t, "stopped")
}

// An attempt that the end of the server keeps from being sent does not count.
func TestStoppedBeforeItIsSent(t *testing.T) {
	stopping, stop := context.WithCancel(t.Context())
	over := make(chan struct{})
	silent := speak(t, func(net.Conn) { stop(); <-over })
	t.Cleanup(func() { close(over) })
	w := newWay(t, here)
	if err := to(t, w, "https://"+silent).Deliver(stopping, order("{}")); !errors.Is(err, task.ErrNoReceiver) {
		t.Errorf("got %v", err)
	}
	w.counted(t, "stopped")
}
