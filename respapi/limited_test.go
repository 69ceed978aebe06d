package respapi_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// What is foreign has canary or secret in it, which no argument of the caller has.
const canary, secret = "\xfe", "vault"

func tells(text string) bool { return strings.Contains(text, canary) || strings.Contains(text, secret) }

// limitedWords are what arguments are made of, beside the names of verbs.
var limitedWords = append(strings.Fields(`
	own:k own:j own:new foreign:k foreign:held foreign:stay own:theirs expired:own.s expired:own.keys expired:foreign expired:foreign.s
	c g consumer * own:* foreign:* [^a]* > $ + - 0 1 2 3 100 -1 0-0 0-1 1.5 9223372036854775807 x own nope default
	NX XX GT LT GET EX PX EXAT PXAT KEEPTTL PERSIST IFEQ DELEX MATCH COUNT TYPE string stream REPLACE DB GROUP STREAMS BLOCK MKSTREAM JUSTID NOACK FORCE IDLE TIME RETRYCOUNT
	LASTID ENTRIESREAD FULL ON OFF SKIP SETNAME LIB-NAME notify-keyspace-events AKE server all
	__keyevent@0__:expired __keyevent@0__:set __keyspace@0__:own:k __keyspace@0__:foreign:k __key*@*__:*`),
	"return redis.call(unpack(ARGV))",
	"return {redis.pcall(ARGV[1], KEYS[1]), redis.pcall(ARGV[1], KEYS[1], ARGV[2])}",
	"redis.pcall('set', KEYS[1], ARGV[1]) return redis.pcall('get', KEYS[1]) or redis.error_reply('none')")

// commandsOf makes commands of bytes. Each begins with its verb and the number of its arguments.
// The last one is QUIT.
func commandsOf(data []byte) (all [][]string) {
	next := func() (c int) {
		if len(data) > 0 {
			c, data = int(data[0]), data[1:]
		}
		return c
	}
	verbs := Verbs()
	words := slices.Concat(verbs, limitedWords)
	for len(data) > 0 && len(all) < 60 {
		args := strings.Fields(verbs[next()%len(verbs)])
		for range next() % 10 {
			switch i := next(); {
			case i >= len(words): // an argument that is no word
				n := min(next()%16, len(data))
				if text := string(data[:n]); !tells(text) {
					args = append(args, text)
				}
				data = data[n:]
			case words[i] == "BLOCK":
				args = append(args, "BLOCK", "1")
			case i < len(verbs):
				args = append(args, strings.Fields(words[i])...)
			default:
				args = append(args, words[i])
			}
		}
		if args[0] == "quit" { // what follows would not be read
			break
		}
		all = append(all, args)
	}
	return append(all, []string{"quit"})
}

// limitedRig is a rig with a token "own" of the topics own.*, and foreign keys, tasks, streams,
// subscriptions and dead tasks with canaries in them.
func limitedRig(t testing.TB) *rig {
	t.Helper()
	r := newRig(t, Config{Topics: map[string]string{"": "foreign", "loud:": "loud", "own:": "own.keys"}, Callers: tokens(map[string]edge.Token{
		"own":   {Scopes: []edge.Scope{edge.ScopeSchedule, edge.ScopeReceive, edge.ScopeRead}, Topics: []string{"own.*"}},
		"admin": {Scopes: []edge.Scope{edge.ScopeAdmin}},
	})}, tasks.Config{Topics: map[string]tasks.TopicSettings{"foreign.s": {Lease: 24 * time.Hour}}})
	r.await("the topics are set up", func() bool { return r.kindIs("foreign", KindKeyevent)() && r.kindIs("own.keys", KindKeyevent)() })
	admin := r.as("admin")
	for _, c := range []string{
		"CONFIG SET notify-keyspace-events AKEn", "XGROUP CREATE expired:foreign.s g $ MKSTREAM",
		"SET foreign:k " + canary + "v", "SET foreign:stay " + canary, "PEXPIRE foreign:k 99999999", "SET foreign:" + canary + " v EX 99999",
	} {
		admin.sets(c)
	}
	for _, q := range []tasks.Request{
		{ID: "foreign:held", Topic: "foreign"},
		{ID: "own:theirs", Topic: "foreign"}, // under an id that would be a key of the caller
		{ID: "foreign.s.later", Topic: "foreign.s"},
		{ID: "foreign.s.1", Topic: "foreign.s", Due: time.UnixMilli(1)},
		{ID: "foreign.s.2", Topic: "foreign.s", Due: time.UnixMilli(2)},
		{ID: "foreign.s.3", Topic: "foreign.s", Due: time.UnixMilli(3)},
	} {
		q.Payload, q.Headers, q.Group = []byte(canary), map[string]string{"h": secret}, secret
		if q.Due.IsZero() {
			q.Due = time.Now().Add(1000 * time.Hour)
		}
		if _, err := r.scheduler.Schedule(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.scheduler.Hold(t.Context(), "foreign:held"); err != nil {
		t.Fatal(err)
	}
	if got := admin.got("XREADGROUP", "GROUP", "g", secret, "COUNT", "1", "STREAMS", "expired:foreign.s", ">"); !tells(got) {
		t.Fatalf("a foreign entry is %q", got)
	}
	taken, err := r.scheduler.Reserve(t.Context(), "foreign.s", 1, 0, 0)
	if err != nil || len(taken) != 1 {
		t.Fatal(taken, err)
	}
	if _, err := r.scheduler.Settle(t.Context(), tasks.Verdict{Verb: tasks.Bury, Reason: secret}, []string{taken[0].Receipt()}); err != nil {
		t.Fatal(err)
	}
	return r
}

// sets sends a command that must be done.
func (w *wire) sets(command string) {
	w.t.Helper()
	if a := w.got(strings.Fields(command)...); a != "+OK" && a != ":1" {
		w.t.Fatalf("%q: %s", command, a)
	}
}

// anew returns the rig for another test, with the keys and entries that the caller has at first.
func (r *rig) anew(t *testing.T) *rig {
	t.Helper()
	next := *r
	r, next.t = &next, t
	if _, err := r.scheduler.Admin().Purge(t.Context(), "own.*"); err != nil {
		t.Fatal(err)
	}
	admin := r.as("admin")
	admin.got("XGROUP", "DESTROY", "expired:own.s", "g")
	for _, c := range []string{"XGROUP CREATE expired:own.s g $ MKSTREAM", "SET own:k v", "SET own:j 1 EX 99999"} {
		admin.sets(c)
	}
	for i, id := range []string{"own.s.1", "own.s.2"} {
		q := tasks.Request{ID: id, Topic: "own.s", Payload: []byte("v"), Due: time.UnixMilli(int64(i + 1)), Supersede: true}
		if _, err := r.scheduler.Replace(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// foreign returns all that there is of the foreign topics.
func (r *rig) foreign() string {
	r.t.Helper()
	var all []any
	for _, q := range []tasks.Query{{}, {Topic: "foreign", State: tasks.Dead}, {Topic: "foreign.s", State: tasks.Dead}} {
		page, err := r.scheduler.List(r.t.Context(), q)
		if err != nil || page.Cursor != "" {
			r.t.Fatal(page.Cursor, err)
		}
		for _, one := range page.Tasks {
			if strings.HasPrefix(one.Topic, "foreign") {
				all = append(all, one)
			}
		}
	}
	for _, t := range r.scheduler.Admin().Topics() {
		if strings.HasPrefix(t.Name, "foreign") {
			all = append(all, t.Name, t.Settings, t.Revision, t.Counts.Dead, t.Counts.Pending)
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

// Whatever a limited token sends, nothing foreign comes back or changes, and each command has its
// answer.
func FuzzLimitedToken(f *testing.F) {
	all := limitedRig(f) // one for all inputs: making one takes 10 ms
	words := slices.Concat(Verbs(), limitedWords)
	at := func(word string) byte { return byte(slices.Index(words, word)) }
	for i := range Verbs() { // each verb with the keys, with a stream, with patterns, and with none
		f.Add([]byte{byte(i), 3, at("own:k"), at("foreign:k"), at("own:theirs"), byte(i), 3, at("expired:foreign.s"), at("g"), at("0-1"), byte(i), 1, at("foreign:*"), byte(i), 0})
	}
	for _, script := range limitedWords[len(limitedWords)-3:] {
		f.Add([]byte{at("eval"), 5, at(script), at("1"), at("foreign:k"), at("get"), at("foreign:k"), at("eval"), 5, at(script), at("1"), at("own:k"), at("get"), at("own:theirs")})
	}
	f.Add([]byte{at("xreadgroup"), 7, at("GROUP"), at("g"), at("c"), at("BLOCK"), at("STREAMS"), at("expired:foreign.s"), at(">")})
	f.Add([]byte{at("xreadgroup"), 7, at("GROUP"), at("g"), at("c"), at("BLOCK"), at("STREAMS"), at("expired:own.s"), at(">")})
	f.Add([]byte{at("psubscribe"), 2, at("*"), at("__key*@*__:*"), at("reset"), 0, at("ping"), 0})
	f.Add([]byte{at("psubscribe"), 1, at("*"), at("ping"), 0, at("ping"), 0, at("ping"), 0})
	f.Add([]byte{at("hello"), 1, at("3"), at("subscribe"), 1, at("c"), at("multi"), 0, at("publish"), 2, at("c"), at("x"), at("get"), 1, at("own:k"), at("exec"), 0})
	f.Add([]byte{at("multi"), 0, at("get"), 1, at("foreign:k"), at("set"), 2, at("own:theirs"), at("x"), at("copy"), 3, at("own:k"), at("foreign:k"), at("REPLACE"), at("exec"), 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		commands := commandsOf(data)
		r := all.anew(t)
		hears := r.as("admin")
		hears.command("SUBSCRIBE", "__keyspace@0__:foreign:k", "__keyspace@0__:foreign:"+canary)
		before := r.foreign()
		out, err := r.sendAll(commands)
		// After a protocol error the server need not read the rest.
		if err != nil && !bytes.Contains(out, []byte(protocolError)) {
			t.Fatalf("%q: %v after %q", commands, err, out)
		}
		if tells(string(out)) {
			t.Fatalf("%q: told is %q", commands, out)
		}
		if now := r.foreign(); now != before {
			t.Fatalf("%q have changed\n%s\nto\n%s", commands, before, now)
		}
		hears.want("*3 subscribe __keyspace@0__:foreign:k :1")
		hears.want("*3 subscribe __keyspace@0__:foreign:" + canary + " :2")
		hears.ask("*2 pong ", "PING")
		if err := judgeReplies(commands, out); err != nil {
			t.Fatalf("%q: %v in %q", commands, err, out)
		}
	})
}

// sendAll sends commands as the limited token, and returns all that comes back until the server
// closes the connection. In between another caller sets a key, of which there are events.
func (r *rig) sendAll(commands [][]string) ([]byte, error) {
	w, admin := r.as("own"), r.as("admin")
	send := func(part [][]string) {
		var b []byte
		for _, args := range part {
			b = append(b, encode(args)...)
		}
		_, _ = w.nc.Write(b) // it may have ended
	}
	out := make(chan []byte, 1)
	failed := make(chan error, 1)
	go func() {
		all, err := io.ReadAll(w.in)
		out <- all
		failed <- err
	}()
	send(commands[:len(commands)/2])
	admin.ask("+OK", "SET", "loud:"+canary, "v", "PX", "1")
	send(commands[len(commands)/2:])
	return <-out, <-failed
}

// protocolError begins the last answer of a connection.
const protocolError = "-ERR Protocol error"

// judgeReplies checks that each command has its answer: a value, or confirmations of subscriptions.
// What a server sends after CLIENT REPLY, or for subscriptions in a transaction, is not counted.
func judgeReplies(commands [][]string, out []byte) error {
	s, replies := &side{in: bufio.NewReader(bytes.NewReader(out))}, []reply(nil)
	for {
		v, err := s.read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if v.pushed() != "message" {
			replies = append(replies, v)
		}
	}
	counted := func(verb string) bool {
		return slices.ContainsFunc(commands, func(args []string) bool { return strings.HasPrefix(strings.Join(args, " "), verb) })
	}
	if counted("client reply") || counted("multi") && (counted("subscribe") || counted("psubscribe") || counted("unsubscribe") || counted("punsubscribe")) {
		return nil
	}
	subscribed := map[string]bool{} // by kind and name
	for _, args := range commands {
		if len(replies) == 0 {
			return fmt.Errorf("%q has no answer", args)
		}
		n := 1
		if replies[0].pushed() == args[0] {
			if n = confirmations(subscribed, args); n > len(replies) {
				return fmt.Errorf("%q has %d confirmations, want %d", args, len(replies), n)
			}
		}
		if replies[0].raw == "+RESET\r\n" {
			clear(subscribed)
		}
		// Many arguments after RESET.
		ended := strings.HasPrefix(replies[0].raw, protocolError)
		if replies = replies[n:]; ended {
			break
		}
	}
	if len(replies) > 0 {
		return fmt.Errorf("an answer to no command: %s", &replies[0])
	}
	return nil
}

// confirmations returns how many a command about subscriptions has, and notes what it does.
func confirmations(subscribed map[string]bool, args []string) int {
	verb, names := args[0], args[1:]
	kind := strings.TrimSuffix(strings.Replace(verb, "un", "", 1), "subscribe") + ":"
	if !strings.Contains(verb, "un") {
		for _, name := range names {
			subscribed[kind+name] = true
		}
		return len(names)
	}
	if len(names) == 0 {
		for name := range subscribed {
			if name, is := strings.CutPrefix(name, kind); is {
				names = append(names, name)
			}
		}
	}
	for _, name := range names {
		delete(subscribed, kind+name)
	}
	return max(1, len(names))
}

// pushed returns the verb that a subscription is confirmed with, "message" of what is published,
// else "".
func (r *reply) pushed() string {
	if len(r.parts) < 3 {
		return ""
	}
	_, what, _ := strings.Cut(strings.TrimSuffix(r.parts[0].raw, "\r\n"), "\r\n")
	switch what {
	case "subscribe", "psubscribe", "unsubscribe", "punsubscribe":
		return what
	case "message", "pmessage":
		return "message"
	}
	return ""
}

// A task that a limited token cannot read may have the id of one of its keys. Then each verb that
// would make the key says so at its first try.
func TestKeyWithAForeignID(t *testing.T) {
	r := limitedRig(t).anew(t)
	own, before := r.as("own"), r.foreign()
	const taken = "-ERR the id is taken by a task with other content"
	for _, c := range []string{
		"SET own:theirs v", "SET own:theirs v NX", "SET own:theirs v GET", "SET own:theirs v KEEPTTL", "SETNX own:theirs v", "SETEX own:theirs 9 v",
		"GETSET own:theirs v", "INCR own:theirs", "APPEND own:theirs v", "SETRANGE own:theirs 1 v", "MSET own:theirs v", "MSETNX own:theirs v",
		"RENAME own:k own:theirs", "RENAMENX own:k own:theirs", "COPY own:k own:theirs",
	} {
		own.ask(taken, strings.Fields(c)...)
	}
	own.ask(taken, "EVAL", "return redis.call('SET', KEYS[1], 'v')", "1", "own:theirs")
	own.ask("+OK", "MULTI")
	own.ask("+QUEUED", "INCR", "own:theirs")
	own.ask("*1 "+taken, "EXEC")
	own.ask("v", "GET", "own:k")
	if now := r.foreign(); now != before {
		t.Errorf("what was\n%s\nis\n%s", before, now)
	}
}
