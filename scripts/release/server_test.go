//go:build linux

package main

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A process is a server that a test has started.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	log   *safeLog
	ended chan error
}

// A safeLog is what a process has written so far.
type safeLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *safeLog) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// begin starts a program. The end of the test kills it, if it has not ended.
func begin(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t, cmd, &safeLog{}, make(chan error, 1)}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		for range p.ended { // it is closed when the process has ended
		}
	})
	return p
}

// answers waits until a URL is answered with 200.
func (p *process) answers(url string) {
	p.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if resp, err := http.Get(url); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case err := <-p.ended:
			p.t.Fatalf("%s: %v\n%s", p.cmd.Path, err, p.log)
		case <-tick.C:
		}
	}
}

// stop asks the process to end, and waits for that.
func (p *process) stop() {
	p.t.Helper()
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := <-p.ended; err != nil {
		p.t.Errorf("%s ends: %v\n%s", p.cmd.Path, err, p.log)
	}
}

// freeAddr returns an address of this machine that is free.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startRedis starts a Redis, and returns its URL.
func startRedis(t *testing.T) string {
	t.Helper()
	at, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("there is no redis-server")
	}
	addr := freeAddr(t)
	_, port, _ := net.SplitHostPort(addr)
	p := begin(t, exec.Command(at, "--port", port, "--bind", "127.0.0.1", "--appendonly", "yes", "--dir", t.TempDir(), "--maxmemory-policy", "noeviction"))
	for {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return "redis://" + addr
		}
		select {
		case err := <-p.ended:
			t.Fatalf("redis-server: %v\n%s", err, p.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// makeToken makes a token that may do everything, in a file that servers read.
func makeToken(t *testing.T, binary, dir string) (file, text string) {
	t.Helper()
	cmd := exec.Command(binary, "token", "ops", "--scopes", "schedule,receive,read,admin")
	var shown bytes.Buffer
	cmd.Stderr = &shown
	line, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(dir, "tokens.yaml")
	if err := os.WriteFile(file, line, 0o644); err != nil {
		t.Fatal(err)
	}
	text, _, _ = strings.Cut(shown.String(), "\n")
	return file, text
}

// A scrape tells the tag that the server was built from.
func TestBuildInfo(t *testing.T) {
	cmd := exec.Command(unpackBinary(t), "serve")
	addr := freeAddr(t)
	cmd.Env = []string{"LAPSE_LISTEN=" + addr, "LAPSE_DATA=" + t.TempDir()}
	p := begin(t, cmd)
	p.answers("http://" + addr + "/readyz")
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if line := regexp.MustCompile(`(?m)^lapse_build_info\{.*$`).FindString(string(text)); !strings.Contains(line, `version="`+testVersion+`"`) {
		t.Errorf("it says %q", line)
	}
	p.stop()
}
