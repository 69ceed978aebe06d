//go:build fault

package movein

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

var program string

func TestMain(m *testing.M) {
	if addr := os.Getenv(probeAddr); addr != "" {
		if err := probe(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(rig.WithProgram(func(path string) int {
		program = path
		return m.Run()
	}))
}

// number is a setting of the environment.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s must be a positive number", name)
	}
	return n
}

// A lapse is a server of the built program.
type lapse struct {
	*client.Client
	url string
	// stop ends the server as an operator does.
	stop func()
}

// serve starts a server that keeps its tasks on disk, and waits until it is ready.
func serve(t *testing.T, args ...string) *lapse {
	t.Helper()
	return serveOn(t, append(args, "--data", t.TempDir())...)
}

// serveOn starts a server whose arguments name its ledger, and waits until it is ready.
func serveOn(t *testing.T, args ...string) *lapse {
	t.Helper()
	addr := redistest.FreeAddr(t)
	cmd := exec.Command(program, append([]string{"serve", "--listen", addr, "--log-level", "warn", "--answer-within", "30s"}, args...)...)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &lapse{url: "http://" + addr}
	l.stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	t.Cleanup(func() {
		l.stop()
		if t.Failed() {
			t.Logf("the server: %s", &log)
		}
	})
	wait(t, "server that is ready", func() bool {
		resp, err := http.Get(l.url + "/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	var err error
	if l.Client, err = client.New(client.Options{URL: l.url, Timeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// wait waits until yes returns true.
func wait(t *testing.T, what string, yes func() bool) {
	t.Helper()
	if !rig.Within(20*time.Millisecond, 2*time.Minute, yes) {
		t.Fatalf("no %s within 2 minutes", what)
	}
}

// command is one of the command line, for this server.
func (l *lapse) command(args ...string) *exec.Cmd {
	return exec.Command(program, append(args, "--server", l.url)...)
}

// An import is a process.
type importing struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
}

func (l *lapse) startImport(t *testing.T, args ...string) *importing {
	t.Helper()
	i := &importing{cmd: l.command(append([]string{"import"}, append(args, "--timeout", "1m")...)...)}
	i.cmd.Stdout, i.cmd.Stderr = &i.out, &i.errs
	if err := i.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.cmd.Process.Kill() })
	return i
}

// killed repeats an import that is killed at random, until one comes to its end. It returns how
// many were killed.
func (l *lapse) killed(t *testing.T, longest time.Duration, args ...string) (kills int) {
	t.Helper()
	for {
		i := l.startImport(t, args...)
		ended := make(chan struct{})
		var err error
		go func() { err = i.cmd.Wait(); close(ended) }()
		select {
		case <-ended:
			const nothingLeft = 4 // the exit code
			if err != nil && i.cmd.ProcessState.ExitCode() != nothingLeft {
				t.Fatalf("import: %v: %s%s", err, &i.out, &i.errs)
			}
			t.Logf("after %d kills: %s", kills, strings.TrimSpace(i.out.String()))
			return kills
		case <-time.After(time.Millisecond + rand.N(longest)):
			_ = i.cmd.Process.Kill()
			<-ended
			kills++
			longest += longest / 10 // it comes to an end
		}
	}
}

// A receiver counts the deliveries of a topic by task.
type receiver struct {
	workers *rig.Workers
	got     chan map[string]int
}

func (l *lapse) receive(t *testing.T, topic string) *receiver {
	t.Helper()
	r := &receiver{workers: rig.NewWorkers(t), got: make(chan map[string]int, 1)}
	r.workers.Go(func() {
		got := map[string]int{}
		defer func() { r.got <- got }()
		for r.workers.Ctx.Err() == nil {
			list, err := l.Reserve(r.workers.Ctx, topic, client.Reservation{Max: 1000, Wait: time.Second})
			if err != nil {
				continue
			}
			receipts := make([]string, len(list))
			for i := range list {
				got[list[i].ID]++
				if now := time.Now(); list[i].Due.After(now.Add(time.Millisecond)) {
					t.Errorf("%s is early by %s", list[i].ID, list[i].Due.Sub(now))
				}
				receipts[i] = list[i].Receipt
			}
			if len(receipts) > 0 {
				if _, err := l.Ack(context.WithoutCancel(r.workers.Ctx), receipts...); err != nil {
					t.Errorf("ack: %v", err)
				}
			}
		}
	})
	return r
}

// end stops receiving, and returns the deliveries by task.
func (r *receiver) end() map[string]int {
	r.workers.Stop()
	return <-r.got
}

// left is how many tasks of a topic wait or are being delivered.
func (l *lapse) left(t *testing.T, topic string) int {
	t.Helper()
	p, err := l.Topic(t.Context(), topic)
	if err != nil {
		return 0
	}
	return int(p.Counts.Pending + p.Counts.Ready + p.Counts.Delivering)
}

// fill sets keys <kind>:<from> up to <kind>:<to-1>, each with its TTL.
func fill(t *testing.T, c *redis.Client, kind string, from, to int, ttl func(i int) time.Duration) {
	t.Helper()
	const page = 10_000
	for ; from < to; from += page {
		p := c.Pipeline()
		for i := from; i < min(from+page, to); i++ {
			p.Set(t.Context(), fmt.Sprintf("%s:%d", kind, i), "v", ttl(i))
		}
		if _, err := p.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// beanstalkd starts a real one.
func beanstalkd(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("beanstalkd")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("beanstalkd is not installed: scripts/need-beanstalkd installs it")
		}
		t.Skip("beanstalkd is not installed (on Debian: apt-get install beanstalkd)")
	}
	addr := redistest.FreeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(path, "-l", host, "-p", port)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	wait(t, "beanstalkd", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return addr
}
