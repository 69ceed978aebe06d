package nats

import (
	"fmt"
	"net"
	"os/exec"
	"syscall"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A server is a NATS server of a test's own, with JetStream.
type server struct {
	addr string
	js   jetstream.JetStream // past any fault

	args []string
	cmd  *exec.Cmd
}

// startServer starts a server, and creates a stream for the subjects under "test.".
func startServer(t *testing.T) *server {
	t.Helper()
	program, err := exec.LookPath("nats-server")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/nats-server"); err != nil {
			t.Skip("no nats-server here; scripts/need-brokers installs it")
		}
	}
	port := freePort(t)
	s := &server{addr: fmt.Sprintf("127.0.0.1:%d", port)}
	s.args = []string{program, "-a", "127.0.0.1", "-p", fmt.Sprint(port), "-js", "-sd", t.TempDir()}
	s.start(t)
	t.Cleanup(func() { s.stop() })

	conn, err := natsgo.Connect("nats://"+s.addr, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if s.js, err = jetstream.New(conn); err != nil {
		t.Fatal(err)
	}
	s.stream(t, jetstream.StreamConfig{Name: "TEST", Subjects: []string{"test.>"}})
	return s
}

func (s *server) stream(t *testing.T, cfg jetstream.StreamConfig) {
	t.Helper()
	if _, err := s.js.CreateOrUpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}

// start returns when the server lets clients in.
func (s *server) start(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	over := time.After(30 * time.Second)
	for {
		conn, err := natsgo.Connect("nats://" + s.addr)
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("the server does not answer: %v", err)
		}
	}
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGKILL)
	_ = s.cmd.Wait()
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
