package redistest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// patience bounds every wait for a server: a sentinel does nothing for half a minute after it
// was short of processor time.
const patience = time.Minute

// A Server is one redis-server process, or none while it is stopped.
type Server struct {
	Addr string
	Dir  string // its files, which stay when it stops

	t      testing.TB
	binary string
	args   []string
	cmd    *exec.Cmd
	log    *os.File
}

// The client's own log would report every server that a test stops.
func init() { redis.SetLogger(silent{}) }

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// Start starts a server with persistence off, and waits until it answers. Options
// are lines of a configuration file, such as "appendonly yes".
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	s := newServer(t, append([]string{`save ""`, "repl-diskless-sync-delay 0"}, options...))
	s.Start()
	return s
}

func newServer(t testing.TB, options []string) *Server {
	t.Helper()
	logging.Disable() // go-redis', of connections that tests break
	path, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("redis-server is not installed (on Debian: apt-get install redis-server)")
	}
	s := &Server{Addr: FreeAddr(t), Dir: t.TempDir(), t: t, binary: path}
	_, port, _ := net.SplitHostPort(s.Addr)
	lines := append([]string{
		"bind 127.0.0.1", "port " + port, "dir " + s.Dir, "daemonize no", "protected-mode no",
	}, options...)
	config := filepath.Join(s.Dir, "redis.conf")
	if err := os.WriteFile(config, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.args = []string{config}
	if s.log, err = os.Create(filepath.Join(s.Dir, "log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		if t.Failed() {
			if b, err := os.ReadFile(s.log.Name()); err == nil {
				t.Logf("the log of the server at %s ends with:\n%s", s.Addr, b[max(0, len(b)-2000):])
			}
		}
		_ = s.log.Close()
	})
	return s
}

// Servers get some of these ports, and those of their cluster buses are busOffset further up. By
// default Linux gives connections, and listeners that ask for any port, ports from 32768 on: a
// server that is stopped, or is about to start, does not lose its port to them.
const firstPort, ports, busOffset = 12000, 10000, 10000

// FreeAddr returns an address of the loopback interface on which no process listens, nor, ten
// thousand ports further up, on the port of its cluster bus. No other test gets it until this one
// ends, in this process or another.
func FreeAddr(t testing.TB) string {
	t.Helper()
	for range 1000 {
		port := firstPort + rand.N(ports)
		if Reserve(t, port) && Reserve(t, port+busOffset) && isFree(port) && isFree(port+busOffset) {
			return loopback(port)
		}
	}
	t.Fatal("no free port")
	return ""
}

func loopback(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func isFree(port int) bool {
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// Reserve makes sure that no other test that asks here gets a port while this one runs: between the
// choice of a port and the start of its server, and while the server is stopped. It reports whether
// no other has it. It does so by an abstract socket, which ends with the process; systems other
// than Linux have none, and there it reserves nothing.
func Reserve(t testing.TB, port int) bool {
	l, err := net.Listen("unix", "@lapse-redistest-"+strconv.Itoa(port))
	if err != nil {
		return !errors.Is(err, syscall.EADDRINUSE)
	}
	t.Cleanup(func() { _ = l.Close() })
	return true
}

// Start starts a stopped server on its old address and files, and waits until it
// answers.
func (s *Server) Start() {
	s.t.Helper()
	s.StartLoading()
	s.Wait("it answers", func(ctx context.Context, c *redis.Client) bool { return c.Ping(ctx).Err() == nil })
}

// StartLoading starts a stopped server and does not wait until it has read its
// files.
func (s *Server) StartLoading() {
	s.t.Helper()
	s.cmd = exec.Command(s.binary, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
}

// Wait sends commands to the server until done returns true, and fails the test after a while.
func (s *Server) Wait(what string, done func(ctx context.Context, c *redis.Client) bool) {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done(ctx, c) {
		select {
		case <-ctx.Done():
			s.t.Fatalf("waiting in vain until %s: %s at %s", what, s.binary, s.Addr)
		case <-tick.C:
		}
	}
}

// Kill ends the process with SIGKILL, as a crash would. It does nothing to a stopped server.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
	s.cmd = nil
}

// Pause stops the process: connections stay open, and nothing is answered until Resume.
func (s *Server) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Pid is that of the process, while it runs.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// URL is the server's address for a ledger.
func (s *Server) URL() string { return "redis://" + s.Addr }

// Client makes a client, which the caller closes.
func (s *Server) Client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1, DialerRetries: 1})
}

// Do runs one command and fails the test if it fails.
func (s *Server) Do(args ...any) any {
	s.t.Helper()
	c := s.Client()
	defer c.Close()
	v, err := c.Do(context.Background(), args...).Result()
	if err != nil && err != redis.Nil { //nolint:errorlint // a reply is never wrapped
		s.t.Fatalf("%s: %v", fmt.Sprint(args...), err)
	}
	return v
}
