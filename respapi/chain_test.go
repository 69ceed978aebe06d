package respapi_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/edge"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// newHeldRig starts a server whose writes can be held.
func newHeldRig(t *testing.T, cfg Config) (*rig, *ledgertest.Faulty) {
	t.Helper()
	member := memfleet.New().Join("a", 2)
	ledger := ledgertest.Wrap(member)
	r := newRigOn(t, heldMember{member, ledger}, cfg, tasks.Config{Node: "a"})
	r.server.ChainWithin(time.Minute) // however slow the machine is
	return r, ledger
}

// newChain has clients change the key k while a write of it is held. Each gets in line behind the
// one before. It returns their answers, once the write is released, and how many writes there were.
func newChain(t *testing.T, r *rig, ledger *ledgertest.Faulty, commands []string, as func(i int) *wire, held func()) (answers []string, writes int) {
	t.Helper()
	first := as(0)
	reached, release := ledger.Hold(ledgertest.Apply)
	defer release()
	began := make(chan string, 1)
	go func() {
		first.command("INCR", "k")
		began <- first.answer()
	}()
	<-reached
	before := ledger.Calls(ledgertest.Apply)
	answers = make([]string, len(commands))
	var group sync.WaitGroup
	for i, command := range commands {
		w := as(i + 1)
		group.Go(func() {
			if list := strings.Split(command, "|"); len(list) > 1 {
				answers[i] = w.exec(list...)
			} else {
				w.command(strings.Fields(command)...)
				answers[i] = w.answer()
			}
		})
		r.await("the change waits for its turn", func() bool { return r.server.WaitingFor("k") == i+1 })
	}
	if held != nil {
		held()
	}
	release()
	if got := <-began; got != ":1" {
		t.Errorf("the first change is answered %q", got)
	}
	group.Wait()
	return answers, ledger.Calls(ledgertest.Apply) - before
}

// Changes that wait for their turn with one key are written once, and each has its own answer, as
// if they had come one after the other.
func TestChangesOfAHotKey(t *testing.T) {
	r, ledger := newHeldRig(t, Config{})
	commands := []string{
		"INCR k", "INCRBY k 10", "PEXPIRE k 60000", "INCR k|PEXPIRE k 100000|TTL k|GET other", "EVAL return(redis.call('incr',KEYS[1])) 1 k",
		"SET k v NX", "APPEND k x", "INCR k", "GETDEL k", "PERSIST k", "SET k 5 NX EX 1000", "EVAL redis.call('incr',KEYS[1]);return(nothing) 1 k",
		"DECR k", "EXPIRE k 50",
	}
	want := []string{
		":2", ":12", ":1", "*4 :13 :1 :100 $-1", ":14",
		"$-1", ":3", "-ERR value is not an integer or out of range", "14x", ":0", "+OK", "",
		":4", ":1",
	}
	answers, writes := newChain(t, r, ledger, commands, func(int) *wire { return r.dial() }, nil)
	for i, got := range answers {
		if got != want[i] && (want[i] != "" || !strings.HasPrefix(got, "-ERR user_script:1:")) {
			t.Errorf("%s: the answer is %q, want %q", commands[i], got, want[i])
		}
	}
	if writes != 1 {
		t.Errorf("there were %d writes", writes)
	}
	w := r.dial()
	w.asks("GET k -> 4\nTTL k -> :50")
	if kept := r.server.CountKept(0); kept != 0 {
		t.Errorf("%d bytes count", kept)
	}
}

// What is no part of a chain takes its turn: what another client asks for, what changes other keys
// as well, and what was granted to a token that is removed by then.
func TestChainsAreOfOneToken(t *testing.T) {
	all := map[string]edge.Token{"a": scopes(edge.ScopeSchedule), "b": scopes(edge.ScopeSchedule), "c": scopes(edge.ScopeSchedule)}
	callers := tokens(all)
	r, ledger := newHeldRig(t, Config{Callers: callers})
	names := []string{"a", "a", "b", "b", "a", "c", "a", "a"}
	commands := []string{"INCR k", "INCR k", "INCR k", "EVAL redis.call('incr','k');return(redis.call('incr','n')) 1 k", "INCR k", "INCR k", "INCR k|INCR n"}
	answers, writes := newChain(t, r, ledger, commands, func(i int) *wire { return r.as(names[i]) }, func() {
		delete(all, "c")
		setTokens(t, callers, all)
	})
	want := []string{":2", ":3", ":4", ":1", "-NOPERM the token was removed, or has other rights now", ":6", "*2 :7 :2"}
	for i, got := range answers {
		if got != want[i] {
			t.Errorf("%s: the answer is %q, want %q", commands[i], got, want[i])
		}
	}
	if writes < 4 {
		t.Errorf("there were %d writes", writes)
	}
}

// If the write of a chain may have been done or not, all of its changes say so.
func TestChainOfUnknownOutcome(t *testing.T) {
	member := memfleet.New().Join("a", 2)
	ledger := ledgertest.Wrap(member)
	r := newRigOn(t, heldMember{member, ledger}, Config{}, tasks.Config{Node: "a", AnswerWithin: 500 * time.Millisecond})
	r.server.ChainWithin(time.Minute)
	release := func() {}
	commands := []string{"INCR k", "INCR k|PEXPIRE k 60000", "EVAL return(redis.call('incr',KEYS[1])) 1 k", "SET k v NX", "GETDEL k"}
	answers, _ := newChain(t, r, ledger, commands, func(int) *wire { return r.dial() }, func() {
		_, release = ledger.Hold(ledgertest.Apply) // the next write is not answered
	})
	release()
	for i, got := range answers {
		if !strings.HasPrefix(strings.TrimPrefix(got, "*2 "), "-UNKNOWN ") {
			t.Errorf("%s: the answer is %q", commands[i], got)
		}
	}
	if kept := r.server.CountKept(0); kept != 0 {
		t.Errorf("%d bytes count", kept)
	}
}

// If the write of a chain is refused, each of its changes is tried by itself.
func TestChainThatCannotBeWritten(t *testing.T) {
	r, ledger := newHeldRig(t, Config{MaxPersistent: 1})
	r.dial().ask("+OK", "SET", "other", "v")
	r.dial().ask("+OK", "SET", "k", "0", "EX", "1000")
	answers, _ := newChain(t, r, ledger, []string{"INCR k", "PERSIST k", "INCR k"}, func(int) *wire { return r.dial() }, nil)
	for i, want := range []string{":2", "-OOM ", ":3"} {
		if !strings.HasPrefix(answers[i], want) {
			t.Errorf("change %d is answered %q, want %q", i, answers[i], want)
		}
	}
	r.dial().ask("3", "GET", "k")
}

// TestHotKeysOfMany has many clients change few keys in all ways: all is counted.
func TestHotKeysOfMany(t *testing.T) {
	t.Parallel()
	for name, addrs := range map[string][]string{
		"one":   {newRig(t, Config{}, tasks.Config{}).addr},
		"fleet": addrsOf(newFleetRigs(t, 2)),
	} {
		t.Run(name, func(t *testing.T) {
			crowd(t, addrs, 16, 60, func(w *wire, client, round int) {
				hot, own := fmt.Sprintf("hot:%d", round%2), fmt.Sprintf("own:%d", client)
				switch (client + round) % 4 {
				case 0:
					w.command("INCR", hot)
					w.answer()
				case 1:
					w.exec("INCR "+hot, "PEXPIRE "+hot+" 600000")
				case 2:
					w.command("EVAL", "return redis.call('incr', KEYS[1])", "1", hot)
					w.answer()
				case 3:
					w.command("EVAL", "redis.call('incr', KEYS[2]) return redis.call('incr', KEYS[1])", "2", hot, own)
					w.answer()
					return
				}
				w.command("INCR", own)
				w.answer()
			})
			sum := func(kind string, n int) (all int) {
				w := connect(t, addrs[0])
				for i := range n {
					w.command("GET", fmt.Sprintf("%s:%d", kind, i))
					v, _ := strconv.Atoi(w.answer())
					all += v
				}
				return all
			}
			if hot, own := sum("hot", 2), sum("own", 16); hot != 16*60 || own != 16*60 {
				t.Errorf("%d and %d are counted, want %d", hot, own, 16*60)
			}
		})
	}
}

// Events of a chain come in its order, and a transaction that begins one reads what it has written
// itself.
func TestChainIsInOrder(t *testing.T) {
	r, ledger := newHeldRig(t, Config{Notify: new("KEAn")})
	sub := r.dial()
	sub.ask("*3 psubscribe __keyevent@0__:* :1", "PSUBSCRIBE", "__keyevent@0__:*")
	commands, events := []string{"INCR k|PEXPIRE k 100000|TTL k"}, []string{"new", "incrby", "incrby", "expire"}
	want := []string{"*3 :2 :1 :100"}
	for i := range 10 {
		commands = append(commands, "DEL k|EXISTS k", fmt.Sprintf("SET k %d|PERSIST k|GET k", i))
		want = append(want, "*2 :1 :0", fmt.Sprintf("*3 +OK :0 %d", i))
		events = append(events, "del", "new", "set")
	}
	answers, writes := newChain(t, r, ledger, commands, func(int) *wire { return r.dial() }, nil)
	for i, got := range answers {
		if got != want[i] {
			t.Errorf("%s: the answer is %q, want %q", commands[i], got, want[i])
		}
	}
	if writes != 1 {
		t.Errorf("there were %d writes", writes)
	}
	for i, event := range events {
		if got := sub.answer(); got != "*4 pmessage __keyevent@0__:* __keyevent@0__:"+event+" k" {
			t.Fatalf("event %d is %q, want %s", i, got, event)
		}
	}
}

// Events of plain commands come in the order of the changes as well.
func TestPlainChainIsInOrder(t *testing.T) {
	t.Parallel()
	for range 5 {
		r, ledger := newHeldRig(t, Config{Notify: new("KEA")})
		sub := r.dial()
		sub.ask("*3 psubscribe __keyevent@0__:* :1", "PSUBSCRIBE", "__keyevent@0__:*")
		commands, events := []string{"PERSIST k", "GETDEL k"}, []string{"incrby", "del"}
		for range 10 {
			commands = append(commands, "SET k v NX", "APPEND k w", "GETDEL k")
			events = append(events, "set", "append", "del")
		}
		newChain(t, r, ledger, commands, func(int) *wire { return r.dial() }, nil)
		for i, event := range events {
			if got := sub.answer(); got != "*4 pmessage __keyevent@0__:* __keyevent@0__:"+event+" k" {
				t.Fatalf("event %d is %q, want %s", i, got, event)
			}
		}
	}
}

// What a client reads of a key that others change at the same time is a value that one of them has
// set, and nothing of what they send next.
func TestValuesOfAHotKeyAreWhole(t *testing.T) {
	t.Parallel()
	addrs := []string{newRig(t, Config{}, tasks.Config{}).addr}
	crowd(t, addrs, 16, 600, func(w *wire, client, round int) {
		own := strings.Repeat(string(rune('a'+client)), 2000)
		var got string
		switch round % 4 {
		case 0:
			w.command("GETSET", "k", own)
			got = w.answer()
		case 1:
			w.command("GETDEL", "k")
			got = w.answer()
		case 2:
			w.command("SET", "k", own, "GET")
			got = w.answer()
			if got == "+OK" {
				got = "$-1"
			}
		case 3:
			got = w.exec("PEXPIRE k 600000", "GET k")
			got = strings.TrimPrefix(strings.TrimPrefix(got, "*2 :1 "), "*2 :0 ")
		}
		w.command("ECHO", strings.Repeat("#", 3000)) // into the same buffer
		w.answer()
		if got != "$-1" && (len(got) != 2000 || strings.Trim(got, got[:1]) != "" || got[0] == '#') {
			t.Errorf("the value is %.60q", got)
		}
	})
}

// A key that MSETNX has made, and takes back, may be another client's by then.
func TestTakenBackInAChain(t *testing.T) {
	const slow = "local a, b = string.rep('x', 3e6), string.rep('x', 3e6) for i = 1, 3000 do if a ~= b then return 1 end end return 0"
	r := newRig(t, Config{}, tasks.Config{})
	r.server.ChainWithin(time.Minute)
	first := r.dial()
	first.command("EVAL", slow, "1", "k")
	r.await("the script runs", func() bool { return r.server.Changing("k") })
	answers := make([]string, 3)
	var group sync.WaitGroup
	for i, command := range []string{"MSETNX k v other w", "GETDEL k", "SET k v NX"} {
		w := r.dial()
		group.Go(func() {
			w.command(strings.Fields(command)...)
			answers[i] = w.answer()
		})
		r.await("the change waits for its turn", func() bool { return r.server.WaitingFor("k") == i+1 })
	}
	w := r.dial()
	w.ask("+OK", "SET", "other", "x")
	first.want(":0")
	group.Wait()
	if got := strings.Join(answers, " "); got != ":0 v +OK" {
		t.Errorf("the answers are %s", got)
	}
	w.asks("GET k -> v\nGET other -> x")
}

// A draft that needs another key than that of its chain runs by itself, with what that key has
// then.
func TestChainWithAnotherKey(t *testing.T) {
	r, ledger := newHeldRig(t, Config{})
	const guarded = "EVAL if(redis.call('get','flag')=='on')then--[[]]redis.call('set',KEYS[1],'1000')end;return(redis.call('get',KEYS[1])) 1 k"
	answers, writes := newChain(t, r, ledger, []string{"INCR k", guarded, "INCR k"}, func(int) *wire { return r.dial() }, nil)
	if got := strings.Join(answers, " "); got != ":2 3 :3" {
		t.Errorf("the answers are %s", got)
	}
	if writes != 1 {
		t.Errorf("there were %d writes", writes)
	}
}
