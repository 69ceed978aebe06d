package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A server is a process of this run, on a free port of the loopback interface, with
// a temporary directory.
type server struct {
	addr string
	dir  string
	cmd  *exec.Cmd
}

// start starts a program and waits until it accepts connections.
func start(ctx context.Context, program string, args func(host, port, dir string) []string) (*server, error) {
	host, port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(".", "compare-")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	s := &server{addr: net.JoinHostPort(host, port), dir: dir}
	s.cmd = exec.Command(program, args(host, port, dir)...)
	s.cmd.Dir = dir
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w%v", err, os.RemoveAll(dir))
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("tcp", s.addr)
		if err == nil {
			return s, conn.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			said, _ := os.ReadFile(log.Name())
			s.stop()
			return nil, fmt.Errorf("%s does not answer: %s", program, said)
		}
	}
}

// stop ends the process and removes its directory.
func (s *server) stop() {
	if s == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	ended := make(chan struct{})
	go func() { _ = s.cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		_ = s.cmd.Process.Kill()
		<-ended
	}
	_ = os.RemoveAll(s.dir)
}

func freePort() (host, port string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer l.Close()
	return net.SplitHostPort(l.Addr().String())
}

// startRedis starts one like a production server keeps tasks, or with whatever is
// said instead.
func startRedis(ctx context.Context, options ...string) (*server, error) {
	return start(ctx, "redis-server", func(host, port, dir string) []string {
		args := []string{"--bind", host, "--port", port, "--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"}
		return append(args, options...)
	})
}

// startBeanstalkd starts one with a binlog, which it syncs every 50 ms, its default, unless the
// options say otherwise.
func startBeanstalkd(ctx context.Context, options ...string) (*server, error) {
	return start(ctx, "beanstalkd", func(host, port, dir string) []string {
		return append([]string{"-l", host, "-p", port, "-b", dir}, options...)
	})
}

// startLapse starts `lapse serve` with the ledger in a Redis, or on disk without one.
func startLapse(ctx context.Context, binary, redis string) (*server, error) {
	return start(ctx, binary, func(host, port, dir string) []string {
		args := []string{"serve", "--listen", net.JoinHostPort(host, port), "--log-level", "warn", "--answer-within", "20s"}
		if redis != "" {
			return append(args, "--redis", "redis://"+redis)
		}
		return append(args, "--data", filepath.Join(dir, "data"))
	})
}

// startLapsePort starts `lapse serve` on disk, with a port for clients of Redis, which is the
// server's address.
func startLapsePort(ctx context.Context, binary string) (*server, error) {
	return start(ctx, binary, func(host, port, dir string) []string {
		return []string{"serve", "--listen", net.JoinHostPort(host, "0"), "--redis-listen", net.JoinHostPort(host, port), "--log-level", "warn",
			"--answer-within", "20s", "--data", filepath.Join(dir, "data")}
	})
}
