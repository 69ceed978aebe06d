package client_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served starts a real server and returns a client of it.
func served(t testing.TB) *client.Client {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: quiet, Node: "n1", AnswerWithin: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Log: quiet, Version: "v0"})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := api.HTTPServer()
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	c := made(t, client.Options{URL: "http://" + listener.Addr().String()})
	t.Cleanup(func() {
		c.Close()
		if err := errors.Join(server.Shutdown(context.Background()), scheduler.Close(context.Background())); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return c
}

func made(t testing.TB, o client.Options) *client.Client {
	t.Helper()
	c, err := client.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// check fails the test unless err is want, or nil if that is nil.
func check(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("%s: got %v, want %v", what, err, want)
	}
}

// A wire answers requests in place of a connection.
type wire func(r *http.Request, body string) (*http.Response, error)

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
	}
	return w(r, string(body))
}

// over makes a client whose requests are answered by w.
func over(t testing.TB, o client.Options, w wire) *client.Client {
	t.Helper()
	o.URL, o.HTTPClient = "http://lapse.test", &http.Client{Transport: w}
	return made(t, o)
}

// answer is a response as it stands on the wire, headers being "Name: value".
func answer(status int, body string, headers ...string) *http.Response {
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	return r
}

// problem is a refusal with a Retry-After of a second.
func problem(status int, name string) *http.Response {
	return answer(status, `{"type":"/problems/`+name+`","title":"T"}`, "Retry-After: 1")
}
