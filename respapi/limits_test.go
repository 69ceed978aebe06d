package respapi_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// inUse returns the memory of this process for the heap and for stacks.
func inUse() int64 {
	runtime.GC()
	runtime.GC() // the first one shrinks stacks, of which the second one takes the rest
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// grows runs f, and fails if the memory in use is then more than most bytes higher than before.
func grows(t *testing.T, most int64, f func()) {
	t.Helper()
	before := inUse()
	f()
	if grown := inUse() - before; grown > most {
		t.Errorf("the memory in use has grown by %d KiB; at most %d KiB are allowed", grown>>10, most>>10)
	}
}

// An idle connection takes at most 12 KiB, that of the client in this process counted.
func TestIdleConnectionsAreSmall(t *testing.T) {
	const connections, each = 2000, 12 << 10
	r := newRig(t, Config{}, tasks.Config{})
	r.dial().ask("+PONG", "PING")
	all := make([]net.Conn, connections)
	grows(t, connections*each, func() {
		answer := make([]byte, 16)
		for i := range all {
			nc, err := net.Dial("tcp", r.addr)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { nc.Close() })
			all[i] = nc
			if _, err := io.WriteString(nc, "PING\r\n"); err != nil {
				t.Fatal(err)
			}
			if n, err := nc.Read(answer); string(answer[:n]) != "+PONG\r\n" {
				t.Fatalf("%q, %v", answer[:n], err)
			}
		}
	})
	runtime.KeepAlive(all)
}

// flood writes text again and again until the server closes the connection or reads no more.
func flood(t *testing.T, nc net.Conn, text []byte, most int) (wrote int, err error) {
	t.Helper()
	for wrote < most {
		_ = nc.SetWriteDeadline(time.Now().Add(2 * time.Second))
		n, err := nc.Write(text)
		if wrote += n; err != nil {
			return wrote, err
		}
	}
	return wrote, nil
}

// Commands that no client means are refused before they take memory, and the connection ends.
func TestBadInputIsBounded(t *testing.T) {
	r := newRig(t, Config{MaxCommand: 1 << 20}, tasks.Config{})
	million := "*1048576\r\n" + strings.Repeat("$1\r\na\r\n", 1<<20)
	for name, c := range map[string]struct{ input, answer string }{
		"a bulk length beyond Redis": {"*2\r\n$3\r\nGET\r\n$536870913\r\n", "-ERR Protocol error: invalid bulk length"},
		"512 MiB announced":          {"*2\r\n$3\r\nGET\r\n$536870912\r\n", "-ERR Protocol error: the command is too large"},
		"a negative length":          {"*2\r\n$3\r\nGET\r\n$-7\r\n", "-ERR Protocol error: invalid bulk length"},
		"too many arguments":         {"*1048577\r\n", "-ERR Protocol error: invalid multibulk length"},
		"a million arguments":        {million, "-ERR Protocol error: the command is too large"},
		"no bulk string":             {"*1\r\n:7\r\n", "-ERR Protocol error: expected '$', got ':'"},
		"a line without an end":      {strings.Repeat("a", 70<<10), "-ERR Protocol error: too big inline request"},
		"a length without an end":    {"*" + strings.Repeat("1", 70<<10), "-ERR Protocol error: too big mbulk count string"},
		"open quotes":                {"SET \"a\r\n", "-ERR Protocol error: unbalanced quotes in request"},
		"TLS":                        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", "-ERR unknown command '\x16\x03\x01\x02', with args beginning with: '\x01' '\x01\xfc\x03\x03' "},
	} {
		t.Run(name, func(t *testing.T) {
			grows(t, 4<<20, func() {
				w := r.dial()
				// The server may close before it has read it all.
				go func() { _, _ = io.WriteString(w.nc, c.input) }()
				if got := w.line(); got != c.answer {
					t.Errorf("the answer is %q, want %q", got, c.answer)
				}
				w.nc.Close()
			})
		})
	}
	r.dial().ask("+PONG", "PING")
}

// A page of the web can have a browser send requests to the port. The commands in them are not
// done.
func TestBrowsersAreCutOff(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: 127.0.0.1:7481\r\nContent-Length: 20\r\n\r\nSET stolen v\r\n",
		"GET / HTTP/1.1\r\nHost: 127.0.0.1:7481\r\n\r\nSET stolen v\r\n",
	} {
		w := r.dial()
		w.send(request)
		if text, err := io.ReadAll(w.in); err != nil || strings.Contains(string(text), "OK") {
			t.Errorf("the answer is %q, %v", text, err)
		}
	}
	r.dial().ask(":0", "EXISTS", "stolen")
}

// Many commands that do not come to their end share a bound: what is beyond it is refused, and
// others go on.
func TestUnfinishedCommandsAreBounded(t *testing.T) {
	const each = 1 << 20
	r := newRig(t, Config{MaxCommand: each}, tasks.Config{})
	half := append([]byte(fmt.Sprintf("*2\r\n$4\r\nECHO\r\n$%d\r\n", each-1000)), bytes.Repeat([]byte{'x'}, each-100_000)...)
	grows(t, 40<<20, func() {
		refused := 0
		for range 60 {
			w := r.dial()
			_, _ = w.nc.Write(half)
			_ = w.nc.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if text, err := w.in.ReadString('\n'); err == nil && strings.HasPrefix(text, "-ERR Protocol error: the command is too large") ||
				err != nil && !isTimeout(err) {
				refused++
			}
		}
		if refused < 30 {
			t.Errorf("only %d of 60 were refused", refused)
		}
	})
	r.dial().ask("+PONG", "PING")
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// A client that sends a pipeline and reads no answers is not read from. Other clients go on.
func TestPipelineWithoutReading(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	w := r.dial()
	command := bytes.Repeat([]byte("*2\r\n$4\r\nECHO\r\n$1000\r\n"+strings.Repeat("x", 1000)+"\r\n"), 64)
	grows(t, 64<<20, func() {
		wrote, err := flood(t, w.nc, command, 256<<20)
		if err == nil {
			t.Errorf("the server has read %d bytes whose answers were not read", wrote)
		}
		r.dial().ask("+PONG", "PING")
	})
}

// Clients write a whole pipeline before they read the first answer. Its answers need not fit into
// the buffers of the kernel.
func TestPipelineIsWrittenBeforeItIsRead(t *testing.T) {
	const n, size = 90, 60_000
	r := newRig(t, Config{}, tasks.Config{})
	r.dial().ask("+OK", "SET", "k", strings.Repeat("v", size))
	secret := httptest.NewUnstartedServer(nil)
	secret.StartTLS()
	defer secret.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = r.server.Serve(tls.NewListener(l, secret.TLS)) }()
	for name, dial := range map[string]func() (net.Conn, error){
		"plain": func() (net.Conn, error) { return net.Dial("tcp", r.addr) },
		"TLS": func() (net.Conn, error) {
			return tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := dial()
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			// Each ECHO is longer than its buffers, so it is written only if the server reads on.
			get, echo := "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", fmt.Sprintf("*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", 100_000, strings.Repeat("e", 100_000))
			_ = nc.SetDeadline(time.Now().Add(time.Minute))
			for range n {
				if _, err := io.WriteString(nc, get+echo); err != nil {
					t.Fatal(err)
				}
			}
			in := bufio.NewReader(nc)
			for i := range n {
				for _, want := range []int{size, 100_000} {
					line, err := in.ReadString('\n')
					if err != nil || line != fmt.Sprintf("$%d\r\n", want) {
						t.Fatalf("answer %d is %.100q, %v", i, line, err)
					}
					if _, err := io.CopyN(io.Discard, in, int64(want)+2); err != nil {
						t.Fatal(err)
					}
				}
			}
			waitFor(t, "all is read", func() bool { return r.server.Unread() == 0 })
		})
	}
}

// While clients send garbage and do not read, the tasks of others are on time.
func TestOtherTasksDoNotWait(t *testing.T) {
	r := newRig(t, Config{MaxCommand: 1 << 20}, tasks.Config{})
	for range 4 {
		w := r.dial()
		go func() { _, _ = flood(t, w.nc, bytes.Repeat([]byte("*1\r\n$4\r\nPING\r\n"), 1000), 64<<20) }()
		v := r.dial()
		go func() { _, _ = flood(t, v.nc, bytes.Repeat([]byte{0xff, 'a'}, 1<<15), 64<<20) }()
	}
	for i := range 20 {
		if _, err := r.scheduler.Schedule(t.Context(), tasks.Request{Topic: "other", Due: time.Now().Add(time.Duration(i) * time.Millisecond)}); err != nil {
			t.Fatal(err)
		}
	}
	for got := 0; got < 20; {
		ds, err := r.scheduler.Reserve(t.Context(), "other", 20, 10*time.Second, time.Minute)
		if err != nil || len(ds) == 0 {
			t.Fatal(err, len(ds))
		}
		for _, d := range ds {
			if late := time.Since(d.Due); late > 5*time.Second {
				t.Errorf("a task is late by %v", late)
			}
			got++
		}
	}
}

// Once clients leave too many answers unread, commands that tell what is stored are refused, until
// these clients read or are gone. Commands that only write go on.
func TestUnreadAnswersAreBoundedTogether(t *testing.T) {
	const most, values, size = 8 << 20, 250, 60 << 10
	r := newRig(t, Config{MaxAnswers: most}, tasks.Config{})
	w := r.dial()
	value := strings.Repeat("v", size)
	w.ask("+OK", "SET", "k", value)
	w.ask("+OK", "SET", "n", "1")
	slow := r.dial()
	slow.receiveFew()
	slow.command(append([]string{"MGET"}, strings.Split(strings.Repeat("k ", values-1)+"k", " ")...)...)
	waitFor(t, "the answer is unread", func() bool { return r.server.Unread() >= most })
	const refused = "-TRYAGAIN too many answers wait for clients that do not read them; nothing was done"
	for _, command := range []string{"GET n", "MGET n n", "GETSET n 2", "GETDEL n", "SET n 2 GET", "XREADGROUP GROUP g c STREAMS expired:t >"} {
		w.ask(refused, strings.Fields(command)...)
	}
	w.ask("+PONG", "PING")
	w.ask("+OK", "SET", "m", "3")
	w.ask("+OK", "MULTI")
	w.ask("+QUEUED", "SET", "m", "4")
	w.ask(refused, "EXEC")
	w.ask("+PONG", "PING") // the transaction is over
	if got := slow.answer(); len(got) < values*size {
		t.Errorf("the slow client has got %d bytes", len(got))
	}
	waitFor(t, "the answer is read", func() bool { return r.server.Unread() == 0 })
	w.ask("1", "GET", "n")
	w.ask("3", "GET", "m")
	slow.command(append([]string{"MGET"}, strings.Split(strings.Repeat("k ", values-1)+"k", " ")...)...)
	waitFor(t, "the answer is unread", func() bool { return r.server.Unread() >= most })
	slow.nc.Close()
	waitFor(t, "the slow client is gone", func() bool { return r.server.Unread() == 0 })
	w.ask("1", "GET", "n")
}

// Answers that callers at another door have not read count, too.
func TestAnswersOfOtherDoors(t *testing.T) {
	const most = 8 << 20
	answers := edge.NewBudget(most)
	r := newRig(t, Config{MaxAnswers: 1 << 30, Answers: answers}, tasks.Config{})
	w := r.dial()
	w.ask("+OK", "SET", "k", "v")
	elsewhere := answers.For(edge.Anyone)
	elsewhere.Add(most)
	w.ask("-TRYAGAIN too many answers wait for clients that do not read them; nothing was done", "GET", "k")
	elsewhere.Free()
	w.ask("v", "GET", "k")
}
