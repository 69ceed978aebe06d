package bench

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// small is a run of everything that takes a few seconds.
func small(dir, redis string) Options {
	return Options{
		Redis: redis, Dir: dir,
		Tasks: 500, Rates: []int{1000}, Duration: 50 * time.Millisecond, Callers: 8, Batch: 100,
		rest: time.Millisecond,
	}
}

// startRedis starts one with a key that the benchmark must leave alone.
func startRedis(t *testing.T) *redistest.Server {
	t.Helper()
	server := redistest.Start(t)
	server.Do("set", "lapse:dataset", "kept")
	return server
}

func nothingLeft(t *testing.T, dir string, redis *redistest.Server) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
	if redis == nil {
		return
	}
	if redis.Do("dbsize") != int64(1) || redis.Do("get", "lapse:dataset") != "kept" {
		t.Errorf("left in Redis: %v", redis.Do("keys", "*"))
	}
}

func checkResult(t *testing.T, x *Result) {
	t.Helper()
	name := strings.Join([]string{x.Workload, x.System, x.Ledger}, " ")
	if x.Broken() || x.Repeated > 0 {
		t.Errorf("%s: %+v", name, x.Faults)
	}
	n := int64(x.Tasks)
	switch x.Workload {
	case "single", "batch":
		if requests := n / int64(x.Batch); x.Answers == nil || x.Answers.Count != requests || x.TasksPerSecond <= 0 {
			t.Errorf("%s: %+v of %d requests", name, x.Answers, requests)
		}
	case "burst", "steady":
		if x.Lateness == nil || x.Lateness.Count != n || x.TasksPerSecond <= 0 {
			t.Errorf("%s: %+v of %d tasks", name, x.Lateness, n)
		}
	case "memory":
		if x.Memory == nil || x.Memory.ResidentMB <= 0 {
			t.Errorf("%s: %+v", name, x.Memory)
		}
	case "restart":
		if f := x.Restart; f == nil || f.Ready <= 0 || f.FirstOverdue <= 0 || f.AllOverdue < f.FirstOverdue {
			t.Errorf("%s: %+v", name, x.Restart)
		}
	}
}

// Every workload on every ledger, embedded and over HTTP, keeps every promise and
// leaves nothing behind.
func TestRun(t *testing.T) {
	for name, overHTTP := range map[string]bool{"embedded": false, "http": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis, dir := startRedis(t), t.TempDir()
			o := small(dir, redis.URL())
			o.HTTP = overHTTP
			r, err := Run(t.Context(), o)
			if err != nil || !r.Whole || r.Err() != nil {
				t.Fatal(err, r.Err())
			}
			want := len(Workloads)*len(Ledgers) - 1 // no restart on memory
			if len(r.Results) != want {
				t.Errorf("%d results, want %d", len(r.Results), want)
			}
			for i := range r.Results {
				checkResult(t, &r.Results[i])
			}
			if r.Redis == "" || r.Machine.Cores == 0 {
				t.Errorf("facts: %+v", r)
			}
			nothingLeft(t, dir, redis)
			var text bytes.Buffer
			r.Print(&text)
			for _, w := range append([]string{"lateness, burst", "due/s"}, Workloads...) {
				if !strings.Contains(text.String(), w) {
					t.Errorf("%s is not printed", w)
				}
			}
			if t.Failed() {
				t.Log(text.String())
			}
		})
	}
}

// runServer runs a server with a task that the benchmark must leave alone.
func runServer(t *testing.T) *ownServer {
	t.Helper()
	s, err := Memory().HTTP(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	own := s.(*ownServer)
	if _, err := own.scheduler.scheduler.Schedule(t.Context(), tasks.Request{ID: "theirs", Topic: "theirs", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	return own
}

func onlyTheirs(t *testing.T, s *ownServer) {
	t.Helper()
	page, err := s.scheduler.scheduler.List(t.Context(), tasks.Query{})
	if err != nil || len(page.Tasks) != 1 || page.Tasks[0].ID != "theirs" {
		t.Errorf("on the server are %d tasks: %v", len(page.Tasks), err)
	}
}

// A running server keeps the tasks that it had, and no others.
func TestRunOnServer(t *testing.T) {
	t.Parallel()
	server := runServer(t)
	o := small("", "")
	o.Server = server.url + "/"
	r, err := Run(t.Context(), o)
	if err != nil || r.Err() != nil {
		t.Fatal(err, r.Err())
	}
	if len(r.Results) != 4 {
		t.Errorf("%d results, want 4", len(r.Results))
	}
	for i := range r.Results {
		checkResult(t, &r.Results[i])
	}
	onlyTheirs(t, server)
}

// An interrupted run reports its figures, and removes what it made, whichever workload it was at.
func TestInterrupted(t *testing.T) {
	for _, workload := range Workloads {
		for _, ledger := range []string{"disk", "redis", "server"} {
			if ledger == "server" && (workload == "memory" || workload == "restart") {
				continue
			}
			t.Run(workload+" "+ledger, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				o := small(dir, "")
				o.Workloads, o.Tasks, o.Rates, o.Duration = []string{workload}, 10_000_000, []int{100_000}, time.Hour
				var redis *redistest.Server
				var server *ownServer
				switch ledger {
				case "server":
					server = runServer(t)
					o.Server = server.url
				case "redis":
					redis = startRedis(t)
					o.Redis = redis.URL()
					fallthrough
				default:
					o.Ledgers = []string{ledger}
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				o.Progress = started(func() { time.AfterFunc(200*time.Millisecond, cancel) })
				r, err := Run(ctx, o)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("want to be interrupted: %v", err)
				}
				if r == nil || r.Whole {
					t.Errorf("report: %+v", r)
				}
				nothingLeft(t, dir, redis)
				if server != nil {
					onlyTheirs(t, server)
				}
			})
		}
	}
}

// started calls f when the first workload begins.
func started(f func()) io.Writer {
	once := sync.OnceFunc(f)
	return writer(func(p []byte) (int, error) {
		if !bytes.HasPrefix(p, []byte("redis:")) {
			once()
		}
		return len(p), nil
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// A server without the call to purge a topic is cleared task by task.
func TestClearWithoutPurge(t *testing.T) {
	server := runServer(t)
	s, err := openHTTP(t.Context(), server.url, "", "bench-x")
	if err != nil {
		t.Fatal(err)
	}
	s.client.Transport = noPurge{s.client.Transport}
	due := far(time.Now())
	b := &bout{s: s, l: Load{Callers: 4, Batch: 100, Payload: MinPayload}}
	if err := b.fill(t.Context(), 0, 2500, due); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s.client.Transport.(noPurge).CloseIdleConnections()
	onlyTheirs(t, server)
}

type noPurge struct{ http.RoundTripper }

func (n noPurge) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodDelete && strings.HasSuffix(q.URL.Path, "/tasks") {
		return &http.Response{StatusCode: http.StatusMethodNotAllowed, Body: http.NoBody, Request: q}, nil
	}
	return n.RoundTripper.RoundTrip(q)
}

func (n noPurge) CloseIdleConnections() { n.RoundTripper.(*http.Transport).CloseIdleConnections() }

// A system that cannot be reached is an error, and no panic.
func TestUnreachable(t *testing.T) {
	o := small(t.TempDir(), "redis://127.0.0.1:1")
	if r, err := Run(t.Context(), o); err == nil || r == nil {
		t.Errorf("Redis: %v, %v", r, err)
	}
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	o = small("", "")
	o.Server = other.URL
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("another kind of server: %v", err)
	}
	o.Server = "http://127.0.0.1:1"
	if r, err := Run(t.Context(), o); err == nil || r == nil {
		t.Errorf("server: %v, %v", r, err)
	}
}
