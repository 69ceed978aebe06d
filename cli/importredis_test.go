package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-json"
	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// importing is the beginning of an import of orders from a Redis.
func importingFrom(url string, more ...string) []string {
	return append([]string{"import", "redis", "--from", url, "--match", "order:*", "--topic", "order.expired"}, more...)
}

// imported runs an import that must succeed, and returns its counts.
func (s *shell) imported(args ...string) map[string]int {
	s.Helper()
	code, out, errs := s.run(append(args, "--json")...)
	if code != exitOK {
		s.Fatalf("%q: exit code %d\nstdout: %s\nstderr: %s", args, code, out, errs)
	}
	return s.counts(out)
}

// counts reads the counts that an import has printed, those that are not zero.
func (s *shell) counts(out string) map[string]int {
	s.Helper()
	all := map[string]any{}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		s.Fatalf("%v in %s", err, out)
	}
	counts := map[string]int{}
	for name, n := range all {
		if n, ok := n.(float64); ok && n > 0 && name != "seconds" {
			counts[name] = int(n)
		}
	}
	return counts
}

func (s *shell) client() *client.Client {
	s.Helper()
	c, err := client.New(client.Options{URL: s.url})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(c.Close)
	return c
}

// task reads a task; nil if there is none.
func (s *shell) task(id string) *client.Task {
	s.Helper()
	t, err := s.client().Get(s.Context(), id)
	if err != nil && !strings.Contains(err.Error(), "finished") {
		s.Fatal(err)
	}
	return t
}

func wantCounts(t *testing.T, what string, got, want map[string]int) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: counted %v, want %v", what, got, want)
	}
}

// Keys become tasks; an import that is repeated follows what has changed, and leaves alone what is
// not of the import.
func TestImportRedis(t *testing.T) {
	s, source := newShell(t), redistest.Start(t)
	long := "order:" + strings.Repeat("x", 200)
	for _, key := range []string{"order:1", "order:2", "order:3", "order:4", "order:two words", "order:\xff\x01", long, "order:taken"} {
		source.Do("SET", key, "v", "EX", 3600)
	}
	source.Do("SET", "order:forever", "v")
	source.Do("SET", "session:1", "v", "EX", 3600)
	s.ok("schedule", "order.expired", "--id", "order:taken", "--delay", "2h")

	wantCounts(t, "first", s.imported(importingFrom(source.URL())...), map[string]int{"imported": 7, "kept": 1, "without_ttl": 1})
	sha := func(key string) string {
		for _, line := range strings.Split(s.ok("list", "--topic", "order.expired", "--json"), "\n") {
			var t client.Task
			if json.Unmarshal([]byte(line), &t) == nil && strings.HasPrefix(t.ID, "sha256:") && t.Headers["key"] == key {
				return t.ID
			}
		}
		s.Fatalf("no task has the key %q in its header", key)
		return ""
	}
	for key, id := range map[string]string{"order:1": "order:1", "order:two words": sha("order:two words"), long: sha(long)} {
		task := s.task(id)
		if at := source.Do("PEXPIRETIME", key).(int64); task.Due.UnixMilli() != at || string(task.Payload) != fmt.Sprintf(`{"key":%q}`, key) {
			t.Errorf("%q: %+v, want it due at %d", key, task, at)
		}
	}
	if task := s.task(sha("")); string(task.Payload) != `{"key_base64":"b3JkZXI6/wE="}` {
		t.Errorf("a key that is no text: %s", task.Payload)
	}
	if task := s.task("order:taken"); task.Headers["imported"] != "" {
		t.Errorf("the task of a caller was replaced: %+v", task)
	}
	wantCounts(t, "repeated", s.imported(importingFrom(source.URL())...), map[string]int{"repeated": 7, "kept": 1, "without_ttl": 1})

	source.Do("EXPIRE", "order:1", 7200)
	source.Do("DEL", "order:2")
	source.Do("PERSIST", "order:3")
	wantCounts(t, "after changes", s.imported(importingFrom(source.URL())...),
		map[string]int{"repeated": 4, "moved": 1, "kept": 1, "without_ttl": 2})
	if task := s.task("order:1"); task.Due.UnixMilli() != source.Do("PEXPIRETIME", "order:1").(int64) {
		t.Errorf("a deadline did not follow EXPIRE: %+v", task)
	}
	got := s.imported(importingFrom(source.URL(), "--cancel-gone")...)
	wantCounts(t, "with --cancel-gone", got, map[string]int{"repeated": 5, "cancelled": 2, "kept": 1, "without_ttl": 2})
	if a, b, c := s.task("order:2"), s.task("order:3"), s.task("order:4"); a.Outcome != client.OutcomeCancelled || b.Outcome != client.OutcomeCancelled || c.State != client.Pending {
		t.Errorf("deleted: %+v, persisted: %+v, other: %+v", a, b, c)
	}
	// A Redis that is empty has lost its keys, and none of them was deleted.
	source.Do("FLUSHALL")
	s.fails(exitNotFound, importingFrom(source.URL(), "--cancel-gone"), "no task is cancelled because its key is gone", "nothing was found to import")
}

// What Lapse has delivered is not delivered again, also if the key is there still, as with a clock
// that is behind. A new deadline makes a new task.
func TestImportRedisDelivered(t *testing.T) {
	s, source := newShell(t), redistest.Start(t)
	source.Do("SET", "order:1", "v", "EX", 3600)
	s.imported(importingFrom(source.URL())...)
	s.ok("fire", "order:1")
	s.ok("reserve", "order.expired", "--wait", "10s", "--exec", "true")
	wantCounts(t, "delivered", s.imported(importingFrom(source.URL())...), map[string]int{"repeated": 1})
	if task := s.task("order:1"); task.State != client.Finished {
		t.Errorf("it is there again: %+v", task)
	}
	source.Do("EXPIRE", "order:1", 7200)
	wantCounts(t, "a new deadline", s.imported(importingFrom(source.URL())...), map[string]int{"imported": 1})
	if task := s.task("order:1"); task.State != client.Pending {
		t.Errorf("got %+v", task)
	}
}

func TestImportRedisValues(t *testing.T) {
	s, source := newShell(t), redistest.Start(t)
	source.Do("SET", "order:text", `say "hi"`, "EX", 3600)
	source.Do("SET", "order:binary", "\xff", "EX", 3600)
	source.Do("SET", "order:large", strings.Repeat("x", 41<<10), "EX", 3600)
	source.Do("RPUSH", "order:list", "a")
	source.Do("EXPIRE", "order:list", 3600)
	code, out, errs := s.run(importingFrom(source.URL(), "--with-values", "--json")...)
	if code != exitFailed || !strings.Contains(errs, "order:large") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	wantCounts(t, "with values", s.counts(out), map[string]int{"imported": 3, "refused": 1})
	for id, want := range map[string]string{
		"order:text":   `{"key":"order:text","value":"say \"hi\""}`,
		"order:binary": `{"key":"order:binary","value_base64":"/w=="}`,
		"order:list":   `{"key":"order:list"}`,
	} {
		if task := s.task(id); string(task.Payload) != want {
			t.Errorf("%s: %s, want %s", id, task.Payload, want)
		}
	}
	wantCounts(t, "without values", s.imported(importingFrom(source.URL())...), map[string]int{"imported": 1, "repeated": 1, "moved": 2})
}

// A cluster is read at all its masters, Sentinels lead to the master, and a replica will do.
func TestImportRedisKinds(t *testing.T) {
	sentinels := redistest.StartSentinel(t)
	cluster := redistest.StartCluster(t)
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	sources := map[string]struct{ write, read string }{
		"sentinel": {sentinels.URL(), sentinels.URL()},
		"cluster":  {cluster.URL(), cluster.URL()},
		"replica":  {master.URL(), replica.URL()},
	}
	for name, source := range sources {
		t.Run(name, func(t *testing.T) {
			s := newShell(t)
			const keys = 3000
			to := connectedTo(t, source.write)
			p := to.Pipeline()
			for i := range keys {
				p.Set(t.Context(), "order:"+strconv.Itoa(i), "v", time.Hour)
			}
			if _, err := p.Exec(t.Context()); err != nil {
				t.Fatal(err)
			}
			if name == "replica" {
				replica.Wait("the keys of the master", func(ctx context.Context, c *redis.Client) bool { return c.DBSize(ctx).Val() == keys })
			}
			wantCounts(t, "first", s.imported(importingFrom(source.read)...), map[string]int{"imported": keys})
			wantCounts(t, "repeated", s.imported(importingFrom(source.read)...), map[string]int{"repeated": keys})
		})
	}
}

// The rights that the documentation names are enough, and no others are used.
func TestImportRedisRights(t *testing.T) {
	s, source := newShell(t), redistest.Start(t)
	source.Do("SET", "order:1", "v", "EX", 3600)
	least := documentedRights(t)
	source.Do(append([]any{"ACL", "SETUSER", "mover", "on", ">secret"}, least...)...)
	as := strings.Replace(source.URL(), "redis://", "redis://mover:secret@", 1)
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(as+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantCounts(t, "with the least rights", s.imported(importingFrom("@"+file, "--with-values", "--cancel-gone")...), map[string]int{"imported": 1})
	code, _, errs := s.run(importingFrom(as, "--watch")...)
	if code != exitUsage || !strings.Contains(errs, "CONFIG SET notify-keyspace-events Kg$e") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	source.Do("ACL", "SETUSER", "mover", "-pexpiretime")
	if code, _, errs := s.run(importingFrom(as)...); code != exitUnavailable || !strings.Contains(errs, "pexpiretime") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

func TestImportRedisFlags(t *testing.T) {
	s := newShell(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--match", "", "--topic", "t"}, "match: must not be empty"},
		{[]string{"--match", "a*", "--topic", "no topic"}, "topic: must be"},
		{[]string{"--match", "a*", "--topic", "t", "--rate", "-1"}, "rate: must be from 1"},
		{[]string{"--match", "a*", "--topic", "t", "--configure"}, "configure: goes with watch only"},
		{[]string{"--match", "a*", "--topic", "t", "--rescan", "1ms"}, "rescan: must be from 1s to 24h"},
		{[]string{"--match", "a*", "--topic", "t", "--keep-finished", "31d"}, "keep-finished: must be from 0s to 30d"},
		{[]string{"--match", "a*", "--topic", "t", "--source", "ä"}, "source: must be"},
		{[]string{"--match", "a*", "--topic", "t", "--from", "http://x"}, "from: the URL of Redis"},
		{[]string{"--topic", "t"}, "missing flags: --match"},
	} {
		code, out, errs := s.run(append([]string{"import", "redis"}, c.args...)...)
		if code != exitUsage || !strings.Contains(errs, c.want) || out != "" {
			t.Errorf("%q: exit code %d, %s%s", c.args, code, out, errs)
		}
	}
	if code, _, _ := s.run(importingFrom("redis://" + redistest.FreeAddr(t))...); code == exitOK {
		t.Error("a Redis that is not there is no error")
	}
}

// An import that is interrupted keeps what was accepted, and says so.
func TestImportRedisInterrupted(t *testing.T) {
	s, source := newShell(t), redistest.Start(t)
	const keys = 5000
	fill(t, source.Client(), keys)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	type result struct {
		code      int
		out, errs string
	}
	ended := make(chan result)
	go func() {
		var o, e screen
		code := run(ctx, append(importingFrom(source.URL(), "--rate", "1000", "--server", s.url), "--json"), streams{&o, &e})
		ended <- result{code, o.String(), e.String()}
	}()
	eventually(t, "tasks", func() bool { return s.pending() > 0 })
	interrupt()
	r := <-ended
	if r.code != exitInterrupted || !strings.Contains(r.out, `"interrupted":true`) {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.errs)
	}
	if n := s.counts(r.out)["imported"]; n == 0 || n == keys || n != s.pending() {
		t.Errorf("%d are said to be imported, and %d are there", n, s.pending())
	}
	s.imported(importingFrom(source.URL())...)
	if n := s.pending(); n != keys {
		t.Errorf("%d are there in the end, want %d", n, keys)
	}
}

// fill sets so many orders that expire.
func fill(t *testing.T, c *redis.Client, keys int) {
	t.Helper()
	p := c.Pipeline()
	for i := range keys {
		p.Set(t.Context(), "order:"+strconv.Itoa(i), "v", time.Hour)
	}
	if _, err := p.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// pending is how many tasks the topic has that wait.
func (s *shell) pending() int {
	topic, err := s.client().Topic(s.Context(), "order.expired")
	if err != nil {
		return 0
	}
	return int(topic.Counts.Pending)
}

// eventually waits until yes returns true.
func eventually(t *testing.T, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	for !yes() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("there is no %s", what)
		}
	}
}

// Before Redis 7.0 a deadline follows from what is left of it, so it varies by a moment. A repeated
// import does not take that for a move, and nothing is early.
func TestImportOldRedis(t *testing.T) {
	s, source := newShell(t), redistest.Start(t, `rename-command PEXPIRETIME ""`)
	const keys = 1500
	deadline := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	p := source.Client().Pipeline()
	for i := range keys {
		p.Do(t.Context(), "SET", "order:"+strconv.Itoa(i), "v", "PXAT", deadline.UnixMilli())
	}
	if _, err := p.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCounts(t, "first", s.imported(importingFrom(source.URL())...), map[string]int{"imported": keys})
	for _, id := range []string{"order:0", "order:777"} {
		if d := s.task(id).Due.Sub(deadline); d < 0 || d > time.Second {
			t.Errorf("%s is due %s after its key expires", id, d)
		}
	}
	got := s.imported(importingFrom(source.URL())...)
	if got["repeated"] != keys {
		t.Errorf("repeated: counted %v", got)
	}
	source.Do("EXPIRE", "order:0", 7200)
	if got := s.imported(importingFrom(source.URL())...); got["moved"] != 1 {
		t.Errorf("after EXPIRE: counted %v", got)
	}
}

// An import that finds nothing says what there is, ends with a code of its own, and makes no topic.
func TestImportOfNothing(t *testing.T) {
	s, source := newShell(t), redistest.Start(t)
	nothing := func(args []string, parts ...string) {
		t.Helper()
		s.fails(exitNotFound, args, append(parts, "nothing was found to import")...)
		if code, out, _ := s.run(append(args, "--json")...); code != exitNotFound || s.counts(out)["imported"] > 0 {
			t.Errorf("%q: exit code %d, %s", args, code, out)
		}
		if topics := s.lines("topics", "list"); len(topics) > 0 {
			t.Errorf("%q: topics %v", args, topics)
		}
	}
	nothing(importingFrom(source.URL()), `no key matches "order:*"`, "it has no databases with keys")
	source.Do("SET", "orders:1", "v", "EX", 3600)
	nothing(importingFrom(source.URL()), "its databases with keys are the one that was read: db0 (keys: 1, such as \"orders:1\")")
	nothing(importingFrom(source.URL()+"/3"), "its databases with keys are db0 (keys: 1)")
	source.Do("SET", "order:1", "v")
	nothing(importingFrom(source.URL()), `no key that matches "order:*" has a TTL`)

	asynq := []string{"import", "asynq", "--from", source.URL(), "--topic", "t"}
	nothing(asynq, "it has no queues of asynq")
	source.Do("SADD", "asynq:queues", "low", "default")
	nothing(append(asynq, "--queue", "defaults"), "its queues of asynq are default, low")
}
