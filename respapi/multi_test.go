package respapi_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// asks sends commands one after the other and compares the answers: "SET k v -> +OK".
func (w *wire) asks(script string) {
	w.t.Helper()
	for line := range strings.Lines(script) {
		command, want, ok := strings.Cut(strings.TrimSpace(line), " -> ")
		if ok {
			w.ask(want, strings.Fields(command)...)
		}
	}
}

// exec asks for a transaction, and returns the answer to EXEC.
func (w *wire) exec(commands ...string) string {
	w.t.Helper()
	w.ask("+OK", "MULTI")
	for _, c := range commands {
		w.ask("+QUEUED", strings.Fields(c)...)
	}
	w.command("EXEC")
	return w.answer()
}

// EXEC is nil if a watched key is not what it was at WATCH, and nothing is done then.
func TestExecIsNil(t *testing.T) {
	r := newRig(t, Config{Flush: true}, tasks.Config{})
	w, other := r.dial(), r.dial()
	sub := r.dial()
	sub.ask("*3 subscribe news :1", "SUBSCRIBE", "news")
	for name, c := range map[string]struct{ before, watch, change string }{
		"set":                   {"SET k v", "k", "SET k v -> +OK"},
		"set while it is not":   {"", "k", "SET k v -> +OK"},
		"deleted":               {"SET k v", "k", "DEL k -> :1"},
		"another deadline":      {"SET k v EX 100", "k", "EXPIRE k 200 -> :1"},
		"changed and back":      {"SET k v", "k", "DEL k -> :1\nSET k v -> +OK"},
		"the second of two":     {"SET k v", "j k", "INCR n -> :1\nSET k w -> +OK"},
		"flushed":               {"SET k v", "k", "FLUSHALL -> +OK"},
		"not used by a command": {"SET k v", "other k", "APPEND k w -> :2"},
	} {
		w.ask("+OK", "FLUSHALL")
		if c.before != "" {
			w.ask("+OK", strings.Fields(c.before)...)
		}
		w.ask("+OK", append([]string{"WATCH"}, strings.Fields(c.watch)...)...)
		other.asks(c.change)
		if got := w.exec("PUBLISH news x", "SET other 1", "RENAME other another", "GET k", "KEYS *"); got != "*-1" {
			t.Errorf("%s: EXEC is answered %q", name, got)
		}
		w.ask(":0", "EXISTS", "other", "another")
		w.ask("+OK", "WATCH", "k")
		if got := w.exec("EXISTS k other"); !strings.HasPrefix(got, "*1 :") {
			t.Errorf("%s: EXEC is answered %q", name, got)
		}
	}
	w.ask(":1", "PUBLISH", "news", "end")
	if got := sub.answer(); got != "*3 message news end" {
		t.Errorf("a transaction that is nil has told %q", got)
	}
}

// Commands of a transaction see what those before them have done. What was not written is the error
// of the commands that need it.
func TestTransactionSeesItself(t *testing.T) {
	w := newRig(t, Config{Flush: true}, tasks.Config{}).dial()
	w.command("HELLO", "3")
	hello3 := w.answer()
	w.command("HELLO", "2")
	hello2 := w.answer()
	for _, c := range []struct{ commands, want string }{
		{"SET a 1 EX 100|INCR a|TTL a|GETDEL a|EXISTS a|GET a", "*6 +OK :2 :100 2 :0 $-1"},
		{"MSET a 1 b 2|RENAME a c|MGET a b c|COPY c a|DEL b c|KEYS *", "*6 +OK +OK *3 $-1 2 1 :1 :2 *1 a"},
		{"MSETNX a 1 d 2|MSETNX d 2 e 3|MSETNX e 4 e 5|MGET d e|DBSIZE", "*5 :0 :1 :0 *2 2 3 :3"},
		{"SET a 1|FLUSHALL|EXISTS a|SET a 2|GET a", "*5 +OK +OK :0 +OK 2"},
		{"SET a va|SET b vb|COPY a b|GET b|SET c vc|RENAMENX a c|MGET a b c|DEL b c|SET a 1", "*9 +OK +OK :0 vb +OK :0 *3 va vb vc :2 +OK"},
		{"SET a 1|SET b 2|RENAME a t|RENAME b a|RENAME t b|MGET a b t|DEL b|SET a 1", "*8 +OK +OK +OK +OK +OK *3 2 1 $-1 :1 +OK"},
		{"SET a 1|EVAL_RO return(redis.call('get','a')) 0|SET a 2|EVAL redis.call('incr','a') 0|GET a|SET a 9", "*6 +OK 1 +OK $-1 3 +OK"},
		{"DEL b|GET b|EVAL redis.call('set','b',1) 0|GET b|EVAL redis.call('set','b',2) 0|GET b|DEL b", "*7 :0 $-1 $-1 1 $-1 2 :1"},
		{"SET a 5|FOLLOW", ""},
		{"SET x 1|FLUSHALL a b|INCR x|KEYS x|HELLO 3|GETDEL no|HELLO 2|DEL x", "*8 +OK -ERR syntax error :2 *1 x " + hello3 + " _ " + hello2 + " :1"},
		{"SET a 1 PXAT 1|GET a|SET a 2|GET a|PERSIST a|EXPIRE a 100|PERSIST a|TTL a", "*8 +OK $-1 +OK 2 :0 :1 :1 :-1"},
		{"SET b " + strings.Repeat("v", 256<<10+1) + "|GET b|SET c 1|APPEND c 2|APPEND c " + strings.Repeat("v", 256<<10) + "|STRLEN c", "*6 E $-1 +OK :2 E :2"},
		{"INCR a|INCR c|LPUSH x|GET c", ""},
	} {
		commands := strings.Split(c.commands, "|")
		if c.want == "" { // a command that cannot be queued spoils it
			w.ask("+OK", "MULTI")
			for _, command := range commands {
				w.command(strings.Fields(command)...)
				w.answer()
			}
			w.ask("-EXECABORT Transaction discarded because of previous errors.", "EXEC")
			continue
		}
		got := strings.ReplaceAll(w.exec(commands...), "-ERR string exceeds maximum allowed size (proto-max-bulk-len)", "E")
		if got != c.want {
			t.Errorf("%.80s: EXEC is answered %q, want %q", c.commands, got, c.want)
		}
	}
	w.asks("GET a -> 2\nGET c -> 12\nEXISTS b -> :0")
}

// A transaction goes on after its own FLUSHALL with the keys that it has watched.
func TestFlushOfWatchedKeys(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		w := newRig(t, Config{Flush: allowed}, tasks.Config{}).dial()
		w.asks("SET k 1 -> +OK\nWATCH k -> +OK")
		want := "*3 +OK +OK :6"
		if !allowed {
			want = "*3 -ERR flushall is off; the setting resp_flush allows it +OK :6"
		}
		if got := w.exec("FLUSHALL", "SET k 5", "INCR k"); got != want {
			t.Errorf("EXEC is answered %q, want %q", got, want)
		}
	}
}

// What cannot be written is the error of the commands that need it, and nothing that depends on it
// is done: no key is lost, and none has a value that never was.
func TestLostWritesOfTransaction(t *testing.T) {
	t.Parallel()
	const full = "-OOM this node has as many keys without a TTL as resp_max_persistent allows"
	for _, c := range []struct{ commands, want, then string }{
		{"RENAME a b", "*1 " + full, "GET a -> 1\nEXISTS b -> :0"},
		{"SET c 5 EX 100|RENAME a b|RENAME b d|GET d", "*4 +OK " + full + " -ERR no such key $-1", "GET a -> 1\nEXISTS b d -> :0\nGET c -> 5"},
		{"INCR m|COPY m m2|EXPIRE m2 100|GET m2|INCR a", "*5 " + full + " :0 :0 $-1 :2", "EXISTS m m2 -> :0"},
		{"INCR m|KEYS m|SET m 1 EX 100|INCR m", "*4 " + full + " *0 +OK :2", "GET m -> 2"},
		{"MSET a 5 m 6|GET a", "*2 " + full + " 5", "GET a -> 5\nEXISTS m -> :0"},
	} {
		r := newRig(t, Config{MaxPersistent: 2, Notify: new("KA")}, tasks.Config{})
		w, sub := r.dial(), r.dial()
		w.asks("SET a 1 -> +OK\nSET x 1 -> +OK")
		sub.ask("*3 psubscribe __keyspace@0__:[ab] :1", "PSUBSCRIBE", "__keyspace@0__:[ab]")
		if got := w.exec(strings.Split(c.commands, "|")...); got != c.want {
			t.Errorf("%s: EXEC is answered %q, want %q", c.commands, got, c.want)
		}
		w.asks(c.then)
		w.ask(":1", "DEL", "a")
		want := "del"
		switch {
		case strings.Contains(c.commands, "INCR a"):
			want = "incrby"
		case strings.Contains(c.commands, "MSET a"):
			want = "set"
		}
		if got := sub.answer(); got != "*4 pmessage __keyspace@0__:[ab] __keyspace@0__:a "+want {
			t.Errorf("%s: %q was told", c.commands, got)
		}
	}
}

// A token that may not use the topic of the new key keeps the old one.
func TestRenameToForeignTopic(t *testing.T) {
	limited := scopes(edge.ScopeSchedule)
	limited.Topics = []string{"own"}
	r := newRig(t, Config{Callers: tokens(map[string]edge.Token{"a": limited}), Topics: map[string]string{"": "other", "own:": "own"}}, tasks.Config{})
	w := r.as("a")
	w.ask("+OK", "SET", "own:a", "precious", "EX", "1000")
	if got := w.exec("RENAME own:a b"); !strings.HasPrefix(got, "*1 -NOPERM") {
		t.Errorf("EXEC is answered %q", got)
	}
	w.ask("precious", "GET", "own:a")
}

// Subscribers hear of a key once it is written, and of each change.
func TestEventsOfTransaction(t *testing.T) {
	r := newRig(t, Config{Notify: new("KA")}, tasks.Config{})
	w, sub := r.dial(), r.dial()
	sub.ask("*3 psubscribe __keyspace@0__:* :1", "PSUBSCRIBE", "__keyspace@0__:*")
	if got := w.exec("SET a 1 EX 100", "INCR a", "SET b "+strings.Repeat("v", 256<<10+1), "RENAME a c"); !strings.HasPrefix(got, "*4 +OK :2 -ERR") {
		t.Errorf("EXEC is answered %q", got)
	}
	w.ask(":1", "DEL", "c")
	for _, want := range []string{"a set", "a expire", "a incrby", "a rename_from", "c rename_to", "c del"} {
		key, event, _ := strings.Cut(want, " ")
		if got := sub.answer(); got != "*4 pmessage __keyspace@0__:* __keyspace@0__:"+key+" "+event {
			t.Errorf("%q was told, want %s", got, want)
		}
	}
}

// A heldMember is a member of a fleet whose writes can be held.
type heldMember struct {
	*memfleet.Member
	writes *ledgertest.Faulty
}

func (m heldMember) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	return m.writes.Apply(ctx, shard, b)
}

// A key that another client changes after the first write of a transaction: its commands run again,
// but for those about a watched key, which fail. Nothing that the other client did is lost.
func TestChangedAfterFirstWrite(t *testing.T) {
	fleet := memfleet.New()
	member := fleet.Join("a", 2)
	ledger := ledgertest.Wrap(member)
	a := newRigOn(t, heldMember{member, ledger}, Config{}, tasks.Config{Node: "a"})
	b := newRigOn(t, fleet.Join("b", 2), Config{}, tasks.Config{Node: "b"})
	w, other := a.dial(), b.dial()
	const late = "-TRYAGAIN a watched key has changed after the transaction's first write; nothing was done with it"
	for i, c := range []struct{ watch, commands, change, want, then string }{
		{"ours", "INCR ours|INCR theirs", "SET theirs 10 -> +OK", "*2 :2 :11", "GET ours -> 2\nGET theirs -> 11"},
		{"ours", "INCR ours|GET theirs|SET theirs 5|GET ours", "SET theirs 10 -> +OK", "*4 :2 10 +OK 2", "GET ours -> 2\nGET theirs -> 5"},
		{"ours", "INCR ours|RENAME theirs to", "SET theirs 10 -> +OK", "*2 :2 +OK", "GET to -> 10\nEXISTS theirs -> :0"},
		{"ours", "RENAME theirs to|INCR ours", "DEL theirs -> :1", "*2 -ERR no such key :2", "EXISTS theirs to -> :0\nGET ours -> 2"},
		{"ours", "INCR ours|RENAMENX theirs to", "DEL theirs -> :1", "*2 :2 -ERR no such key", "EXISTS theirs to -> :0\nGET ours -> 2"},
		{"", "RENAME theirs to", "RENAME theirs mine -> +OK", "*1 -ERR no such key", "EXISTS to theirs -> :0\nGET mine -> 1"},
		{"ours", "DEL ours|MSETNX ours 1 new theirs|RENAMENX ours theirs", "DEL theirs -> :1", "*3 :1 :1 :1", "GET theirs -> 1\nEXISTS ours -> :0"},
		{"theirs", "GET theirs|SET to new", "SET theirs 10 -> +OK", "*2 1 +OK", "GET theirs -> 10"},
		{"ours theirs", "INCR ours|INCR theirs|GET theirs", "SET theirs 10 -> +OK", "*3 :2 " + late + " " + late, "GET theirs -> 10\nGET ours -> 2"},
		{"ours", "INCR ours|INCR theirs|MSETNX to 1 theirs 1", "DEL theirs -> :1", "*3 :2 :1 :0", "GET theirs -> 1\nEXISTS to -> :0"},
	} {
		names := strings.NewReplacer("ours", fmt.Sprint("ours", i), "theirs", fmt.Sprint("theirs", i))
		w.asks(names.Replace("SET ours 1 -> +OK")) // the node that makes a key owns it
		other.asks(names.Replace("SET theirs 1 -> +OK"))
		if c.watch != "" {
			w.ask("+OK", strings.Fields("WATCH "+names.Replace(c.watch))...)
		}
		w.command("DEL", "to", "new", "mine")
		w.answer()
		reached, release := ledger.Hold(ledgertest.Apply)
		answer := make(chan string, 1)
		go func() { answer <- w.exec(strings.Split(names.Replace(c.commands), "|")...) }()
		<-reached
		other.asks(names.Replace(c.change))
		release()
		if got := <-answer; got != c.want {
			t.Errorf("%s: EXEC is answered %q, want %q", c.commands, got, c.want)
		}
		w.asks(names.Replace(c.then))
	}
}

// Invariants of transactions of many clients, on a Redis and on all kinds of ledgers.
func TestTransactionsOfMany(t *testing.T) {
	t.Parallel()
	disk := func(t *testing.T) []*rig {
		ledger, err := diskledger.Open(t.TempDir()+"/data", diskledger.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return []*rig{newRigOn(t, ledger, Config{}, tasks.Config{})}
	}
	for name, start := range map[string]func(t *testing.T) []string{
		"redis": func(t *testing.T) []string { return []string{redistest.Start(t).Addr} },
		"disk":  func(t *testing.T) []string { return addrsOf(disk(t)) },
		"fleet": func(t *testing.T) []string { return addrsOf(newFleetRigs(t, 3)) },
	} {
		t.Run(name, func(t *testing.T) {
			addrs := start(t)
			t.Run("counter", func(t *testing.T) { countTogether(t, addrs) })
			t.Run("sum", func(t *testing.T) { addTogether(t, addrs) })
			t.Run("lock", func(t *testing.T) { lockTogether(t, addrs) })
			t.Run("window", func(t *testing.T) { limitTogether(t, addrs) })
		})
	}
}

func addrsOf(rigs []*rig) (addrs []string) {
	for _, r := range rigs {
		addrs = append(addrs, r.addr)
	}
	return addrs
}

// crowd has clients do something at the same time, each so many times.
func crowd(t *testing.T, addrs []string, clients, times int, do func(w *wire, client, round int)) {
	var group sync.WaitGroup
	for i := range clients {
		w := connect(t, addrs[i%len(addrs)])
		group.Go(func() {
			for round := range times {
				do(w, i, round)
			}
		})
	}
	group.Wait()
}

// countTogether increments a counter by WATCH, GET and SET: no increment is lost.
func countTogether(t *testing.T, addrs []string) {
	var done atomic.Int64
	crowd(t, addrs, 8, 60, func(w *wire, client, _ int) {
		w.ask("+OK", "WATCH", "counter")
		w.command("GET", "counter")
		n, _ := strconv.Atoi(strings.TrimPrefix(w.answer(), "$-1"))
		switch got := w.exec(fmt.Sprintf("SET audit:%d x EX 100", client), fmt.Sprintf("SET counter %d", n+1), "GET counter"); got {
		case fmt.Sprintf("*3 +OK +OK %d", n+1):
			done.Add(1)
		case "*-1":
		default:
			t.Errorf("EXEC is answered %q", got)
		}
	})
	connect(t, addrs[0]).ask(strconv.FormatInt(done.Load(), 10), "GET", "counter")
	if done.Load() == 0 {
		t.Error("no transaction went through")
	}
}

// addTogether increments some of many counters in each transaction: all are counted.
func addTogether(t *testing.T, addrs []string) {
	const clients, times, counters = 8, 40, 5
	crowd(t, addrs, clients, times, func(w *wire, client, round int) {
		var commands []string
		for i := range 3 {
			commands = append(commands, fmt.Sprintf("INCR sum:%d", (client+round*(i+1)+i)%counters))
		}
		if got := w.exec(commands...); strings.Count(got, ":") != 3 {
			t.Errorf("EXEC is answered %q", got)
		}
	})
	sum := 0
	w := connect(t, addrs[0])
	for i := range counters {
		w.command("GET", fmt.Sprintf("sum:%d", i))
		n, _ := strconv.Atoi(w.answer())
		sum += n
	}
	if sum != 3*clients*times {
		t.Errorf("the sum is %d, want %d", sum, 3*clients*times)
	}
}

// lockTogether takes a lock that expires soon, and releases it by WATCH: no client deletes the lock
// of another.
func lockTogether(t *testing.T, addrs []string) {
	crowd(t, addrs, 8, 30, func(w *wire, client, round int) {
		token := fmt.Sprintf("%d:%d", client, round)
		w.command("SET", "lock", token, "NX", "PX", "3")
		if w.answer() != "+OK" {
			return
		}
		w.ask("+OK", "WATCH", "lock")
		if w.command("GET", "lock"); w.answer() != token {
			w.ask("+OK", "UNWATCH")
			return
		}
		if got := w.exec("SET released "+token, "GETDEL lock"); got != "*-1" && got != "*2 +OK "+token {
			t.Errorf("the lock of %s: EXEC is answered %q", token, got)
		}
	})
}

// limitTogether counts calls in windows that are short: a window always ends.
func limitTogether(t *testing.T, addrs []string) {
	crowd(t, addrs, 8, 60, func(w *wire, client, _ int) {
		key := fmt.Sprintf("window:%d", client%3)
		for _, commands := range [][]string{
			{"SET " + key + " 0 PX 2 NX", "INCR " + key, "PTTL " + key},
			{"SET " + key + " 0 PX 2 NX", "DBSIZE", "INCR " + key, "PTTL " + key},
		} {
			got := w.exec(commands...)
			if fields := strings.Fields(got); len(fields) != len(commands)+1 || strings.HasPrefix(fields[len(commands)], ":-") {
				t.Errorf("EXEC is answered %q", got)
			}
		}
	})
	waitFor(t, "all windows have ended", func() bool {
		w := connect(t, addrs[0])
		w.command("EXISTS", "window:0", "window:1", "window:2")
		defer w.nc.Close()
		return w.answer() == ":0"
	})
}

// What a transaction reads, writes and answers is bounded.
func TestDraftIsBounded(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{MaxPayload: 1 << 20})
	w := r.dial()
	value := strings.Repeat("v", 200<<10)
	many := make([]string, 0, 180)
	for i := range cap(many) {
		w.ask("+OK", "SET", fmt.Sprintf("k%d", i), value)
		many = append(many, fmt.Sprintf("APPEND k%d x", i))
	}
	const large = "-ERR the keys of a transaction exceed 64 MiB together"
	got := w.exec(many...)
	if n := strings.Count(got, large); n < 10 || n > 40 {
		t.Errorf("%d of 180 commands have no room", n)
	}
	w.ask("+OK", "SET", "k0", value)

	read := append([]string{"MGET"}, strings.Fields(strings.Repeat("k0 ", 60))...)
	got = w.exec(strings.Join(read, " "), strings.Join(read, " "), "SET k0 x")
	if got != "-ERR the answers before the last write of a transaction exceed 16 MiB together; nothing was done" {
		t.Errorf("EXEC is answered with %d bytes: %.100q", len(got), got)
	}
	w.ask(":204800", "STRLEN", "k0")
	copies := strings.Split(strings.TrimSuffix(strings.Repeat("COPY k0 a|DEL a|", 500), "|"), "|")
	if got = w.exec(copies...); strings.Count(got, ":1") != 1000 {
		t.Errorf("EXEC of copies is answered %.100q", got)
	}
	r.server.CountKept(MostKeptInAll - 200<<10)
	if got = w.exec("INCR n", "APPEND k0 y"); got != "*2 :1 -TRYAGAIN the transactions of all connections, or of this token, have too many bytes" {
		t.Errorf("EXEC is answered %q", got)
	}
	r.server.CountKept(200<<10 - MostKeptInAll)
	if kept := r.server.CountKept(0); kept != 0 {
		t.Errorf("after EXEC %d bytes count", kept)
	}
}
