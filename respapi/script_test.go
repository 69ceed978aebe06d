package respapi_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// Scripts such as libraries have: a lock that its owner releases or prolongs, and counters of
// calls in a window.
const (
	release = "local held = redis.call('get', KEYS[1]) if held == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
	prolong = "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end return redis.call('pexpire', KEYS[1], ARGV[2])"
	limiter = "redis.call('set', KEYS[1], 0, 'PX', ARGV[1], 'NX') local n = redis.call('incr', KEYS[1]) return {n, redis.call('pttl', KEYS[1])}"
	takeAll = "for _, k in ipairs(KEYS) do if redis.call('exists', k) == 1 then return 0 end end for _, k in ipairs(KEYS) do redis.call('set', k, ARGV[1], 'PX', ARGV[2]) end return #KEYS"
	freeAll = "local n = 0 for _, k in ipairs(KEYS) do if redis.call('get', k) == ARGV[1] then n = n + redis.call('del', k) end end return n"
)

func TestEval(t *testing.T) {
	r := newRig(t, Config{Flush: true}, tasks.Config{})
	w := r.dial()
	w.ask("+OK", "SET", "lock", "mine", "PX", "100000")
	w.ask(":0", "EVAL", release, "1", "lock", "yours")
	w.ask(":1", "EVAL", prolong, "1", "lock", "mine", "200000")
	w.ask(":200", "TTL", "lock")
	w.ask(":1", "EVAL", release, "1", "lock", "mine")
	w.ask(":0", "EXISTS", "lock")
	w.ask("*2 :1 :100000", "EVAL", limiter, "1", "calls", "100000")

	w.ask("-NOSCRIPT No matching script. Please use EVAL.", "EVALSHA", strings.Repeat("a", 40), "0")
	w.ask("-NOSCRIPT No matching script. Please use EVAL.", "EVALSHA", "x", "0")
	w.command("SCRIPT", "LOAD", "return ARGV[1]")
	digest := w.answer()
	w.ask("*2 :1 :0", "SCRIPT", "EXISTS", digest, strings.Repeat("a", 40))
	w.ask("x", "EVALSHA", strings.ToUpper(digest), "0", "x")
	w.ask("x", "EVALSHA_RO", digest, "0", "x")
	w.ask("+OK", "SCRIPT", "FLUSH")
	w.ask("-NOSCRIPT No matching script. Please use EVAL.", "EVALSHA", digest, "0", "x")

	w.ask("-ERR value is not an integer or out of range", "EVAL", "return 1", "x")
	w.ask("-ERR Number of keys can't be negative", "EVAL", "return 1", "-1")
	w.ask("-ERR Number of keys can't be greater than number of args", "EVAL", "return 1", "2", "k")
	w.ask("$-1", "EVAL_RO", "return redis.call('get', KEYS[1])", "1", "none")
	for _, c := range []struct{ command, want string }{
		{"EVAL_RO return(redis.call('set','k',1)) 0", "-ERR Write commands are not allowed from read-only scripts."},
		{"EVAL return(redis.call('multi')) 0", "-ERR This Redis command is not allowed from script"},
		{"EVAL return(redis.call('eval','',0)) 0", "-ERR This Redis command is not allowed from script"},
		{"EVAL return(redis.call('rename','a','b')) 0", "-ERR This Redis command is not allowed from script"},
		{"EVAL return(redis.call('xack','a','b','c')) 0", "-ERR This Redis command is not allowed from script"},
		{"EVAL return(redis.call('watch','a')) 0", "-ERR This Redis command is not allowed from script"},
		{"EVAL return(redis.call('lpush','a','b')) 0", "-ERR Unknown Redis command called from script"},
		{"LPUSH list x", "-ERR unknown command 'LPUSH', with args beginning with: 'list' 'x' (there are no lists here, see docs/redis.md)"},
		{"EVAL return(redis.call('zadd','z',1,'m')) 0", "-ERR Unknown Redis command called from script: there are no sorted sets here, see docs/redis.md"},
		{"EVAL return(redis.call('get')) 0", "-ERR Wrong number of args calling Redis command from script"},
		{"EVAL return( 0", "-ERR Error compiling script (new function): "},
		{"SCRIPT LOAD return(", "-ERR Error compiling script (new function): "},
		{"EVAL while(true)do(1)(2)end 0", "-ERR "},
	} {
		w.command(strings.Fields(c.command)...)
		if got := w.answer(); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: the answer is %q, want %q", c.command, got, c.want)
		}
	}
}

// A script that fails has done nothing, and told nothing.
func TestScriptThatFailsDoesNothing(t *testing.T) {
	r := newRig(t, Config{Flush: true}, tasks.Config{})
	w, sub := r.dial(), r.dial()
	sub.ask("*3 psubscribe * :1", "PSUBSCRIBE", "*")
	w.ask("+OK", "SET", "k", "v")
	w.command("EVAL", "redis.call('set', 'k', 'w') redis.call('set', 'new', 1) redis.call('del', 'k') redis.call('publish', 'news', 'x') redis.call('incr', 'k') error('x')", "0")
	if got := w.answer(); !strings.HasPrefix(got, "-ERR user_script:1: x script: ") {
		t.Errorf("the answer is %q", got)
	}
	w.asks("GET k -> v\nEXISTS new -> :0")
	got := w.exec("SET k 1", "EVAL redis.call('incr','k')return(nothing) 0", "INCR k", "EVAL return(redis.call('incr','k')) 0", "GET k")
	if fields := strings.Fields(got); len(fields) < 8 || fields[1] != "+OK" || !strings.HasSuffix(got, " :2 :3 3") {
		t.Errorf("EXEC is answered %q", got)
	}
	w.ask(":0", "EVAL", "return redis.call('publish', 'news', 'end')", "0")
	for { // events of other keys come before
		if got := sub.answer(); got == "*4 pmessage * news end" {
			break
		} else if strings.Contains(got, "new x") || strings.Contains(got, " new ") {
			t.Errorf("it has told %q", got)
		}
	}
	if kept := r.server.CountKept(0); kept != 0 {
		t.Errorf("%d bytes count", kept)
	}
}

// A script has the rights of its client, for each key, also those that it does not name.
func TestScriptHasRightsOfItsClient(t *testing.T) {
	narrow := scopes(edge.ScopeSchedule)
	narrow.Topics = []string{"own"}
	callers := tokens(map[string]edge.Token{"shop": narrow, "reader": scopes(edge.ScopeRead), "all": scopes(edge.ScopeSchedule)})
	r := newRig(t, Config{Callers: callers, Topics: map[string]string{"": "other", "own:": "own"}}, tasks.Config{})
	r.as("all").ask("+OK", "SET", "foreign", "secret")
	w := r.as("shop")
	for _, text := range []string{"return redis.call('get', 'foreign')", "return redis.call('set', 'foreign', 1)", "return redis.pcall('del', KEYS[1])"} {
		w.command("EVAL", text, "1", "foreign")
		if got := w.answer(); !strings.HasPrefix(got, "-NOPERM") {
			t.Errorf("%s: the answer is %q", text, got)
		}
	}
	w.command("EVAL", "redis.call('set', 'own:k', 1) return redis.call('get', 'foreign')", "0")
	w.answer()
	w.ask("$-1", "GET", "own:k")
	w.ask("-NOPERM this token has no permissions to run the 'script|flush' command", "SCRIPT", "FLUSH")
	reader := r.as("reader")
	reader.command("EVAL", "return 1", "0")
	if got := reader.answer(); !strings.HasPrefix(got, "-NOPERM") {
		t.Errorf("the answer is %q", got)
	}
	reader.ask("secret", "EVAL_RO", "return redis.call('get', KEYS[1])", "1", "foreign")
}

// TestScriptsOfMany has many clients of several nodes run scripts about the same keys: each counts,
// no lock has two owners, and no window goes without an end.
func TestScriptsOfMany(t *testing.T) {
	t.Parallel()
	for name, addrs := range map[string][]string{
		"redis": {redistest.Start(t).Addr},
		"one":   {newRig(t, Config{}, tasks.Config{}).addr},
		"fleet": addrsOf(newFleetRigs(t, 3)),
	} {
		t.Run(name, func(t *testing.T) {
			var held, wins [4]atomic.Int64
			crowd(t, addrs, 8, 60, func(w *wire, client, round int) {
				w.command("EVAL", "return redis.call('incr', KEYS[1]) + redis.call('incr', KEYS[2])", "2", "sum:1", fmt.Sprintf("sum:%d", 2+client%3))
				w.answer()

				token := fmt.Sprintf("%d:%d", client, round)
				n, m := (client+round)%4, (client+round+1+client%2)%4
				w.command("EVAL", takeAll, "2", fmt.Sprintf("lock:%d", n), fmt.Sprintf("lock:%d", m), token, "60000")
				if got := w.answer(); got == ":2" {
					for _, l := range []int{n, m} {
						wins[l].Add(1)
						if held[l].Add(1) > 1 {
							t.Errorf("lock %d has two owners", l)
						}
					}
					held[n].Add(-1)
					held[m].Add(-1)
					w.ask(":2", "EVAL", freeAll, "2", fmt.Sprintf("lock:%d", n), fmt.Sprintf("lock:%d", m), token)
				} else if got != ":0" {
					t.Errorf("the locks are answered %q", got)
				}

				w.command("EVAL", limiter, "1", fmt.Sprintf("window:%d", client%3), "2")
				if got := w.answer(); !strings.HasPrefix(got, "*2 :") || strings.Contains(got, ":-") {
					t.Errorf("the limiter answers %q", got)
				}
			})
			w := connect(t, addrs[0])
			w.ask("480", "GET", "sum:1")
			w.command("EVAL", "local n = 0 for i = 2, 4 do n = n + redis.call('get', 'sum:' .. i) end return n", "0")
			w.want(":480")
			w.ask(":0", "EXISTS", "lock:0", "lock:1", "lock:2", "lock:3")
			if wins[0].Load()+wins[1].Load() == 0 {
				t.Error("no client has had a lock")
			}
			waitFor(t, "all windows have ended", func() bool {
				w.command("EXISTS", "window:0", "window:1", "window:2")
				return w.answer() == ":0"
			})
		})
	}
}

// A script writes two keys, and leaves both as they are if a third one says so. Another client
// changes that one after the first write: what the script has written is taken back. A key that yet
// another client has changed by then is left, and the answer says that the outcome is open.
func TestScriptTakesBack(t *testing.T) {
	const script = "if redis.call('get', KEYS[3]) ~= '1' then return 'no' end " +
		"redis.call('incr', KEYS[1]) redis.call('incr', KEYS[2]) return redis.call('incr', KEYS[3])"
	fleet := memfleet.New()
	memberA, memberB := fleet.Join("a", 2), fleet.Join("b", 2)
	ledgerA, ledgerB := ledgertest.Wrap(memberA), ledgertest.Wrap(memberB)
	a := newRigOn(t, heldMember{memberA, ledgerA}, Config{}, tasks.Config{Node: "a"})
	b := newRigOn(t, heldMember{memberB, ledgerB}, Config{}, tasks.Config{Node: "b"})
	w, near, far := a.dial(), a.dial(), b.dial()
	for i, overtaken := range []bool{false, true} {
		names := strings.NewReplacer("first", fmt.Sprint("first", i), "second", fmt.Sprint("second", i), "third", fmt.Sprint("third", i))
		near.asks(names.Replace("SET first 1 -> +OK")) // the node that makes a key owns it
		far.asks(names.Replace("SET second 1 -> +OK\nSET third 1 -> +OK"))
		w.asks(names.Replace("WATCH first -> +OK\nMULTI -> +OK")) // a watched key is written first
		w.ask("+QUEUED", "EVAL", script, "3", names.Replace("first"), names.Replace("second"), names.Replace("third"))
		reachedA, releaseA := ledgerA.Hold(ledgertest.Apply)
		answer := make(chan string, 1)
		go func() {
			w.command("EXEC")
			answer <- w.answer()
		}()
		<-reachedA
		far.asks(names.Replace("SET third 10 -> +OK"))
		reachedB, releaseB := ledgerB.Hold(ledgertest.Apply)
		releaseA()
		<-reachedB
		if overtaken {
			far.asks(names.Replace("SET first 7 -> +OK"))
		}
		releaseB()
		got := <-answer
		if overtaken {
			if !strings.HasPrefix(got, "*1 -UNKNOWN ") {
				t.Errorf("EXEC is answered %q", got)
			}
			near.asks(names.Replace("GET first -> 7\nGET second -> 1\nGET third -> 10"))
		} else {
			if got != "*1 no" {
				t.Errorf("EXEC is answered %q", got)
			}
			near.asks(names.Replace("GET first -> 1\nGET second -> 1\nGET third -> 10"))
		}
	}
}

// What a script makes of a key may depend on another one, which it only reads. If that one changes
// before the write, the script runs again.
func TestScriptComparesWhatItReads(t *testing.T) {
	const script = "local guard = redis.call('get', 'guard') redis.call('get', 'slow') " +
		"if guard ~= 'mine' then return 0 end redis.call('set', KEYS[1], 'new') return 1"
	fleet := memfleet.New()
	a := newRigOn(t, fleet.Join("a", 2), Config{}, tasks.Config{Node: "a"})
	memberB := fleet.Join("b", 2)
	ledgerB := ledgertest.Wrap(memberB)
	b := newRigOn(t, heldMember{memberB, ledgerB}, Config{}, tasks.Config{Node: "b"})
	w, near, far := a.dial(), a.dial(), b.dial()
	near.asks("SET guard mine -> +OK\nSET data old -> +OK") // the node that makes a key owns it
	far.asks("SET slow 1 -> +OK")
	reached, release := ledgerB.Hold(ledgertest.Apply)
	wrote, answer := make(chan string, 1), make(chan string, 1)
	go func() {
		far.command("SET", "slow", "2")
		wrote <- far.answer()
	}()
	<-reached
	go func() { // it waits for that write
		w.command("EVAL", script, "1", "data")
		answer <- w.answer()
	}()
	a.await("the script runs", func() bool { return a.server.Changing("data") })
	near.asks("SET guard yours -> +OK")
	release()
	if got := <-answer; got != ":0" {
		t.Errorf("the script answers %q", got)
	}
	if got := <-wrote; got != "+OK" {
		t.Errorf("SET is answered %q", got)
	}
	near.asks("GET data -> old")
}
