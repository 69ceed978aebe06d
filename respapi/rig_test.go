package respapi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/internal/runtest"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

func TestMain(m *testing.M) {
	runtest.AtOnce(4)
	// The client looks for a server that was away once a second, also when it is closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// A rig is a server with a scheduler in memory.
type rig struct {
	t         testing.TB
	server    *Server
	scheduler *tasks.Scheduler
	addr      string
}

// newRig starts a server with its scheduler, and stops both when the test ends.
func newRig(t testing.TB, cfg Config, scheduling tasks.Config) *rig {
	t.Helper()
	return newRigOn(t, memledger.New(), cfg, scheduling)
}

// newRigOn is newRig on a ledger.
func newRigOn(t testing.TB, ledger recovery.Ledger, cfg Config, scheduling tasks.Config) *rig {
	t.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	scheduling.Log = cfg.Log
	way := &Keyevent{}
	scheduling.Ways = append(scheduling.Ways, way)
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	way.Attach(server)
	scheduler, err := tasks.Open(t.Context(), ledger, scheduling)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Attach(scheduler); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, server: server, scheduler: scheduler}
	r.addr = r.listen()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := scheduler.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

// listen has the server listen on a free port, and returns its address.
func (r *rig) listen() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(l) }()
	r.t.Cleanup(func() {
		if err := <-served; err != nil {
			r.t.Error(err)
		}
	})
	return l.Addr().String()
}

// A wire is a connection on which a test writes bytes and reads lines.
type wire struct {
	t  testing.TB
	nc net.Conn
	in *bufio.Reader
}

func (r *rig) dial() *wire {
	nc, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
	return &wire{r.t, nc, bufio.NewReader(nc)}
}

// receiveFew keeps the kernel from taking megabytes of answers for a client that does not read.
// It may grow the buffer of a connection to what net.ipv4.tcp_rmem allows, 32 MiB on some machines.
func (w *wire) receiveFew() {
	w.t.Helper()
	if err := w.nc.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
		w.t.Fatal(err)
	}
}

// send writes bytes.
func (w *wire) send(text string) {
	w.t.Helper()
	if _, err := io.WriteString(w.nc, text); err != nil {
		w.t.Fatal(err)
	}
}

// command writes a command as clients do.
func (w *wire) command(args ...string) {
	w.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	w.send(b.String())
}

// line reads a line, without its end.
func (w *wire) line() string {
	w.t.Helper()
	text, err := w.in.ReadString('\n')
	if err != nil {
		w.t.Fatalf("after %q: %v", text, err)
	}
	return strings.TrimSuffix(text, "\r\n")
}

// answer reads a whole answer. Its lines are joined by spaces; aggregates are flat.
func (w *wire) answer() string {
	w.t.Helper()
	first := w.line()
	n := 0
	switch first[0] {
	case '$', '=':
		if first == "$-1" {
			return first
		}
		_, _ = fmt.Sscan(first[1:], &n)
		b := make([]byte, n+2)
		if _, err := io.ReadFull(w.in, b); err != nil {
			w.t.Fatal(err)
		}
		return string(b[:n])
	case '*', '~', '>':
		_, _ = fmt.Sscan(first[1:], &n)
	case '%':
		_, _ = fmt.Sscan(first[1:], &n)
		n *= 2
	}
	all := []string{first}
	for range n {
		all = append(all, w.answer())
	}
	return strings.Join(all, " ")
}

// ask sends a command and compares the answer.
func (w *wire) ask(want string, args ...string) {
	w.t.Helper()
	w.command(args...)
	if got := w.answer(); got != want {
		w.t.Errorf("%q: the answer is %q, want %q", args, got, want)
	}
}

// newFleet starts so many servers whose schedulers share a ledger.
func newFleet(t *testing.T, n int, cfg Config) (nodes []*rig, members []*memfleet.Member) {
	t.Helper()
	fleet := memfleet.New()
	for i := range n {
		name := string(rune('a' + i))
		m := fleet.Join(name, 2)
		members = append(members, m)
		nodes = append(nodes, newRigOn(t, m, cfg, tasks.Config{Node: name}))
	}
	return nodes, members
}
