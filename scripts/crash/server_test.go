//go:build fault

package crash

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// binary is the program under test.
var binary string

func TestMain(m *testing.M) {
	os.Exit(rig.WithProgram(func(path string) int {
		binary = path
		return m.Run()
	}))
}

// command is a call of the binary.
func command(args ...string) *exec.Cmd { return rig.Command(binary, args...) }

// A server is the binary on one data directory or one Redis, over all its runs.
type server struct {
	t        *testing.T
	node     string // its name
	data     string
	redis    *redistest.Server // nil: on disk
	url      string            // of Redis, as the server reaches it
	flags    []string          // more of them
	more     []string          // and those of the server itself, on either ledger
	wrap     []string          // a command that runs the binary, with its first arguments
	program  string            // the binary of another version; empty: the program under test
	patience time.Duration     // of its clients: any request is answered within it
	log      string            // a file for the output of all runs; empty: none

	mu      sync.Mutex    // guards run
	run     *run          // the latest
	started chan struct{} // closed and replaced when run changes
}

// A run is one process of a server.
type run struct {
	*rig.Process
	n      int
	node   string
	base   string // http://127.0.0.1:port
	health string // the same for probes, if the server has such an address
	http   *http.Client
	stderr *bytes.Buffer // to be read once Exited is closed
}

// newServer is not started yet, and keeps its tasks on disk. It is killed when the
// test is over.
func newServer(t *testing.T) *server {
	s := &server{t: t, node: "crash", data: filepath.Join(t.TempDir(), "data"), started: make(chan struct{})}
	s.patience = 75 * time.Second // longer than any long-poll
	t.Cleanup(func() {
		if r := s.latest(); r != nil {
			r.Kill()
			if t.Failed() {
				t.Logf("the last run of %s wrote:\n%s", s.node, tail(r.stderr.Bytes()))
			}
		}
	})
	return s
}

// onRedis is newServer on a Redis of its own, which writes to disk before it answers.
func onRedis(t *testing.T, options ...string) *server {
	redis := redistest.Start(t, append([]string{"appendonly yes", "appendfsync always"}, options...)...)
	s := newServer(t)
	s.redis, s.url = redis, redis.URL()
	return s
}

// onBoth runs a test on each kind of ledger.
func onBoth(t *testing.T, test func(t *testing.T, s *server)) {
	redis := func(t *testing.T) *server { return onRedis(t) }
	for name, with := range map[string]func(t *testing.T) *server{"Disk": newServer, "Redis": redis} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, with(t))
		})
	}
}

func (s *server) latest() *run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run
}

// after waits for a run that comes after run n. It returns nil once ctx is over.
func (s *server) after(ctx context.Context, n int) *run {
	for {
		s.mu.Lock()
		r, started := s.run, s.started
		s.mu.Unlock()
		if r != nil && r.n > n {
			return r
		}
		select {
		case <-started:
		case <-ctx.Done():
			return nil
		}
	}
}

// again waits a little and returns the run to go on with after one has given no
// answer, or answered 503: the same if its process lives.
func (s *server) again(ctx context.Context, r *run) *run {
	select {
	case <-r.Exited:
		return s.after(ctx, r.n)
	case <-time.After(50 * time.Millisecond): // sooner than Retry-After asks for
		return r
	case <-ctx.Done():
		return nil
	}
}

// start starts the process and returns once it has printed its address.
func (s *server) start() *run {
	s.t.Helper()
	r := &run{n: 1, node: s.node, stderr: &bytes.Buffer{}}
	if before := s.latest(); before != nil {
		r.n = before.n + 1
	}
	cmd := s.command()
	cmd.Stderr = r.stderr
	if s.log != "" {
		file, err := os.OpenFile(s.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			s.t.Fatal(err)
		}
		fmt.Fprintf(file, "\n== run %d of %s, %s\n", r.n, s.node, rig.Stamp(time.Now()))
		cmd.Stderr = io.MultiWriter(r.stderr, file)
		defer func() { go func() { <-r.Exited; file.Close() }() }()
	}
	addresses := 1
	if slices.Contains(s.more, "--health-listen") {
		addresses = 2
	}
	var err error
	if r.Process, err = rig.Serve(cmd, addresses); err != nil {
		s.t.Fatal(err)
	}
	if len(r.URLs) < addresses {
		<-r.Exited
		s.t.Fatalf("run %d did not start: %v\n%s", r.n, r.Cmd.ProcessState, tail(r.stderr.Bytes()))
	}
	if r.base = r.URLs[0]; addresses > 1 {
		r.health = r.URLs[1]
	}
	r.http = &http.Client{
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 64,
			TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // certificates are made by the tests
		},
		Timeout: s.patience,
	}
	s.mu.Lock()
	s.run = r
	close(s.started)
	s.started = make(chan struct{})
	s.mu.Unlock()
	return r
}

// command is one more process of the server.
func (s *server) command() *exec.Cmd {
	c := command(append([]string{"serve", "--listen", "127.0.0.1:0"}, append(s.where(), s.more...)...)...)
	if s.program != "" {
		c.Path, c.Args[0] = s.program, s.program
	}
	if len(s.wrap) > 0 {
		wrapped := exec.Command(s.wrap[0], append(slices.Clone(s.wrap[1:]), c.Args...)...)
		wrapped.Env = c.Env
		return wrapped
	}
	return c
}

// where returns the arguments that say where tasks are stored, and under which name.
func (s *server) where() []string {
	if s.url != "" {
		return append([]string{"--node", s.node, "--redis", s.url}, s.flags...)
	}
	return []string{"--node", s.node, "--data", s.data}
}

// kill ends the process without a chance to clean up.
func (s *server) kill() {
	s.t.Helper()
	r := s.latest()
	r.Kill()
	r.http.CloseIdleConnections()
	if status, ok := r.Cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		s.t.Errorf("run %d had ended by itself: %v\n%s", r.n, r.Cmd.ProcessState, tail(r.stderr.Bytes()))
	}
}

// ready waits until replay is over and returns how long that took.
func (r *run) ready(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	every(t, 2*time.Millisecond, time.Minute, func() bool {
		status, _, err := r.call(http.MethodGet, "/readyz", nil, nil)
		return err == nil && status == http.StatusOK
	})
	return time.Since(began)
}

// call sends a request, reads all of the answer and decodes it into answer,
// unless that is nil.
func (r *run) call(method, path string, body []byte, answer any) (int, Span, error) {
	span := Span{Node: r.node, Run: r.n, Start: time.Now()}
	status, data, err := r.exchange(method, path, body)
	span.End = time.Now()
	if err == nil && status < 300 && answer != nil {
		err = json.Unmarshal(data, answer)
	}
	return status, span, err
}

func (r *run) exchange(method, path string, body []byte) (int, []byte, error) {
	resp, err := r.send(method, path, body)
	if err != nil {
		return 0, nil, err
	}
	return resp.status, resp.body, nil
}

// A response is all of an answer.
type response struct {
	status int
	header http.Header
	body   []byte
}

// send sends a request and reads all of the answer.
func (r *run) send(method, path string, body []byte) (*response, error) {
	req, err := http.NewRequest(method, r.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	return &response{resp.StatusCode, resp.Header, data}, nil
}

// outcome is what a client may conclude from an answer.
func outcome(status int, err error) Outcome {
	switch {
	case err != nil || status >= 500:
		return Unknown
	case status >= 400:
		return Refused
	}
	return Done
}

// every calls yes once a period until it returns true, and fails the test after limit.
func every(t *testing.T, period, limit time.Duration, yes func() bool) {
	t.Helper()
	if !rig.Within(period, limit, yes) {
		t.Fatalf("still waiting after %s", limit)
	}
}

func tail(log []byte) []byte { return log[max(0, len(log)-4000):] }
