package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/internal/runtest"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(loadVariable); url != "" {
		loadMain(url) // a process of BenchmarkHTTPSingle
	}
	runtest.AtOnce(4)
	goleak.VerifyTestMain(m)
}

// A rig is a server over a real scheduler and a real connection.
type rig struct {
	testing.TB
	api       *Server
	scheduler *tasks.Scheduler
	server    *http.Server
	url       string
	client    *http.Client
}

func newRig(t testing.TB) *rig { return newRigWith(t, tasks.Config{}, Config{}) }

// slowMachine is the time for answers of a ledger that never hangs, on a machine that does.
const slowMachine = 20 * time.Second

func newRigWith(t testing.TB, tc tasks.Config, hc Config) *rig {
	t.Helper()
	tc.AnswerWithin = cmp.Or(tc.AnswerWithin, slowMachine)
	return newRigOn(t, memledger.New(), tc, hc)
}

func newRigOn(t testing.TB, ledger recovery.Ledger, tc tasks.Config, hc Config) *rig {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	tc.Log = quiet
	scheduler, err := tasks.Open(t.Context(), ledger, tc)
	if err != nil {
		t.Fatal(err)
	}
	hc.Scheduler = scheduler
	if hc.Log == nil {
		hc.Log = quiet
	}
	api, err := New(hc)
	if err != nil {
		t.Fatal(err)
	}
	r := serve(t, api)
	r.scheduler = scheduler
	t.Cleanup(func() {
		if err := scheduler.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// waitFor polls for up to 10 s until something is so.
func (r *rig) waitFor(what string, done func() bool) {
	r.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(10 * time.Second); !done(); {
		select {
		case <-tick.C:
		case <-late:
			r.Fatalf("waiting in vain until %s", what)
		}
	}
}

// serve starts a server. What it starts ends before what was cleaned up earlier.
func serve(t testing.TB, api *Server) *rig {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{TB: t, api: api, server: api.HTTPServer(), url: "http://" + listener.Addr().String(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(listener) }()
	t.Cleanup(func() {
		r.client.CloseIdleConnections()
		if err := r.server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return r
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

// do sends a request and reads the answer. A body means JSON unless a header
// says otherwise; headers are "Name: value", and "Name:" takes one away.
func (r *rig) do(method, path, body string, headers ...string) answer {
	r.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	q, err := http.NewRequestWithContext(context.Background(), method, r.url+path, reader)
	if err != nil {
		r.Fatal(err)
	}
	if body != "" {
		q.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		if q.Header.Del(name); value != "" {
			q.Header.Set(name, strings.TrimSpace(value))
		}
	}
	return r.send(q)
}

func (r *rig) send(q *http.Request) answer {
	r.Helper()
	a, err := r.client.Do(q)
	if err != nil {
		r.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		r.Fatal(err)
	}
	return answer{a.StatusCode, a.Header, text}
}

// want checks the status and returns the answer's body as JSON.
func (r *rig) want(a answer, status int) map[string]any {
	r.Helper()
	if a.status != status {
		r.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if len(a.body) == 0 {
		return nil
	}
	var v map[string]any
	if err := json.Unmarshal(a.body, &v); err != nil {
		r.Fatalf("%v in %s", err, a.body)
	}
	return v
}

// refused checks that an answer is a complete problem document of this type, and
// that one of its errors names the field, if there is one.
func (r *rig) refused(a answer, status int, kind, field string) {
	r.Helper()
	var p Problem
	if err := json.Unmarshal(a.body, &p); err != nil {
		r.Fatalf("status %d: %v in %s", a.status, err, a.body)
	}
	if got := a.header.Get("Content-Type"); got != problemMedia {
		r.Errorf("Content-Type %q", got)
	}
	if a.status != status || p.Status != status || p.Type != problemBase+kind || p.Title == "" {
		r.Errorf("status %d, want %d and type %s: %s", a.status, status, kind, a.body)
	}
	for _, e := range p.Errors {
		if e.Field == field && e.Problem != "" {
			return
		}
	}
	if field != "" {
		r.Errorf("no error names %q: %s", field, a.body)
	}
}

// reserve takes n ready tasks of a topic.
func (r *rig) reserve(topic, body string, n int) []any {
	r.Helper()
	v := r.want(r.do("POST", "/v1/topics/"+topic+"/reserve", body), 200)
	list := v["tasks"].([]any)
	if len(list) != n {
		r.Fatalf("reserved %d tasks, want %d", len(list), n)
	}
	return list
}

func receiptOf(task any) string { return task.(map[string]any)["receipt"].(string) }

// empty checks that nothing was scheduled.
func (r *rig) empty() {
	r.Helper()
	if n := r.scheduler.Stats().Total.Scheduled; n != 0 {
		r.Errorf("%d tasks were scheduled", n)
	}
}
