package respapi_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// startRig starts a server with a scheduler on a ledger. stop stops both; it is called when the
// test ends if it was not called before.
func startRig(t *testing.T, ledger recovery.Ledger, cfg Config, scheduling tasks.Config) (r *rig, stop func()) {
	t.Helper()
	cfg.Log = slog.New(slog.DiscardHandler)
	scheduling.Log = cfg.Log
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	scheduler, err := tasks.Open(t.Context(), ledger, scheduling)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Attach(scheduler); err != nil {
		t.Fatal(err)
	}
	r = &rig{t: t, server: server, scheduler: scheduler}
	r.addr = r.listen()
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := scheduler.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return r, stop
}

// newFleetRigs starts so many servers whose schedulers share a ledger.
func newFleetRigs(t *testing.T, n int) []*rig {
	t.Helper()
	fleet := memfleet.New()
	rigs := make([]*rig, n)
	for i := range rigs {
		name := string(rune('a' + i))
		rigs[i], _ = startRig(t, fleet.Join(name, 3), Config{}, tasks.Config{Node: name})
	}
	return rigs
}

// incrementTogether has many clients increment a key, and checks that none was lost.
func incrementTogether(t *testing.T, rigs []*rig, clients, times int) {
	t.Helper()
	var group sync.WaitGroup
	for i := range clients {
		w := rigs[i%len(rigs)].dial()
		group.Go(func() {
			for range times {
				w.command("INCR", "counter")
				if got := w.answer(); got[0] != ':' {
					t.Errorf("INCR: the answer is %q", got)
				}
			}
		})
	}
	group.Wait()
	rigs[0].dial().ask(strconv.Itoa(clients*times), "GET", "counter")
}

func TestIncrementsTogether(t *testing.T) {
	incrementTogether(t, []*rig{newRig(t, Config{}, tasks.Config{})}, 50, 20)
}

func TestIncrementsTogetherInFleet(t *testing.T) {
	incrementTogether(t, newFleetRigs(t, 2), 50, 4)
}

// One of several clients that take a value with GETDEL gets it.
func TestGetDelOnce(t *testing.T) {
	rigs := newFleetRigs(t, 2)
	ws := make([]*wire, 20)
	for i := range ws {
		ws[i] = rigs[i%2].dial()
	}
	for round := range 10 {
		key := fmt.Sprint("token:", round)
		ws[0].ask("+OK", "SET", key, "secret", "EX", "100")
		got := make([]string, len(ws))
		var group sync.WaitGroup
		for i, w := range ws {
			group.Go(func() {
				w.command("GETDEL", key)
				got[i] = w.answer()
			})
		}
		group.Wait()
		if n := strings.Count(strings.Join(got, " "), "secret"); n != 1 {
			t.Errorf("%d clients got the value: %q", n, got)
		}
	}
}

// One of several clients that rename a key has it, and the new keys of the others are what they
// were.
func TestRenameOnce(t *testing.T) {
	rigs := newFleetRigs(t, 2)
	ws := make([]*wire, 8)
	for i := range ws {
		ws[i] = rigs[i%2].dial()
	}
	for round := range 10 {
		job, names := fmt.Sprint("job:", round), []string{"MGET"}
		ws[0].ask("+OK", "SET", job, "job", "EX", "100")
		for i, w := range ws {
			names = append(names, fmt.Sprint("mine:", round, ":", i))
			if i%2 == 0 {
				w.ask("+OK", "SET", names[i+1], "before")
			}
		}
		var group sync.WaitGroup
		for i, w := range ws {
			group.Go(func() {
				w.command("RENAME", job, names[i+1])
				if got := w.answer(); got != "+OK" && got != "-ERR no such key" {
					t.Errorf("RENAME: the answer is %q", got)
				}
			})
		}
		group.Wait()
		ws[0].command(names...)
		got := strings.Fields(ws[0].answer())[1:]
		for i, value := range got {
			want := "$-1"
			if i%2 == 0 {
				want = "before"
			}
			if value != want && value != "job" {
				t.Errorf("%s is %q", names[i+1], value)
			}
		}
		if n := strings.Count(strings.Join(got, " "), "job"); n != 1 {
			t.Errorf("%d clients have the job: %q", n, got)
		}
	}
}

// One of several clients that set a key with NX has set it.
func TestSetOnce(t *testing.T) {
	rigs := newFleetRigs(t, 2)
	ws := make([]*wire, 20)
	for i := range ws {
		ws[i] = rigs[i%2].dial()
	}
	for round := range 10 {
		var group sync.WaitGroup
		got := make([]string, len(ws))
		for i, w := range ws {
			group.Go(func() {
				w.command("SET", fmt.Sprint("lock:", round), "same", "NX", "PX", "100000")
				got[i] = w.answer()
			})
		}
		group.Wait()
		if n := strings.Count(strings.Join(got, " "), "+OK"); n != 1 {
			t.Errorf("%d clients have the lock: %q", n, got)
		}
	}
}

// What a client was told stands after a restart.
func TestKeysAfterRestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() + "/data"
	open := func() *diskledger.Ledger {
		ledger, err := diskledger.Open(dir, diskledger.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return ledger
	}
	r, stop := startRig(t, open(), Config{}, tasks.Config{})
	long := strings.Repeat("k ", 200)
	w := r.dial()
	w.ask("+OK", "SET", "a", "1", "PXAT", "2000000000123")
	w.ask("+OK", "SET", "b", "2")
	w.ask("+OK", "SET", long, "3")
	w.ask("+OK", "MSET", "c", "4", "d", "5")
	w.ask(":1", "EXPIREAT", "c", "2000000000")
	w.ask(":1", "DEL", "d")
	w.ask("+OK", "SET", "e", "6", "EX", "100")
	w.ask(":1", "PERSIST", "e")
	w.ask("+OK", "SET", "f", "7", "EX", "100")
	w.ask("+OK", "SET", "f", "8")
	stop()
	r, _ = startRig(t, open(), Config{}, tasks.Config{})
	w = r.dial()
	w.command("GET", "a")
	for got := w.answer(); strings.HasPrefix(got, "-LOADING"); got = w.answer() {
		w.command("GET", "a")
	}
	w.ask("*6 1 2 3 4 $-1 6", "MGET", "a", "b", long, "c", "d", "e")
	w.ask(":2000000000123", "PEXPIRETIME", "a")
	w.ask(":-1", "PTTL", "b")
	w.ask(":2000000000", "EXPIRETIME", "c")
	w.ask(":-1", "TTL", "e")
	w.ask(":-1", "TTL", "f")
	w.ask("8", "GET", "f")
	w.ask(":6", "DBSIZE")
}

// scanAll returns all keys that a scan finds, and how often each.
func scanAll(ws []*wire, args ...string) map[string]int {
	found := make(map[string]int)
	for cursor, i := "0", 0; i == 0 || cursor != "0"; i++ {
		w := ws[i%len(ws)]
		w.command(append([]string{"SCAN", cursor}, args...)...)
		got := strings.Split(w.answer(), " ")
		if got[0] != "*2" {
			w.t.Fatalf("SCAN: the answer is %q", got)
		}
		cursor = got[1]
		for _, key := range got[3:] {
			found[key]++
		}
	}
	return found
}

// A key that is there all the time is found, whatever becomes of others, from any node.
func TestScan(t *testing.T) {
	rigs := newFleetRigs(t, 2)
	ws := []*wire{rigs[0].dial(), rigs[1].dial()}
	const n = 300
	for i := range n {
		ws[i%2].ask("+OK", "SET", fmt.Sprint("stays:", i), "v", "EX", "1000")
	}
	done := make(chan struct{})
	var group sync.WaitGroup
	other := rigs[0].dial()
	group.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			other.ask("+OK", "SET", fmt.Sprint("comes:", i%20), "v")
			other.ask(":1", "DEL", fmt.Sprint("comes:", i%20))
			other.ask("+OK", "SET", fmt.Sprint("stays:", i%n), "w", "EX", "1000")
		}
	})
	for _, count := range []string{"1", "7", "1000"} {
		found := scanAll(ws, "COUNT", count, "MATCH", "stays:*")
		for i := range n {
			if key := fmt.Sprint("stays:", i); found[key] != 1 {
				t.Errorf("COUNT %s: %s was found %d times", count, key, found[key])
			}
		}
		if len(found) != n {
			t.Errorf("COUNT %s: %d keys were found", count, len(found))
		}
	}
	close(done)
	group.Wait()
	if found := scanAll(ws, "TYPE", "hash"); len(found) != 0 {
		t.Errorf("%d hashes were found", len(found))
	}
	ws[0].ask(fmt.Sprint(":", n), "DBSIZE")
	ws[0].command("RANDOMKEY")
	if got := ws[0].answer(); !strings.HasPrefix(got, "stays:") {
		t.Errorf("RANDOMKEY: the answer is %q", got)
	}
}

// Tasks that are no keys are not listed, and not touched by verbs that read a key.
func TestOtherTasks(t *testing.T) {
	r := newRig(t, Config{Topics: map[string]string{"order:": "order.expired", "": "expired"}}, tasks.Config{})
	for _, q := range []tasks.Request{
		{ID: "order:1", Topic: "order.expired", Delay: time.Hour, Payload: []byte("v")}, // a key
		{ID: "order:2", Topic: "expired", Delay: time.Hour},
		{ID: "x@y", Topic: "expired", Delay: time.Hour},
		{ID: "other", Topic: "else", Delay: time.Hour},
	} {
		if _, err := r.scheduler.Schedule(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	w := r.dial()
	w.ask("*1 order:1", "KEYS", "*")
	w.ask("v", "GET", "order:1")
	w.ask("-WRONGTYPE Operation against a key holding the wrong kind of value", "GET", "other")
	w.ask("-WRONGTYPE Operation against a key holding the wrong kind of value", "INCR", "other")
	w.ask(":0", "DEL", "other", "order:2")
	w.ask("*2 $-1 v", "MGET", "other", "order:1")
	w.ask("+stream", "TYPE", "expired:order.expired")
	w.ask(":1", "EXISTS", "expired:expired")
	w.ask("-WRONGTYPE Operation against a key holding the wrong kind of value", "SET", "expired:expired", "v")
	w.ask("+none", "TYPE", "expired:other")
	w.ask("-ERR flushall is off; the setting resp_flush allows it", "FLUSHALL")
	w.ask("-ERR the key must be at most 512 bytes long", "SET", strings.Repeat("k", 513), "v")
	w.ask("-ERR string exceeds maximum allowed size (proto-max-bulk-len)", "SET", "k", strings.Repeat("v", 256<<10+1))
	if got, err := r.scheduler.Get(t.Context(), "other"); err != nil || got.Topic != "else" {
		t.Errorf("the task of another topic is %+v (%v)", got, err)
	}
}

// From its deadline on a key does not exist, and its expiry is what it is.
func TestExpiredKeys(t *testing.T) {
	r := newRig(t, Config{}, tasks.Config{})
	w := r.dial()
	reserve := func() tasks.Delivery {
		t.Helper()
		ds, err := r.scheduler.Reserve(t.Context(), "expired", 1, time.Minute, 10*time.Second)
		if err != nil || len(ds) != 1 {
			t.Fatalf("%d deliveries (%v)", len(ds), err)
		}
		return ds[0]
	}
	w.ask("+OK", "XGROUP", "CREATE", "expired:expired", "g", "$")
	w.ask("+OK", "SET", "k", "old", "PX", "1")
	d := reserve()
	w.ask("$-1", "GET", "k")
	w.ask(":0", "DEL", "k")
	w.ask(":0", "EXISTS", "k")
	w.ask(":-2", "TTL", "k")
	w.ask(":0", "EXPIRE", "k", "100")
	w.ask("*0", "KEYS", "*")
	w.ask(":0", "DBSIZE")
	w.ask("+OK", "SET", "k", "new", "EX", "100") // takes the expiry back
	w.ask("new", "GET", "k")
	settled, err := r.scheduler.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, []string{d.Receipt()})
	if err == nil && settled[0].Err == nil {
		t.Error("the receipt of an expiry that was taken back counts")
	}
	w.ask("new", "GET", "k")

	w.ask(":1", "PEXPIRE", "k", "1")
	d = reserve()
	if _, err := r.scheduler.Settle(t.Context(), tasks.Verdict{Verb: tasks.Bury, Reason: "test"}, []string{d.Receipt()}); err != nil {
		t.Fatal(err)
	}
	w.ask("$-1", "GET", "k")
	w.ask(":0", "DEL", "k")
	w.ask(":1", "SETNX", "k", "after") // in the place of a dead task
	w.ask("after", "GET", "k")

	w.ask(":1", "PEXPIRE", "k", "1")
	reserve()
	w.ask(":1", "INCR", "k") // in the place of a delivery
}

func TestPersistentKeysAreBounded(t *testing.T) {
	w := newRig(t, Config{MaxPersistent: 2}, tasks.Config{}).dial()
	w.ask("+OK", "SET", "a", "1")
	w.ask("+OK", "SET", "b", "1")
	const refused = "-OOM this node has as many keys without a TTL as resp_max_persistent allows"
	w.ask(refused, "SET", "c", "1")
	w.ask(refused, "INCR", "d")
	w.ask("+OK", "SET", "c", "1", "EX", "100")
	w.ask(refused, "PERSIST", "c")
}

// The commands of a pipeline take effect in their order where they are about one key.
func TestPipelineOfKeys(t *testing.T) {
	w := newRig(t, Config{}, tasks.Config{}).dial()
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, "SET k%d %d PX 100000\r\nGET k%d\r\nSET bad%d v PX 0\r\n", i%300, i, i%300, i)
	}
	go func() { _, _ = io.WriteString(w.nc, b.String()) }()
	for i := range 1000 {
		if got := w.answer() + " " + w.answer() + " " + w.answer(); got != fmt.Sprintf("+OK %d -ERR invalid expire time in 'set' command", i) {
			t.Fatalf("the answers to commands %d are %q", i, got)
		}
	}
	w.ask(":300", "DBSIZE")
}
