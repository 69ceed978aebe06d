package respapi_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// A slowLedger takes its time for each write.
type slowLedger struct {
	*memledger.Ledger
	takes time.Duration
}

func (l slowLedger) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	time.Sleep(l.takes)
	return l.Ledger.Apply(ctx, shard, b)
}

// took returns how long the commands of each verb have taken.
func (r *rig) took() map[string]tasks.Latency {
	all := make(map[string]tasks.Latency)
	r.server.EachCommand(func(name string, done, failed int64, took tasks.Latency) {
		if took.Total() != done+failed {
			r.t.Errorf("%s was answered %d times, and the times of %d are counted", name, done+failed, took.Total())
		}
		all[name] = took
	})
	return all
}

// The time of a command is counted by its verb, from when it was read until the ledger has its
// write. Commands of a pipeline that run together wait for one write.
func TestTimesOfCommandsAreCounted(t *testing.T) {
	const write = 30 * time.Millisecond
	ledger := func() recovery.Ledger { return slowLedger{memledger.New(), write} }
	inBubbleOn(t, ledger, func(t *testing.T, r *rig, w *wire) {
		w.ask("+OK", "SET", "a", "1", "EX", "100")
		w.send("INCR n\r\nGET m\r\nGET o\r\nNONE\r\n")
		for range 4 {
			w.answer()
		}
		w.ask("+OK", "MULTI")
		w.ask("+QUEUED", "ECHO", "x")
		w.ask("*1 x", "EXEC")
		w.ask("+PONG", "PING") // what came before is counted
		all := r.took()
		for name, want := range map[string]struct {
			n   int64
			sum time.Duration
		}{"set": {1, write}, "incr": {1, write}, "get": {2, 2 * write}, "unknown": {1, 0}, "multi": {1, 0}, "exec": {1, 0}, "echo": {1, 0}} {
			took := all[name]
			if took.Total() != want.n || took.Sum != want.sum {
				t.Errorf("%s has %d times, %v together; want %d, %v", name, took.Total(), took.Sum, want.n, want.sum)
			}
		}
	})
}

// What a command with BLOCK waits for is not its time.
func TestTimesLeaveOutWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig, w *wire) {
		for range 2 {
			w.ask("*-1", "XREADGROUP", "GROUP", "g", "me", "BLOCK", "3000", "STREAMS", "expired:t", ">")
		}
		w.ask("+PONG", "PING") // what came before is counted
		if took := r.took()["xreadgroup"]; took.Total() != 2 || took.Sum != 0 {
			t.Errorf("two reads that wait have %d times, %v together", took.Total(), took.Sum)
		}
	})
}

// Events that other nodes did not get, and those that were never published, have figures of their
// own.
func TestDroppedEventsAreToldApart(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	r.server.CountDropped(3, 5)
	if got := r.server.EventsDropped(); got["unsent"] != 3 || got["lost"] != 5 || len(got) != 2 {
		t.Errorf("dropped events: %v", got)
	}
	w := r.dial()
	w.command("INFO", "stats")
	all := w.answer()
	for _, line := range []string{"lapse_events_unsent:3", "lapse_events_lost:5"} {
		if !strings.Contains(all, line+"\r\n") {
			t.Errorf("%q is not in %s", line, all)
		}
	}
}

// A brokenListener is one whose connections fail until it is closed.
type brokenListener chan error

func (f brokenListener) Accept() (net.Conn, error) {
	if err, ok := <-f; ok {
		return nil, err
	}
	return nil, net.ErrClosed
}

func (f brokenListener) Close() error   { return nil }
func (f brokenListener) Addr() net.Addr { return &net.TCPAddr{} }

// The server says that it accepts no connections until it accepts one.
func TestAcceptingTellsOfFaults(t *testing.T) {
	server, err := New(Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, server: server}
	if err := server.Accepting(); err != nil {
		t.Error(err)
	}
	bad, wrong, served := make(brokenListener, 1), errors.New("too many open files"), make(chan error)
	go func() { served <- server.Serve(bad) }()
	bad <- wrong
	waitFor(t, "the fault is told", func() bool { return errors.Is(server.Accepting(), wrong) })
	r.addr = r.listen()
	r.dial().ask("+PONG", "PING")
	if err := server.Accepting(); err != nil {
		t.Errorf("a connection was accepted, and yet %v", err)
	}
	close(bad)
	if err := <-served; !errors.Is(err, net.ErrClosed) || !errors.Is(server.Accepting(), net.ErrClosed) {
		t.Errorf("the listener has ended with %v: %v", err, server.Accepting())
	}
	_ = server.Close(t.Context())
	if err := server.Accepting(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a server that is closed: %v", err)
	}
}
