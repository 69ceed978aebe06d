package respapi_test

import (
	"bufio"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// as signs in with a password.
func (r *rig) as(password string) *wire {
	r.t.Helper()
	w := r.dial()
	w.ask("+OK", "AUTH", password)
	return w
}

// tokens makes tokens that are their own names.
func tokens(all map[string]edge.Token) *edge.Callers {
	callers, err := edge.NewCallers(named(all))
	if err != nil {
		panic(err)
	}
	return callers
}

// setTokens replaces tokens.
func setTokens(t *testing.T, callers *edge.Callers, all map[string]edge.Token) {
	t.Helper()
	if err := callers.Set(named(all)); err != nil {
		t.Fatal(err)
	}
}

// named returns tokens whose text is their name.
func named(all map[string]edge.Token) (list []edge.Token) {
	for name, t := range all {
		t.Name, t.SHA256 = name, edge.DigestOf(name)
		list = append(list, t)
	}
	return list
}

// Every command with a pattern refuses one that is too long, and so do those that name a channel.
func TestPatternsAreBounded(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	w := r.dial()
	const most = 4096
	long, class := strings.Repeat("a", most+1), "*["+strings.Repeat("a", 1<<20)+"]"
	const refused = "-ERR the pattern must be at most 4096 bytes long"
	for _, pattern := range []string{long, class} {
		for _, c := range [][]string{
			{"KEYS", pattern}, {"SCAN", "0", "MATCH", pattern}, {"PSUBSCRIBE", "a", pattern}, {"PUBSUB", "CHANNELS", pattern},
			{"COMMAND", "LIST", "FILTERBY", "PATTERN", pattern}, {"CONFIG", "GET", "save", pattern},
		} {
			w.ask(refused, c...)
		}
	}
	w.ask(":0", "PUBSUB", "NUMPAT") // PSUBSCRIBE a was refused with the other one
	for _, c := range [][]string{{"SUBSCRIBE", "a", long}, {"PUBLISH", long, "m"}} {
		w.ask("-ERR the name of a channel must be at most 4096 bytes long", c...)
	}
	w.ask("*0", "KEYS", "*["+strings.Repeat("a", most-3)+"]")
	w.ask(":0", "PUBLISH", long[1:], "m")
	w.ask("*3 psubscribe "+long[1:]+" :1", "PSUBSCRIBE", long[1:])
}

// hard is a pattern that takes about as many steps as there can be for so many letters a.
func hard(letters int) string { return "*" + strings.Repeat("[ab]", letters/2) + "c*" }

// A pattern that takes long is matched where no event waits for it.
func TestPatternsDoNotHoldUpEvents(t *testing.T) {
	const patterns, channel = 40, 4096
	r := newRig(t, Config{}, tasks.Config{})
	slow, events, publish := r.dial(), r.dial(), r.dial()
	for i := range patterns {
		slow.command("PSUBSCRIBE", hard(1900+2*i))
		slow.answer()
	}
	events.ask("*3 subscribe __keyevent@0__:expired :1", "SUBSCRIBE", "__keyevent@0__:expired")
	answered := make(chan time.Time, 1)
	go func() {
		publish.command("PUBLISH", strings.Repeat("a", channel), "m")
		publish.answer()
		answered <- time.Now()
	}()
	r.fire("expired", "k")
	events.want("*3 message __keyevent@0__:expired k")
	if heard := time.Now(); heard.After(<-answered) {
		t.Error("the event came after the message was matched with all patterns")
	}
}

// KEYS ends when its client has left, within a page.
func TestKeysEndsWithItsClient(t *testing.T) {
	t.Parallel()
	const keys, letters = 30_000, 500
	r := newRig(t, Config{}, tasks.Config{})
	w := r.dial()
	for i := 0; i < keys; {
		command := []string{"MSET"}
		for range 1000 {
			command = append(command, strings.Repeat("a", letters)+strconv.Itoa(i), "v")
			i++
		}
		w.ask("+OK", command...)
	}
	gone := r.dial()
	gone.command("KEYS", hard(letters))
	gone.nc.Close()
	var done, failed int64
	waitFor(t, "KEYS has ended", func() bool {
		r.server.EachCommand(func(name string, d, f int64, _ tasks.Latency) {
			if name == "keys" {
				done, failed = d, f
			}
		})
		return done+failed > 0
	})
	if failed != 1 {
		t.Error("KEYS has gone on to its end")
	}
}

// Only a caller that could make the keys of all topics may publish as the server does of keys.
func TestEventsAreNotForged(t *testing.T) {
	r := newRig(t, Config{Callers: tokens(map[string]edge.Token{
		"limited":  {Scopes: []edge.Scope{edge.ScopeReceive, edge.ScopeSchedule}, Topics: []string{"own.*"}},
		"bounded":  {Scopes: []edge.Scope{edge.ScopeSchedule}, MaxPending: 10},
		"asterisk": {Scopes: []edge.Scope{edge.ScopeSchedule}, Topics: []string{"own.*", "*"}},
		"admin":    {Scopes: []edge.Scope{edge.ScopeAdmin}},
		"receive":  {Scopes: []edge.Scope{edge.ScopeReceive}},
	})}, tasks.Config{})
	hears := r.as("receive")
	hears.ask("*3 psubscribe * :1", "PSUBSCRIBE", "*")
	for _, name := range []string{"limited", "receive"} {
		w := r.as(name)
		for _, channel := range []string{"__keyevent@0__:expired", "__keyspace@0__:order:42", "__keyevent@1__:expired"} {
			w.ask("-NOPERM this token has no permissions to access one of the channels used as arguments", "PUBLISH", channel, "order:42")
		}
		w.ask(":1", "PUBLISH", "c", name)
		hears.want("*4 pmessage * c " + name)
	}
	for _, name := range []string{"bounded", "asterisk", "admin"} {
		r.as(name).ask(":1", "PUBLISH", "__keyevent@0__:expired", name)
		hears.want("*4 pmessage * __keyevent@0__:expired " + name)
	}
	open := newRig(t, Config{}, tasks.Config{})
	open.dial().ask(":0", "PUBLISH", "__keyevent@0__:expired", "k")
}

// A token that is limited to topics learns nothing of the keys of others.
func TestCountsOfTokens(t *testing.T) {
	r := newRig(t, Config{
		Topics: map[string]string{"": "other", "own:": "own.keys"},
		Callers: tokens(map[string]edge.Token{
			"all":  {Scopes: []edge.Scope{edge.ScopeSchedule, edge.ScopeReceive}},
			"own":  {Scopes: []edge.Scope{edge.ScopeSchedule, edge.ScopeReceive}, Topics: []string{"own.*"}},
			"none": {Scopes: []edge.Scope{edge.ScopeRead}, Topics: []string{"third"}},
		}),
	}, tasks.Config{})
	w := r.as("all")
	w.ask("+OK", "MSET", "order:1", "v", "order:2", "v", "own:1", "v")
	w.ask("+OK", "SET", "own:2", "v", "EX", "100")
	w.command("SUBSCRIBE", "__keyspace@0__:order:1", "__keyspace@0__:own:1")
	w.want("*3 subscribe __keyspace@0__:order:1 :1")
	w.want("*3 subscribe __keyspace@0__:own:1 :2")
	for name, want := range map[string]struct{ size, info, channels string }{
		"all":  {":4", "# Keyspace\r\ndb0:keys=4,expires=1,avg_ttl=0\r\n", "*2 __keyspace@0__:order:1 __keyspace@0__:own:1"},
		"own":  {":2", "# Keyspace\r\ndb0:keys=2,expires=1,avg_ttl=0\r\n", "*1 __keyspace@0__:own:1"},
		"none": {":0", "# Keyspace\r\n", "*0"},
	} {
		w := r.as(name)
		w.ask(want.size, "DBSIZE")
		w.ask(want.info, "INFO", "keyspace")
		w.ask(want.channels, "PUBSUB", "CHANNELS")
		w.ask(want.channels, "PUBSUB", "CHANNELS", "__key*")
	}
	// Whether a key of another topic exists makes no difference.
	own := r.as("own")
	for _, key := range []string{"order:1", "order:absent"} {
		for _, command := range []string{"GET", "MGET", "DEL", "EXISTS", "TTL", "TYPE", "PERSIST", "INCR", "GETDEL", "STRLEN"} {
			own.ask("-NOPERM topic not granted", command, key)
		}
		own.ask("-NOPERM topic not granted", "SET", key, "v", "NX")
		own.ask("-NOPERM topic not granted", "EXPIRE", key, "10")
	}
}

// numbered returns names that begin alike.
func numbered(verb, name string, from, to int) []string {
	all := []string{verb}
	for i := from; i < to; i++ {
		all = append(all, name+strconv.Itoa(i))
	}
	return all
}

// What connections keep until EXEC is bounded, for each of them and for all together.
func TestTransactionsAreBounded(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	w := r.dial()
	const tooManyKeys = "-ERR a connection must watch at most 1000 keys, and 4 MiB of them"
	w.ask("+OK", numbered("WATCH", "k", 0, 600)...)
	w.ask(tooManyKeys, numbered("WATCH", "k", 600, 1001)...) // and it watches none of these
	w.ask("+OK", numbered("WATCH", "k", 600, 1000)...)
	w.ask("+OK", numbered("WATCH", "k", 0, 1000)...) // they are watched already
	w.ask(tooManyKeys, "WATCH", "k1000")
	w.ask("+OK", "UNWATCH")
	w.ask("+OK", "WATCH", "k1000")
	if kept := r.server.CountKept(0); kept == 0 {
		t.Error("a watched key does not count")
	}

	const tooManyCommands = "-ERR a transaction must have at most 10000 commands, and 4 MiB of them"
	w.ask("+OK", "MULTI")
	for range 4 {
		w.ask("+QUEUED", "ECHO", strings.Repeat("x", 1<<20-1024))
	}
	w.ask(tooManyCommands, "ECHO", strings.Repeat("x", 8<<10))
	w.ask("-EXECABORT Transaction discarded because of previous errors.", "EXEC")
	if kept := r.server.CountKept(0); kept != 0 {
		t.Errorf("after EXEC %d bytes count", kept)
	}

	r.server.CountKept(MostKeptInAll - 100)
	const inAll = "-TRYAGAIN the transactions of all connections, or of this token, have too many bytes; nothing was done"
	w.ask("+OK", "MULTI")
	w.ask(inAll, "PING")
	w.ask("+OK", "DISCARD")
	w.ask(inAll, "WATCH", "k")
	w.ask("+PONG", "PING")

	r.server.CountKept(100 - MostKeptInAll)
	w.ask("+OK", "MULTI")
	w.ask("+QUEUED", "PING")
	w.nc.Close()
	waitFor(t, "what a client has left behind is forgotten", func() bool { return r.server.CountKept(0) == 0 })
}

// The name of a group is bounded as that of a consumer is.
func TestNamesOfGroupsAreBounded(t *testing.T) {
	_, w := streamRig(t)
	long := strings.Repeat("g", 513)
	const refused = "-ERR the name of a group must be at most 512 bytes long"
	for _, command := range []string{
		"XGROUP CREATE expired:t % $ MKSTREAM", "XGROUP DESTROY expired:t %", "XGROUP SETID expired:t % $", "XGROUP CREATECONSUMER expired:t % c",
		"XREADGROUP GROUP % c BLOCK 1 STREAMS expired:t >",
	} {
		w.ask(refused, strings.Fields(strings.ReplaceAll(command, "%", long))...)
	}
	w.ask("*-1", "XREADGROUP", "GROUP", long[1:], "c", "BLOCK", "1", "STREAMS", "expired:t", ">")
}

// A transaction, or a command that tells of the server, is answered piece by piece: the answer is
// many times as long as the request. What was queued runs to its end although the client does not
// read.
func TestLongAnswersAreNotMadeWhole(t *testing.T) {
	t.Parallel()
	const size, reads, most = 60 << 10, 250, 48 << 20
	callers := tokens(map[string]edge.Token{"a": scopes(edge.ScopeSchedule), "b": scopes(edge.ScopeSchedule)})
	for name, c := range map[string]struct {
		queue [][]string // of a transaction; nil: command is asked
		ask   []string
		least int // bytes of the answer
	}{
		"EXEC":         {append(repeated([]string{"MGET"}, "k", reads, 12), []string{"SET", "last", "1"}), []string{"EXEC"}, 12 * reads * size},
		"EXEC COMMAND": {repeated([]string{"COMMAND"}, "", 0, 4000), []string{"EXEC"}, 40 << 20},
		"COMMAND INFO": {nil, repeated([]string{"COMMAND", "INFO"}, "client", 50_000, 1)[0], most},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{Callers: callers}, tasks.Config{})
			other, w := r.as("b"), r.as("a")
			other.ask("+OK", "SET", "k", strings.Repeat("v", size))
			w.receiveFew()
			if c.queue != nil {
				w.ask("+OK", "MULTI")
			}
			for _, command := range c.queue {
				w.ask("+QUEUED", command...)
			}
			w.command(c.ask...)
			waitFor(t, "much of the answer is unread", func() bool { return r.server.Unread() > 128<<10 })
			other.ask("+PONG", "PING")
			if n := r.server.Unread(); n > most {
				t.Errorf("%d bytes of the answer are in memory", n)
			}
			w.command("PING")
			if n := w.until("+PONG\r\n"); n < c.least {
				t.Errorf("the answer has %d bytes", n)
			}
			waitFor(t, "the answer is read", func() bool { return r.server.Unread() == 0 })
		})
	}
}

// Commands of one token that do not come to their end leave room for those of another.
func TestCommandsAreBoundedTogether(t *testing.T) {
	callers := tokens(map[string]edge.Token{"a": scopes(edge.ScopeSchedule), "b": scopes(edge.ScopeSchedule)})
	r := newRig(t, Config{Callers: callers, MaxCommand: LeastMaxCommand}, tasks.Config{})
	for range 20 {
		w := r.as("a")
		w.send("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$60000\r\n" + strings.Repeat("v", 50_000))
	}
	waitFor(t, "a token has used up its share", func() bool {
		w := r.as("a")
		w.command("SET", "k", strings.Repeat("v", 50_000))
		return w.answer() == "-ERR Protocol error: the command is too large"
	})
	r.as("b").ask("+OK", "SET", "k", strings.Repeat("v", 50_000))
}

// What clients send who have not said who they are takes no room from those who have.
func TestBytesOfStrangers(t *testing.T) {
	callers := tokens(map[string]edge.Token{"a": scopes(edge.ScopeSchedule)})
	r := newRig(t, Config{Callers: callers, MaxCommand: LeastMaxCommand}, tasks.Config{})
	const strangers = 40 // twice the budget of all commands
	answers := make(chan string, strangers)
	for range strangers {
		s := r.dial()
		s.send(strings.Repeat("x", 50<<10))
		go func() { // those that came first wait until the server closes
			line, _ := s.in.ReadString('\n')
			answers <- line
		}()
	}
	if got := <-answers; got != "-ERR Protocol error: the command is too large\r\n" {
		t.Errorf("the first stranger to be answered gets %q", got)
	}
	w := r.as("a")
	for range 3 {
		w.ask("+OK", "SET", "k", strings.Repeat("v", 50<<10))
	}
	// What a stranger has sent counts as the bytes of the caller that it turns out to be.
	s := r.dial()
	s.send("AUTH a\r\n" + "SET k " + strings.Repeat("w", 20<<10) + "\r\n")
	if got := s.answer() + s.answer(); got != "+OK+OK" {
		t.Errorf("AUTH and SET are answered %q", got)
	}
}

// until reads until something that ends the answers, and returns how many bytes came before it.
func (w *wire) until(end string) (n int) {
	w.t.Helper()
	for {
		part, err := w.in.ReadSlice(end[len(end)-1])
		if n += len(part); string(part) == end {
			return n - len(end)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			w.t.Fatalf("after %d bytes: %v", n, err)
		}
	}
}

// repeated returns n commands with an argument that is repeated.
func repeated(command []string, argument string, times, n int) [][]string {
	for range times {
		command = append(command, argument)
	}
	return slices.Repeat([][]string{command}, n)
}

// A client that reads gets all answers of its transaction, also if they exceed what may be unread.
func TestTransactionOfAReader(t *testing.T) {
	callers := tokens(map[string]edge.Token{"a": scopes(edge.ScopeSchedule)})
	r := newRig(t, Config{Callers: callers, MaxAnswers: 1 << 20}, tasks.Config{})
	const size, reads = 60 << 10, 300
	w := r.as("a")
	w.ask("+OK", "SET", "k", strings.Repeat("v", size))
	w.ask("+OK", "MULTI")
	for range reads {
		w.ask("+QUEUED", "GET", "k")
	}
	w.command("EXEC")
	if got := w.answer(); len(got) < reads*size || strings.Contains(got, "TRYAGAIN") {
		t.Errorf("EXEC is answered with %d bytes", len(got))
	}
}

// Answers that CLIENT REPLY suppresses are not unread.
func TestSuppressedAnswersDoNotCount(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	w, other := r.dial(), r.dial()
	w.ask("+OK", "SET", "k", strings.Repeat("v", 60<<10))
	w.command("CLIENT", "REPLY", "OFF")
	w.command(repeated([]string{"MGET"}, "k", 250, 1)[0]...)
	w.command("SET", "done", "1")
	waitFor(t, "all is done", func() bool {
		other.command("GET", "done")
		return other.answer() == "1"
	})
	waitFor(t, "nothing is unread", func() bool { return r.server.Unread() == 0 })
}

// What a client has queued runs to its end although it has gone without reading the answers.
func TestTransactionOutlivesItsClient(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	w, other := r.dial(), r.dial()
	w.receiveFew()
	w.ask("+OK", "SET", "k", strings.Repeat("v", 60<<10))
	w.ask("+OK", "MULTI")
	for _, command := range repeated([]string{"MGET"}, "k", 250, 8) {
		w.ask("+QUEUED", command...)
	}
	w.ask("+QUEUED", "SET", "last", "1")
	w.command("EXEC")
	waitFor(t, "much of the answer is unread", func() bool { return r.server.Unread() > 128<<10 })
	w.nc.Close()
	waitFor(t, "the last command has run", func() bool {
		other.command("GET", "last")
		return other.answer() == "1"
	})
	waitFor(t, "nothing is unread", func() bool { return r.server.Unread() == 0 })
}
