package respapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A silentWay stands for a way of delivery of the kind: it acknowledges all tasks.
type silentWay task.Kind

func (w silentWay) Kind() task.Kind { return task.Kind(w) }

func (silentWay) Deliverer(string, json.RawMessage) (task.Deliverer, error) {
	return task.HandlerFunc(func(context.Context, *task.Delivery) error { return nil }), nil
}

// withWays is a configuration whose topics can be of the kind elsewhere, beside keyevent.
func withWays() tasks.Config {
	return tasks.Config{AnswerWithin: 20 * time.Second, Ways: []tasks.Way{silentWay("elsewhere")}}
}

// openRig starts a server with a scheduler on this ledger. It stops neither.
func openRig(t *testing.T, ledger recovery.Ledger, scheduling tasks.Config) *rig {
	t.Helper()
	r := openUnheard(t, ledger, scheduling)
	r.addr = r.listen()
	return r
}

// openUnheard is openRig of a server that does not listen.
func openUnheard(t *testing.T, ledger recovery.Ledger, scheduling tasks.Config) *rig {
	t.Helper()
	server, err := New(Config{Topics: map[string]string{"": "t"}})
	if err != nil {
		t.Fatal(err)
	}
	way := &Keyevent{}
	way.Attach(server)
	scheduling.Ways = append(scheduling.Ways, way)
	scheduler, err := tasks.Open(t.Context(), ledger, scheduling)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Attach(scheduler); err != nil {
		t.Fatal(err)
	}
	return &rig{t: t, server: server, scheduler: scheduler}
}

// A pipes is a listener of connections in memory, whose time is that of a bubble.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	if nc, ok := <-p.conns; ok {
		return nc, nil
	}
	return nil, net.ErrClosed
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.conns) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// inBubble runs a test in a bubble, with a connection to a server whose topic t has a group.
func inBubble(t *testing.T, f func(t *testing.T, r *rig, w *wire)) {
	t.Helper()
	inBubbleOn(t, func() recovery.Ledger { return memledger.New() }, f)
}

// inBubbleOn is inBubble on a ledger.
func inBubbleOn(t *testing.T, ledger func() recovery.Ledger, f func(t *testing.T, r *rig, w *wire)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := openUnheard(t, ledger(), withWays())
		l := &pipes{conns: make(chan net.Conn)}
		served := make(chan error, 1)
		go func() { served <- r.server.Serve(l) }()
		ours, theirs := net.Pipe()
		l.conns <- theirs
		w := &wire{t, ours, bufio.NewReader(ours)}
		w.ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$", "MKSTREAM")
		f(t, r, w)
		ours.Close()
		r.close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func (r *rig) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.server.Close(ctx); err != nil {
		r.t.Error(err)
	}
	if err := r.scheduler.Close(ctx); err != nil {
		r.t.Error(err)
	}
}

// streamRig is a rig whose topic t has a group.
func streamRig(t *testing.T) (*rig, *wire) {
	r := openRig(t, memledger.New(), withWays())
	t.Cleanup(r.close)
	w := r.dial()
	w.ask("+OK", "XGROUP", "CREATE", "expired:t", "g", "$", "MKSTREAM")
	return r, w
}

// expire has n tasks of a topic be ready: their ids are a prefix and a number.
func (r *rig) expire(topic, prefix string, n int) {
	r.t.Helper()
	requests := make([]tasks.Request, n)
	for i := range requests {
		requests[i] = tasks.Request{ID: fmt.Sprint(prefix, i), Topic: topic, Due: time.UnixMilli(900_000_000_000 + int64(i)), Payload: []byte("v")}
	}
	for len(requests) > 0 {
		part := requests[:min(1000, len(requests))]
		requests = requests[len(part):]
		results, err := r.scheduler.ScheduleBatch(r.t.Context(), part)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, one := range results {
			if one.Err != nil {
				r.t.Fatal(one.Err)
			}
		}
	}
}

// connectTo returns a connection to an address.
func connectTo(t testing.TB, addr string) net.Conn {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(60 * time.Second))
	return nc
}

// connect is connectTo for commands.
func connect(t *testing.T, addr string) *wire {
	nc := connectTo(t, addr)
	return &wire{t, nc, bufio.NewReader(nc)}
}

// got sends a command and returns the answer.
func (w *wire) got(args ...string) string {
	w.t.Helper()
	w.command(args...)
	return w.answer()
}

// read reads entries of expired:t that are ready and returns their ids.
func (w *wire) read(consumer string, count int, more ...string) (ids []string) {
	w.t.Helper()
	args := append([]string{"XREADGROUP", "GROUP", "g", consumer, "COUNT", fmt.Sprint(count)}, more...)
	return idsOf(w.got(append(args, "STREAMS", "expired:t", ">")...))
}

// idsOf returns the ids of entries in an answer: what stands before the array of fields.
func idsOf(answer string) (ids []string) {
	words := strings.Split(answer, " ")
	for i := range words[:len(words)-1] {
		if strings.Contains(words[i], "-") && words[i] != "*-1" {
			ids = append(ids, words[i])
		}
	}
	return ids
}
