package rabbitmq

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"
)

// The broker takes seconds to start, so that the tests of this package share one.
var single server

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		single.end()
		os.Exit(code)
	}))
}

// A server is a RabbitMQ broker of the tests' own.
type server struct {
	once sync.Once
	why  string // there is none

	program, dir string
	node, epmd   int // ports
	cmd          *exec.Cmd
}

// shared returns the broker's address, and a connection to it past any fault.
func shared(t *testing.T) (addr string, conn *amqp.Connection) {
	t.Helper()
	single.once.Do(single.make)
	if single.why != "" {
		t.Skip(single.why)
	}
	single.start(t)
	conn, err := amqp.Dial("amqp://" + single.addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return single.addr(), conn
}

func (s *server) addr() string { return fmt.Sprintf("127.0.0.1:%d", s.node) }

func (s *server) make() {
	// The program on Debian's path insists on being root or rabbitmq, and turns into the latter.
	for _, name := range []string{"/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"} {
		if s.program, _ = exec.LookPath(name); s.program != "" {
			break
		}
	}
	if s.program == "" {
		s.why = "no rabbitmq-server here; scripts/need-brokers installs it"
		return
	}
	dir, err := os.MkdirTemp("", "lapse-rabbitmq-")
	if err != nil {
		s.why = err.Error()
		return
	}
	s.dir, s.node, s.epmd = dir, freePort(), freePort()
}

// start starts the broker unless it runs, and returns when it lets clients in.
func (s *server) start(t *testing.T) {
	t.Helper()
	if s.cmd != nil {
		return
	}
	s.cmd = exec.Command(s.program)
	s.cmd.Env = append(os.Environ(),
		"HOME="+s.dir,
		fmt.Sprintf("RABBITMQ_NODENAME=lapse-%d@localhost", s.node),
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		fmt.Sprintf("RABBITMQ_NODE_PORT=%d", s.node),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", freePort()),
		fmt.Sprintf("ERL_EPMD_PORT=%d", s.epmd), "ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_MNESIA_BASE="+filepath.Join(s.dir, "data"),
		"RABBITMQ_LOG_BASE="+s.dir,
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(s.dir, "plugins"),
		"RABBITMQ_CONF_ENV_FILE=/dev/null",
	)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the script has children
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	over := time.After(2 * time.Minute)
	for {
		conn, err := amqp.Dial("amqp://" + s.addr())
		if err == nil {
			_ = conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("the broker does not answer: %v", err)
		}
	}
}

// stop ends the broker in order: killed, it may forget a queue that it has just made. If
// that takes too long, it is killed.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	group := -s.cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	late := time.AfterFunc(30*time.Second, func() { _ = syscall.Kill(group, syscall.SIGKILL) })
	defer late.Stop()
	_ = s.cmd.Wait()
	s.cmd = nil
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for { // the script that started it may be gone before it is
		conn, err := net.Dial("tcp", s.addr())
		if err != nil {
			return
		}
		_ = conn.Close()
		<-tick.C
	}
}

// end also ends Erlang's port mapper, which the broker has started and left behind.
func (s *server) end() {
	if s.dir == "" {
		return
	}
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil { // it refuses until it has noticed that the broker is gone
		out, _ := exec.CommandContext(ctx, "epmd", "-port", fmt.Sprint(s.epmd), "-kill").CombinedOutput()
		if !strings.Contains(string(out), "not allowed") {
			break
		}
		<-tick.C
	}
	_ = os.RemoveAll(s.dir)
}

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
