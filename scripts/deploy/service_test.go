//go:build unix

package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// watchdogPeriod is WatchdogSec of the tests. That of the unit would make them wait.
const watchdogPeriod = 3 * time.Second

// A supervisor does with the server what systemd does with a service of Type=notify: it listens at
// NOTIFY_SOCKET, aborts a process that has not fed its watchdog for WatchdogSec, and starts it
// again as Restart= and RestartPreventExitStatus= of the unit say.
type supervisor struct {
	t      *testing.T
	unit   unit
	env    []string
	url    string
	socket *net.UnixConn
	told   chan string // every message of the server
	ended  chan error  // the processes that have ended, with what was wrong
	log    syncLog

	mu      sync.Mutex // guards what follows
	process *os.Process
	fed     time.Time // zero until the process is ready: systemd does not watch it before
	starts  int
	aborted int
	stop    bool // the end of the process is no failure
}

// A syncLog is what the server has written to standard error.
type syncLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *syncLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *syncLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// supervise starts the server with these variables. The end of the test ends it.
func supervise(t *testing.T, env ...string) *supervisor {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	addr := redistest.FreeAddr(t)
	s := &supervisor{
		t: t, unit: readUnit(t), socket: socket, url: "http://" + addr,
		told: make(chan string, 1000), ended: make(chan error, 10),
		env: append([]string{
			"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=" + strconv.FormatInt(watchdogPeriod.Microseconds(), 10),
			"LAPSE_LISTEN=" + addr, "LAPSE_DATA=" + filepath.Join(dir, "data"),
		}, env...),
	}
	var running sync.WaitGroup
	running.Go(s.hear)
	over := make(chan struct{})
	s.start()
	running.Go(func() { s.watch(over) })
	t.Cleanup(func() {
		s.mu.Lock()
		s.stop = true
		_ = s.process.Kill()
		s.mu.Unlock()
		if err := <-s.ended; err != nil {
			t.Error(err)
		}
		close(over)
		socket.Close()
		running.Wait()
		if t.Failed() {
			t.Log(s.log.String())
		}
	})
	return s
}

// start starts a process, and waits for its end in a goroutine.
func (s *supervisor) start() {
	cmd := rig.Command(faultBinary(s.t), s.unit.command...)
	cmd.Env = append(cmd.Env, s.env...)
	cmd.Stderr = &s.log
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := cmd.Start(); err != nil {
		s.t.Error(err)
		s.ended <- err
		return
	}
	s.process, s.fed = cmd.Process, time.Time{}
	s.starts++
	go s.await(cmd)
}

// await starts the process again, if the unit says so.
func (s *supervisor) await(cmd *exec.Cmd) {
	err := cmd.Wait()
	s.mu.Lock()
	stop := s.stop
	s.mu.Unlock()
	if !stop && s.unit.startsAgain(cmd.ProcessState.ExitCode()) {
		s.start()
		return
	}
	if exit := (*exec.ExitError)(nil); stop && errors.As(err, &exit) {
		err = nil // the end of the test has killed it
	}
	s.ended <- err
}

// hear receives messages until the socket is closed.
func (s *supervisor) hear() {
	buf := make([]byte, 4096)
	for {
		n, err := s.socket.Read(buf)
		if err != nil {
			return
		}
		for line := range strings.Lines(string(buf[:n])) {
			line = strings.TrimSpace(line)
			if line == "WATCHDOG=1" || line == "READY=1" {
				s.mu.Lock()
				s.fed = time.Now()
				s.mu.Unlock()
			}
			select {
			case s.told <- line:
			default: // the test has stopped to look
			}
		}
	}
}

// watch aborts a process that is not fed. One that does not end by SIGABRT, as it is stopped, is
// killed, as after TimeoutAbortSec.
func (s *supervisor) watch(over <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		if !s.fed.IsZero() && time.Since(s.fed) > watchdogPeriod && !s.stop {
			s.fed = time.Now()
			s.aborted++
			_ = s.process.Signal(syscall.SIGABRT)
			if s.aborted > 1 {
				_ = s.process.Kill()
			}
		}
		s.mu.Unlock()
	}
}

// signal sends a signal to the process.
func (s *supervisor) signal(sig syscall.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// hears waits until the server has sent a line that begins so.
func (s *supervisor) hears(prefix string) string {
	s.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case line := <-s.told:
			if strings.HasPrefix(line, prefix) {
				return line
			}
		case <-deadline:
			s.t.Fatalf("the server does not send %s", prefix)
		}
	}
}

// call makes one request, and returns the status.
func (s *supervisor) call(method, path, body string) (status int, answer map[string]any) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = json.Unmarshal(text, &answer)
	return resp.StatusCode, answer
}

// accept schedules a task that is due at once. It is to be delivered by the process that follows.
func (s *supervisor) accept(id string) {
	s.t.Helper()
	if status, answer := s.call("POST", "/v1/tasks", fmt.Sprintf(`{"id":%q,"topic":"x","delay":"0s"}`, id)); status != http.StatusCreated {
		s.t.Fatalf("status %d: %v", status, answer)
	}
}

// delivers takes a task from the server.
func (s *supervisor) delivers(id string) {
	s.t.Helper()
	status, answer := s.call("POST", "/v1/topics/x/reserve", `{"wait":"20s"}`)
	if list, _ := answer["tasks"].([]any); status != http.StatusOK || len(list) != 1 || list[0].(map[string]any)["id"] != id {
		s.t.Errorf("status %d: %v", status, answer)
	}
}

// The server tells systemd when it answers, feeds the watchdog, and tells that it stops and how
// long that may take.
func TestNotify(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binary")
	}
	s := supervise(t)
	s.hears("READY=1")
	if status, answer := s.call("GET", "/healthz", ""); status != http.StatusOK {
		t.Errorf("after READY=1 /healthz is %d: %v", status, answer)
	}
	if line := s.hears("STATUS=serves"); !strings.HasSuffix(s.url, strings.TrimPrefix(line, "STATUS=serves as ")) {
		t.Errorf("%s, at %s", line, s.url)
	}
	for range 3 {
		s.hears("WATCHDOG=1")
	}
	s.signal(syscall.SIGTERM)
	s.hears("STOPPING=1")
	// answer_within and a second, shutdown_grace, the ledger.
	if line := s.hears("EXTEND_TIMEOUT_USEC="); line != "EXTEND_TIMEOUT_USEC=19000000" {
		t.Error(line)
	}
	err := <-s.ended
	s.ended <- nil // for the end of the test
	if err != nil || s.starts != 1 || s.aborted != 0 {
		t.Errorf("%v; %d starts, %d aborts", err, s.starts, s.aborted)
	}
}

// A server that waits for Redis counts as started, and as alive, as long as that takes.
func TestNotifyWithoutRedis(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binary")
	}
	s := supervise(t, "LAPSE_DATA=", "LAPSE_REDIS=redis://127.0.0.1:1")
	s.hears("READY=1")
	for range 8 { // two periods
		s.hears("WATCHDOG=1")
	}
	if status, answer := s.call("GET", "/readyz", ""); status != http.StatusServiceUnavailable || answer["starting"] != true {
		t.Errorf("/readyz is %d: %v", status, answer)
	}
	if s.aborted != 0 {
		t.Errorf("%d aborts", s.aborted)
	}
}

// A process that does not run any more, and one whose scheduler hangs while it still answers, do
// not feed the watchdog: they are started again, and the next process delivers what they had
// accepted.
func TestHungIsRestarted(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the binary")
	}
	for _, hung := range []struct {
		name string
		hang func(s *supervisor)
		log  string
	}{
		{"stopped", func(s *supervisor) { s.signal(syscall.SIGSTOP) }, ""},
		{"the scheduler", func(s *supervisor) {
			// The sweep finds that the lease is over, and tells the observer, which hangs.
			if status, answer := s.call("POST", "/v1/tasks", `{"topic":"y","delay":"0s"}`); status != http.StatusCreated {
				t.Fatalf("status %d: %v", status, answer)
			}
			if status, answer := s.call("POST", "/v1/topics/y/reserve", `{"wait":"20s","lease":"1s"}`); status != http.StatusOK {
				t.Fatalf("status %d: %v", status, answer)
			}
			s.signal(syscall.SIGUSR2)
			s.hears("WATCHDOG=1") // it moves until then
			if status, _ := s.call("GET", "/healthz", ""); status != http.StatusOK {
				t.Errorf("it does not answer: %d", status)
			}
		}, `msg="the scheduler does not move"`},
	} {
		t.Run(hung.name, func(t *testing.T) {
			s := supervise(t)
			s.hears("STATUS=serves")
			s.accept("one")
			hung.hang(s)
			s.hears("READY=1") // of the next process
			s.hears("STATUS=serves")
			s.delivers("one")
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.starts != 2 || s.aborted == 0 || !strings.Contains(s.log.String(), hung.log) {
				t.Errorf("%d starts, %d aborts", s.starts, s.aborted)
			}
		})
	}
}
