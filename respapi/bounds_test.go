package respapi_test

import (
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
	const inAll = "-TRYAGAIN the transactions of all connections have too many bytes; nothing was done"
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
