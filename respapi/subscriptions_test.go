package respapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// The answers are those of Redis, byte for byte. Each script is one connection.
func TestSubscriptionsAsRedis(t *testing.T) {
	real := redistest.Start(t)
	ours := newRig(t, Config{}, tasks.Config{})
	for _, script := range []string{
		"SUBSCRIBE a\nUNSUBSCRIBE\nUNSUBSCRIBE\nPUNSUBSCRIBE\nUNSUBSCRIBE zz\nPSUBSCRIBE a* a*\nPUBLISH a 1\nSUBSCRIBE\nPUNSUBSCRIBE x y",
		"SUBSCRIBE a b a\nUNSUBSCRIBE a\nPING\nPING x\nPSUBSCRIBE b\nPUNSUBSCRIBE\nECHO a\nUNSUBSCRIBE b\nPING",
		"PING\nSUBSCRIBE a\nRESET\nPING\nPUBLISH a 1\nPUBSUB CHANNELS",
		"SUBSCRIBE a\nQUIT",
		"HELLO 3\nSUBSCRIBE a\nPUBLISH a hi\nPSUBSCRIBE a*\nPING\nPUBLISH a ho\nUNSUBSCRIBE\nPUNSUBSCRIBE\nPUNSUBSCRIBE\nPUBLISH a he",
		"HELLO 3\nPSUBSCRIBE [ab]?\nPUBLISH ax 1\nPUBLISH cx 1\nPUBLISH bxx 1\nPUBLISH bx 1\nHELLO 2\nPUBLISH a 1",
		"MULTI\nSUBSCRIBE a\nPSUBSCRIBE a*\nPUBLISH a hello\nUNSUBSCRIBE\nEXEC\nPUNSUBSCRIBE\nPUBLISH a 1",
		"HELLO 3\nMULTI\nSUBSCRIBE a\nPUBLISH a hello\nPING\nEXEC",
		"PUBSUB CHANNELS\nPUBSUB NUMSUB a b\nPUBSUB NUMSUB\nPUBSUB NUMPAT\nPUBSUB NUMPAT 1\nPUBSUB CHANNELS a b\nPUBSUB FOO\nPUBSUB\nPUBLISH a",
		"HELLO 3\nSUBSCRIBE a b c\nPSUBSCRIBE a b\nPUBSUB CHANNELS [a]\nPUBSUB NUMSUB a b x\nPUBSUB NUMPAT",
		"CONFIG SET notify-keyspace-events Ex\nCONFIG GET notify*\nCONFIG SET notify-keyspace-events AKE\nCONFIG GET notify*\nCONFIG SET notify-keyspace-events g$xE\nCONFIG GET notify*",
		"CONFIG SET notify-keyspace-events KEAmn\nCONFIG GET NOTIFY*\nCONFIG SET notify-keyspace-events Q\nCONFIG SET foo bar\nCONFIG SET notify-keyspace-events\nCONFIG SET\nCONFIG\nCONFIG GET\nCONFIG GET a b c\nCONFIG FOO\nCONFIG GET maxmemory maxmemory x",
		"CONFIG SET notify-keyspace-events E notify-keyspace-events K\nCONFIG SET NOTIFY-keyspace-events mKEe\nCONFIG GET notify*\nCONFIG SET notify-keyspace-events \"\"\nCONFIG GET notify*\nCONFIG SET notify-keyspace-events g$lshzxetdmn\nCONFIG GET notify*\nCONFIG SET notify-keyspace-events xnE$gK\nCONFIG GET notify*\nHELLO 3\nCONFIG GET nothing",
	} {
		want, got := exchange(t, real.Addr, script), exchange(t, ours.addr, script)
		if got != want {
			t.Errorf("%q:\n got %q\nwant %q", script, got, want)
		}
	}
}

// exchange sends commands of one connection together, and returns what comes until QUIT is
// answered. The number of the connection is not compared.
func exchange(t *testing.T, addr, script string) string {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(nc, strings.ReplaceAll(script, "\n", "\r\n")+"\r\nQUIT\r\n"); err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(bufio.NewReader(nc))
	if err != nil {
		t.Fatalf("%q: %v after %q", script, err, all)
	}
	var lines []string
	for line := range strings.SplitSeq(string(all), "\r\n") {
		if strings.HasPrefix(line, ":") && len(lines) > 1 && lines[len(lines)-1] == "id" {
			line = ":id"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "|")
}

// want reads an answer, or a message, and compares it.
func (w *wire) want(want string) {
	w.t.Helper()
	if got := w.answer(); got != want {
		w.t.Errorf("got %q, want %q", got, want)
	}
}

func TestMessages(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	a, b, p := r.dial(), r.dial(), r.dial()
	a.ask("*3 subscribe news :1", "SUBSCRIBE", "news")
	b.command("HELLO", "3")
	b.answer()
	b.ask(">3 psubscribe n* :1", "PSUBSCRIBE", "n*")
	b.ask(">3 subscribe news :2", "SUBSCRIBE", "news")
	p.ask(":3", "PUBLISH", "news", "a\r\nb")
	a.want("*3 message news a\r\nb")
	got := map[string]bool{b.answer(): true, b.answer(): true}
	if !got[">3 message news a\r\nb"] || !got[">4 pmessage n* news a\r\nb"] {
		t.Errorf("the messages are %v", got)
	}
	b.ask("+PONG", "PING")
	a.nc.Close()
	b.ask(">3 unsubscribe news :1", "UNSUBSCRIBE", "news")
	for {
		p.command("PUBSUB", "NUMSUB", "news")
		if p.answer() == "*2 news :0" {
			break
		}
	}
	p.ask(":1", "PUBLISH", "nobody", "x")
	p.ask("*2 news :0", "PUBSUB", "NUMSUB", "news")
	p.ask(":1", "PUBSUB", "NUMPAT")
}

// A confirmation comes before the first message of its channel.
func TestConfirmationIsFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{}, tasks.Config{})
	stop, stopped := make(chan struct{}), make(chan struct{})
	p := r.dial()
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				p.command("PUBLISH", "c", "x")
				p.answer()
			}
		}
	}()
	for range 200 {
		w := r.dial()
		w.send("PING\r\nSUBSCRIBE c\r\n")
		w.want("+PONG")
		w.want("*3 subscribe c :1")
		w.want("*3 message c x")
		w.nc.Close()
	}
	close(stop)
	<-stopped
}

// A subscriber that does not read is cut off, and counted; others get everything.
func TestSlowSubscriber(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	slow, quick, p := r.dial(), r.dial(), r.dial()
	slow.ask("*3 subscribe c :1", "SUBSCRIBE", "c")
	quick.ask("*3 subscribe c :1", "SUBSCRIBE", "c")
	text := strings.Repeat("x", 1<<20)
	for i := 0; ; i++ {
		p.command("PUBLISH", "c", text)
		receivers := p.answer()
		quick.want("*3 message c " + text)
		if receivers == ":1" {
			break
		}
		if i > 100 {
			t.Fatal("100 MiB wait for a subscriber that does not read")
		}
	}
	if _, err := io.Copy(io.Discard, slow.in); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the slow subscriber is not cut off: %v", err)
	}
}

// Once messages of many bytes wait for all subscribers, one that does not read is cut off soon.
func TestMessagesAreBoundedTogether(t *testing.T) {
	const size, many = 64 << 10, 2 << 20
	r := newRig(t, Config{}, tasks.Config{})
	slow, quick, p := r.dial(), r.dial(), r.dial()
	slow.receiveFew()
	slow.ask("*3 subscribe c :1", "SUBSCRIBE", "c")
	quick.ask("*3 subscribe c :1", "SUBSCRIBE", "c")
	text := strings.Repeat("x", size)
	publish := func() string {
		p.command("PUBLISH", "c", text)
		receivers := p.answer()
		quick.want("*3 message c " + text)
		return receivers
	}
	for r.server.CountPushed(0) < many {
		if got := publish(); got != ":2" {
			t.Fatalf("%s receivers while few messages wait", got)
		}
	}
	r.server.CountPushed(MostPushedInAll)
	publish() // counts it before it is cut off
	if got := publish(); got != ":1" {
		t.Fatalf("%s receivers: one that does not read is not cut off", got)
	}
	waitFor(t, "the messages of the slow subscriber are gone", func() bool { return r.server.CountPushed(0) == MostPushedInAll })
	for range many / size {
		if got := publish(); got != ":1" {
			t.Fatalf("%s receivers: one that reads is cut off", got)
		}
	}
	waitFor(t, "all is read", func() bool { return r.server.CountPushed(0) == MostPushedInAll })
}

func TestSubscriptionBounds(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	w := r.dial()
	args := []string{"SUBSCRIBE"}
	for i := range 10_001 {
		args = append(args, fmt.Sprint(i))
	}
	w.command(args...)
	for i := range 10_000 {
		w.want(fmt.Sprintf("*3 subscribe %d :%d", i, i+1))
	}
	w.want("-ERR too many subscriptions")
	w.ask("*3 unsubscribe 0 :9999", "UNSUBSCRIBE", "0")
	w = r.dial()
	for i := range 256 { // 2 MiB of names
		w.command("SUBSCRIBE", fmt.Sprintf("%04096d", i))
		w.answer()
		w.command("SUBSCRIBE", fmt.Sprintf("%04095d", i))
		w.answer()
	}
	w.ask("-ERR too many subscriptions", "SUBSCRIBE", fmt.Sprintf("%04094d", 1))
}

// Tokens say which keys a subscriber hears of. One that is withdrawn ends its subscriptions.
func TestSubscriptionsOfTokens(t *testing.T) {
	known := map[string]edge.Token{
		"all":   {Scopes: []edge.Scope{edge.ScopeReceive, edge.ScopeSchedule}},
		"order": {Scopes: []edge.Scope{edge.ScopeReceive}, Topics: []string{"order.*"}},
		"write": {Scopes: []edge.Scope{edge.ScopeSchedule}},
		"read":  {Scopes: []edge.Scope{edge.ScopeRead}},
	}
	callers := tokens(known)
	r := newRig(t, Config{
		Callers: callers,
		Topics:  map[string]string{"": "other", "order:": "order.expired"},
	}, tasks.Config{})
	as := func(name string) *wire {
		w := r.dial()
		w.ask("+OK", "AUTH", name)
		return w
	}
	all, order, write := as("all"), as("order"), as("write")
	as("all").ask("*3 subscribe __keyevent@0__:expired :1", "SUBSCRIBE", "__keyevent@0__:expired")
	all.ask("*3 psubscribe * :1", "PSUBSCRIBE", "*")
	order.ask("*3 subscribe __keyevent@0__:expired :1", "SUBSCRIBE", "__keyevent@0__:expired")
	write.ask("-NOPERM this token has no permissions to access one of the channels used as arguments", "PSUBSCRIBE", "__key*")
	write.ask("*3 psubscribe * :1", "PSUBSCRIBE", "*")
	as("read").ask("-NOPERM this token has no permissions to run the 'subscribe' command", "SUBSCRIBE", "c")
	r.fire("other", "x")
	all.want("*4 pmessage * __keyevent@0__:expired x")
	r.fire("order.expired", "order:1")
	all.want("*4 pmessage * __keyevent@0__:expired order:1")
	order.want("*3 message __keyevent@0__:expired order:1")
	as("all").ask(":2", "PUBLISH", "c", "hi")
	write.want("*4 pmessage * c hi") // and none of the events
	as("write").ask("-NOPERM this token has no permissions to run the 'config|set' command", "CONFIG", "SET", "notify-keyspace-events", "KEA")
	as("write").ask("+OK", "CONFIG", "SET", "notify-keyspace-events", "Ex")

	delete(known, "order")
	setTokens(t, callers, known)
	if _, err := order.in.ReadByte(); err != io.EOF {
		t.Errorf("after its token was withdrawn, a subscriber reads %v", err)
	}
}

// fire schedules tasks that are due at once.
func (r *rig) fire(topic string, ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		if _, err := r.scheduler.Schedule(r.t.Context(), tasks.Request{ID: id, Topic: topic}); err != nil {
			r.t.Fatal(err)
		}
	}
}
