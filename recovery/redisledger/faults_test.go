package redisledger

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// oneShard makes ledgers with a single shard, so that a test knows which one to check.
func oneShard(url string) *lives {
	v := newLives(url)
	v.opts.Shards = 1
	return v
}

// A batch is delayed in the network. It is sent again, later ones are written, and then it
// arrives.
func TestLateDuplicate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	v := oneShard(proxy.URL())
	v.opts.FailoverAfter = time.Hour // nothing but batches on the wire
	l := v.open(t)
	adopt(t, l)
	apply(t, l, put("a", "0"), put("b", "0"))

	release := proxy.Hold()
	late := batchOf(put("a", "1"), put("c", "1"))
	if err := l.Apply(t.Context(), 0, late); err == nil {
		t.Fatal("a batch that did not arrive is called written")
	}
	persist(t, l, put("a", "1"), put("c", "1"))
	apply(t, l, put("a", "2"), remove("c"), bury("b", "2"))
	token, sequence := l.member.Term(0).Token, l.member.Term(0).Sequence
	before := scriptCalls(server)
	release()
	if n := scriptCalls(server) - before; n != 1 {
		t.Errorf("%d late copies arrived, want 1: the test shows nothing", n)
	}
	wantHeld(t, server.Client(), l, content{"a": "2", "dead b": "2"})
	apply(t, l, put("a", "3"))
	if s := l.member.Term(0); s.Token != token || s.Sequence != sequence+1 {
		t.Errorf("the late copy changed the shard's state: %v %d, then %v %d", token, sequence, s.Token, s.Sequence)
	}
}

// scriptCalls is how many scripts the server has run by their digest.
func scriptCalls(server *redistest.Server) int {
	_, after, _ := strings.Cut(server.Do("info", "commandstats").(string), "cmdstat_evalsha:calls=")
	digits, _, _ := strings.Cut(after, ",")
	n, _ := strconv.Atoi(digits)
	return n
}

// The script runs and its answer is lost: the batch counts once, and no other batch may take its
// number.
func TestTimeoutAfterExecution(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	l := oneShard(proxy.URL()).open(t)
	adopt(t, l)
	apply(t, l, put("a", "0"))

	proxy.SetDeaf(true)
	if err := l.Apply(t.Context(), 0, batchOf(put("a", "1"))); err == nil {
		t.Fatal("a batch without an answer is called written")
	}
	server.Wait("the batch was executed", func(_ ctx, c *redis.Client) bool {
		return held(t, c, l.member.Term(0).Keys)["a"] == "1"
	})
	proxy.SetDeaf(false)
	if err := l.Apply(t.Context(), 0, batchOf(put("a", "2"))); err == nil || errors.Is(err, recovery.ErrLost) {
		t.Fatalf("another batch overtakes the unanswered one: %v", err)
	}
	persist(t, l, put("a", "1"))
	if got := l.member.Term(0).Sequence; got != 2 {
		t.Errorf("two batches were counted as %d", got)
	}
	apply(t, l, put("b", "3"))
	wantHeld(t, server.Client(), l, content{"a": "1", "b": "3"})
}

func TestScriptFlush(t *testing.T) {
	server := redistest.Start(t)
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	server.Do("script", "flush")
	apply(t, l, put("a", "2"))
	server.Do("script", "flush")
	if err := recovery.Replay(t.Context(), l, newMemory(), nil); err != nil {
		t.Fatal(err)
	}
	wantHeld(t, server.Client(), l, content{"a": "2"})
}

// While Redis reads its files it answers LOADING: nothing was executed.
func TestLoading(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "key-load-delay 5000", "loading-process-events-interval-bytes 1024")
	v := oneShard(server.URL())
	l := v.open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	for n := range 2000 {
		// Each costs 5 ms until Redis was seen loading.
		server.Do("set", n, strings.Repeat("x", 1024))
	}
	server.Do("save")
	server.Kill()
	server.StartLoading()
	b := batchOf(put("a", "2"))
	loading := false
	eventually(t, "the batch is written", func() bool {
		err := l.Apply(t.Context(), 0, b)
		if !loading && redis.HasErrorPrefix(errors.Unwrap(err), "LOADING") {
			loading = true
			server.Do("config", "set", "key-load-delay", 0)
		}
		return err == nil
	})
	if !loading {
		t.Error("Redis was never seen loading: the test shows nothing")
	}
	wantHeld(t, server.Client(), l, content{"a": "2"})
}

// A failover leaves the client on a server that has become a replica.
func TestReadOnly(t *testing.T) {
	server := redistest.Start(t)
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	server.Do("replicaof", "127.0.0.1", "1")
	b := batchOf(put("a", "2"))
	if err := l.Apply(t.Context(), 0, b); !redis.HasErrorPrefix(errors.Unwrap(err), "READONLY") {
		t.Fatalf("Apply on a replica: %v", err)
	}
	if err := l.Scan(t.Context(), func([]recovery.Entry) error { return nil }); err == nil {
		t.Error("a scan of a replica is called complete")
	}
	server.Do("replicaof", "no", "one")
	persist(t, l, put("a", "2"))
	wantHeld(t, server.Client(), l, content{"a": "2"})
}

// The server is restarted in the middle of a replay: no record is missed, though the old cursor
// would skip some.
func TestCursorBroken(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "appendonly yes", "appendfsync always")
	v := oneShard(server.URL())
	l := v.open(t)
	adopt(t, l)
	want := content{}
	for _, part := range numbered(20_000, member.MaxChanges) {
		apply(t, l, part...)
		for _, c := range part {
			want[string(c.ID)] = string(c.Data)
		}
	}
	v.crash()
	l = v.open(t)
	adopt(t, l)
	m := newMemory()
	restarted := false
	m.locking = func() {
		if len(m.records) > 0 && !restarted {
			restarted = true
			server.Kill()
			server.Start()
		}
	}
	if err := recovery.Replay(t.Context(), l, m, nil); err != nil {
		t.Fatal(err)
	}
	if !restarted {
		t.Fatal("the scan had one page only: the test shows nothing")
	}
	m.compare(t, want)
}

// A truncated file: ids without a record, and records that are not in the set.
func TestTornFile(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	l := v.open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"), put("b", "1"), put("c", "1"), put("d", "1"))
	keys := l.member.Term(0).Keys
	for name, tear := range map[string]func(){
		"a record is missing": func() { server.Do("hdel", keys.Tasks(), "a") },
		"an id is missing":    func() { server.Do("srem", keys.Pending(), "b") },
		"as many of each": func() {
			server.Do("hdel", keys.Tasks(), "c")
			server.Do("srem", keys.Pending(), "d")
		},
	} {
		t.Run(name, func(t *testing.T) {
			tear()
			m := newMemory()
			if err := recovery.Replay(t.Context(), l, m, nil); err != nil {
				t.Fatal(err)
			}
			c := server.Client()
			defer c.Close()
			m.compare(t, held(t, c, keys)) // which compares set and records
		})
	}
}
