package redisledger

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// minimalRules are those of doc.go.
const minimalRules = "~lapse:* &lapse:bus* +evalsha +eval +get +mget +setnx +set +del +hget +hmget +hset +hincrby +hdel +hlen +hexists " +
	"+hgetall +hscan +sadd +srem +scard +sismember +smembers +sscan +zadd +zrem +zrangebylex +incr +exists +pexpire +rename " +
	"+info +time +ping +hello +publish +subscribe +unsubscribe"

// The documents name every command that a script runs. A user without one of them would get the
// error only when the script runs it.
func TestDocumentedRules(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	text, operations := read("doc.go"), read("../../docs/operations.md")
	rules := strings.Fields(minimalRules)
	for _, rule := range rules {
		name, command := strings.CutPrefix(rule, "+")
		if !strings.Contains(operations, rule) || command && !regexp.MustCompile(`\b`+name+`\b`).MatchString(text) {
			t.Errorf("%s is not documented", rule)
		}
	}
	files, err := filepath.Glob("internal/conn/scripts/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		for _, call := range regexp.MustCompile(`call\('([A-Z]+)'`).FindAllStringSubmatch(read(file), -1) {
			if !slices.Contains(rules, "+"+strings.ToLower(call[1])) {
				t.Errorf("%s runs %s, which the rules do not allow", file, call[1])
			}
		}
	}
}

func TestEvictionIsRefused(t *testing.T) {
	server := redistest.Start(t, "maxmemory-policy allkeys-lru")
	v := oneShard(server.URL())
	_, err := v.open(t).Adopt(t.Context())
	if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), "allkeys-lru") {
		t.Errorf("Adopt: %v", err)
	}
	v.opts.ForceEviction = true
	l := v.open(t)
	adopt(t, l)
	if got := l.Health().Warnings; len(got) != 2 || !strings.Contains(got[1], "allkeys-lru") || !strings.Contains(got[0], "appendonly") {
		t.Errorf("Warnings: %q", got)
	}
}

// The policy of a running Redis can be changed, and back.
func TestEvictionBegins(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "appendonly yes")
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	server.Do("config", "set", "maxmemory-policy", "allkeys-lru")
	eventually(t, "it is warned of", func() bool {
		w := l.Health().Warnings
		return len(w) == 1 && strings.Contains(w[0], "allkeys-lru")
	})
	server.Do("config", "set", "maxmemory-policy", "noeviction")
	eventually(t, "all is well again", func() bool { return len(l.Health().Warnings) == 0 })
}

func TestFit(t *testing.T) {
	good := conn.Info{"redis_version": "6.2.14", "maxmemory_policy": "noeviction", "aof_enabled": "1"}
	for name, c := range map[string]struct {
		changes conn.Info
		refused bool
		warns   int
	}{
		"good":        {conn.Info{}, false, 0},
		"newer":       {conn.Info{"redis_version": "10.0.1"}, false, 0},
		"old":         {conn.Info{"redis_version": "6.0.16"}, true, 0},
		"ancient":     {conn.Info{"redis_version": "5"}, true, 0},
		"evicting":    {conn.Info{"maxmemory_policy": "volatile-ttl"}, true, 0},
		"without AOF": {conn.Info{"aof_enabled": "0"}, false, 1},
	} {
		in := conn.Info{}
		for _, from := range []conn.Info{good, c.changes} {
			for k, v := range from {
				in[k] = v
			}
		}
		warnings, err := fit(in, false)
		if errors.Is(err, ErrUnfit) != c.refused || len(warnings) != c.warns {
			t.Errorf("%s: %q, %v", name, warnings, err)
		}
	}
}

func TestNewerLayoutIsRefused(t *testing.T) {
	server := redistest.Start(t)
	server.Do("set", "lapse:dataset", "2:x")
	if _, err := oneShard(server.URL()).open(t).Adopt(t.Context()); !errors.Is(err, recovery.ErrLayout) {
		t.Errorf("Adopt: %v", err)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "appendonly yes")
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	h := l.Health()
	if h.Err != nil || h.Latency <= 0 || h.LastAnswer.IsZero() || len(h.Warnings) > 0 ||
		conn.CompareVersions(h.Version, minVersion) < 0 || h.Where != "redis://"+server.Addr+"/0" {
		t.Errorf("Health: %+v", h)
	}
	server.Kill()
	eventually(t, "the outage is known", func() bool { return l.Health().Err != nil })
	server.Start()
	eventually(t, "the outage is over", func() bool { return l.Health().Err == nil })
}

// record is a log that the test reads.
type record struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (r *record) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.Write(b)
}

func (r *record) has(part string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(r.buf.String(), part)
}

// Redis is not running yet: Adopt reports it and waits.
func TestAbsentAtStart(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	v := oneShard(server.URL())
	if _, err := v.open(t).Adopt(t.Context()); err == nil {
		t.Fatal("adopted what is not there")
	}
	var log record
	v.opts.Wait = func(error) {}
	v.opts.Log = slog.New(slog.NewTextHandler(&log, nil))
	l := v.open(t)
	adopted := make(chan error, 1)
	go func() {
		_, err := l.Adopt(t.Context())
		adopted <- err
	}()
	eventually(t, "it says that it waits", func() bool { return log.has("waiting for Redis") })
	server.Start()
	if err := <-adopted; err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	apply(t, l, put("a", "1"))
}

func TestWaitingEnds(t *testing.T) {
	v := oneShard("redis://" + redistest.FreeAddr(t))
	v.opts.Wait = func(error) {}
	ctx, cancel := context.WithCancel(t.Context())
	l := v.open(t)
	ended := make(chan error, 2)
	adopt := func(ctx context.Context) {
		_, err := l.Adopt(ctx)
		ended <- err
	}
	go adopt(ctx)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("with its context, Adopt ends with %v", err)
	}
	go adopt(t.Context())
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-ended; !errors.Is(err, recovery.ErrClosed) {
		t.Errorf("with Close, Adopt ends with %v", err)
	}
}

// Waiting does not help with a wrong password.
func TestWrongPassword(t *testing.T) {
	server := redistest.Start(t, "user lapse on >right ~* &* +@all")
	v := oneShard("redis://lapse:wrong@" + server.Addr)
	v.opts.Wait = func(error) {}
	if _, err := v.open(t).Adopt(t.Context()); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("Adopt: %v", err)
	}
}

// The rules of an ACL user that doc.go names are enough.
func TestUser(t *testing.T) {
	server := redistest.Start(t, "user lapse on >p@ss "+minimalRules)
	l := oneShard("redis://lapse:p%40ss@" + server.Addr).open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"), put("b", "1"))
	apply(t, l, bury("a", "2"))
	apply(t, l, recovery.Change{ID: []byte("a"), From: recovery.Spot{Place: recovery.Dead, At: noon, Label: "topic"}, To: pending(noon), Data: []byte("3")})
	apply(t, l, bury("a", "4"))
	m := newMemory()
	if err := recovery.Replay(t.Context(), l, m, nil); err != nil {
		t.Fatal(err)
	}
	m.compare(t, content{"b": "1"})
	listed := 0
	if err := l.ListDead(t.Context(), "topic", recovery.Ref{}, func(recovery.Entry) bool { listed++; return true }); err != nil || listed != 1 {
		t.Errorf("ListDead gives %d: %v", listed, err)
	}
	server.Do("srem", l.member.Term(0).Keys.Pending(), "b")
	if err := recovery.Replay(t.Context(), l, newMemory(), nil); err != nil {
		t.Error(err)
	}
	if _, err := l.PutSetting(t.Context(), "topic", 0, []byte("x")); err != nil {
		t.Error(err)
	}
	if err := l.EachSetting(t.Context(), "", func(string, []byte, int64) {}); err != nil {
		t.Error(err)
	}
	l.member.KeepOnce()
	if err := l.Health().Err; err != nil {
		t.Error(err)
	}
	if err := l.Listen(func([]byte) {}); err != nil {
		t.Error(err)
	}
	if err := l.Send(t.Context(), "", []byte("x")); err != nil {
		t.Error(err)
	}
}

// The same rules let nodes watch each other: adopt, hand over, file ids, retire, forget, and come
// back after a silence.
func TestUserOfAFleet(t *testing.T) {
	server := redistest.Start(t, "user lapse on >secret "+minimalRules)
	url := "redis://lapse:secret@" + server.Addr
	a, b := join(t, url, "a", still), join(t, url, "b", still)
	b.member.KeepOnce()
	ids := a.put(t)
	dirEntry := recovery.DirectoryEntry{ShardID: a.ShardID(0), Nonce: 1}
	if _, err := b.Update(t.Context(), []recovery.DirectoryUpdate{{ID: "x", New: dirEntry}}); err != nil {
		t.Error(err)
	}
	if found, err := b.Lookup(t.Context(), []string{"x"}); err != nil || found[0] != dirEntry {
		t.Errorf("the entry is %v: %v", found, err)
	}
	if next, err := b.ScanDirectory(t.Context(), "", func(string, recovery.DirectoryEntry) {}); err != nil || next == "" {
		t.Errorf("ScanEntries goes on at %q: %v", next, err)
	}
	b.mark(t, true)
	transfer(t, a, 0, b)
	if _, err := a.Locate(t.Context(), dirEntry.ShardID, true); err != nil {
		t.Error(err)
	}
	if _, err := b.SpoolMark(t.Context(), "spool", ids[0]); err != nil {
		t.Error(err)
	}
	a.crash()
	b.age(t, 20*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 4)
	b.wantFound(t, ids)
	for n, id := range ids {
		if err := b.Apply(t.Context(), b.acquired[n], batchOf(remove(id))); err != nil {
			t.Fatal(err)
		}
	}
	b.look(t) // retires
	b.look(t) // forgets
	if n, err := b.client.HExists(t.Context(), b.keys.Nodes(), "a").Result(); n || err != nil {
		t.Errorf("a is not forgotten: %v", err)
	}

	b.member.Answered(time.Now().Add(-2 * time.Hour))
	b.member.KeepOnce()
	if err := b.Health().Err; err != nil {
		t.Errorf("after a silence: %v", err)
	}
}

// With Redis gone, Close returns, and reports that the name was not released.
func TestCloseInAnOutage(t *testing.T) {
	server := redistest.Start(t)
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	server.Kill()
	if err := l.Close(); err == nil {
		t.Error("Close released the name at a Redis that is gone")
	}
}

// A Redis that hangs does not delay a caller beyond its context.
func TestHungRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	b := batchOf(put("a", "1"))
	if err := l.Apply(ctx, 0, b); err == nil {
		t.Error("Apply beyond its context succeeded")
	}
	if err := l.Apply(t.Context(), 0, b); err == nil || errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply: %v", err)
	}
	server.Resume()
	persist(t, l, put("a", "1"))
	apply(t, l, put("b", "2"))
	if got := l.member.Term(0).Sequence; got != 2 {
		t.Errorf("2 batches were counted as %d", got)
	}
	wantHeld(t, server.Client(), l, content{"a": "1", "b": "2"})
}
