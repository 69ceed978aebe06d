package redisledger

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// Nodes that start at the same moment get numbers of their own, each name always the same one, also
// when the one derived from the name is taken.
func TestNumbers(t *testing.T) {
	server := redistest.Start(t)
	l := oneShard(server.URL()).open(t)
	var mu sync.Mutex
	numbers := map[string]uint16{}
	var wg sync.WaitGroup
	for n := range 60 {
		name := fmt.Sprint("node-", n%20)
		wg.Go(func() {
			number, err := l.member.Number(t.Context(), name)
			mu.Lock()
			defer mu.Unlock()
			if before, known := numbers[name]; err != nil || known && before != number {
				t.Errorf("%s has the numbers %d and %d: %v", name, before, number, err)
			}
			numbers[name] = number
		})
	}
	wg.Wait()
	names := map[uint16]string{}
	for name, number := range numbers {
		if other, taken := names[number]; taken || number == 0 {
			t.Errorf("%s and %s have the number %d", name, other, number)
		}
		names[number] = name
	}

	server.Do("del", l.keys.Numbers())
	server.Do("hset", l.keys.Numbers(), numbers["node-1"], "a stranger", recovery.MaxNodeNumber, "the last")
	again, err := l.member.Number(t.Context(), "node-2")
	if err != nil || again != numbers["node-2"] {
		t.Errorf("after the list was lost, the number is %d, not %d: %v", again, numbers["node-2"], err)
	}
	if other, err := l.member.Number(t.Context(), "node-1"); err != nil || other == numbers["node-1"] {
		t.Errorf("the number of another node is given away again: %d, %v", other, err)
	}
	last, err := conn.NumberScript.Run(t.Context(), l.client, []string{l.keys.Numbers()}, "x", recovery.MaxNodeNumber, recovery.MaxNodeNumber).Int()
	if err != nil || last != 1 {
		t.Errorf("after the last number comes %d: %v", last, err)
	}
}

// A node whose number went to another, because Redis had lost the list, has another one from then
// on, and still finds records that were made with the first.
func TestNumberIsTaken(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	ids := a.put(t)
	first := a.member.Registration().Number
	server.Do("del", a.keys.Nodes(), a.keys.Numbers())
	server.Do("hset", a.keys.Numbers(), first, "b")
	a.member.KeepOnce()
	second := a.member.Registration().Number
	if second == first || a.ShardID(0) != recovery.NewShardID(second, 0) {
		t.Fatalf("the number was %d, and is %d", first, second)
	}
	for n, id := range ids {
		if at := a.terms.ShardOf([]byte(id)); at != n {
			t.Errorf("%s is looked for in shard %d, not %d", id, at, n)
		}
		found := 0
		if err := a.Find(t.Context(), id, func(recovery.Entry) { found++ }); err != nil || found != 1 {
			t.Errorf("%s is found %d times: %v", id, found, err)
		}
	}
}

// An entry of a newer version, which may lack what this one writes.
func TestEntriesOfOtherVersions(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", nil), join(t, server.URL(), "b", still)
	ids := a.put(t)
	a.crash()
	number := a.member.Registration().Number
	fields := map[string]any{}
	if err := json.Unmarshal([]byte(server.Do("hget", "lapse:nodes", "a").(string)), &fields); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"version", "address", "format", "layout", "indexed"} {
		delete(fields, field)
	}
	fields["novelty"] = map[string]any{"x": 1}
	raw, _ := json.Marshal(fields)
	server.Do("hset", "lapse:nodes", "a", raw)
	server.Do("hdel", "lapse:numbers:{lapse:nodes}", number)

	b.member.KeepOnce()
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 4)
	b.wantFound(t, ids)

	// Redis loses the registry: the node that holds a's shards writes its entry again.
	server.Do("del", "lapse:nodes")
	b.member.KeepOnce()
	b.look(t)
	if got := server.Do("hget", "lapse:nodes", "a"); got != string(raw) {
		t.Errorf("the entry was %s, and is %s", raw, got)
	}
}

// A node's number of shards was lowered, and Redis loses the registry: the process that follows,
// under its name or another, still reads the others.
func TestLostRegistryKeepsCounts(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", func(o *Options) { still(o); o.Shards = 8 })
	ids := a.put(t)
	a.crash()
	a.lives.opts.Shards = 3
	a = a.lives.join(t)
	server.Do("del", a.keys.Nodes())
	a.member.KeepOnce()
	a.crash()
	a = a.lives.join(t)
	a.wantFound(t, ids)
}

// Two processes see a name free at the same moment: one gets it, also if the other one's command
// arrives once more, and late.
func TestRegisteredAtOnce(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	first, second := v.open(t), v.open(t)
	if done, err := first.member.Follow(t.Context(), member.Entry{}, ""); !done || err != nil {
		t.Fatalf("follow: %v, %v", done, err)
	}
	if done, err := second.member.Follow(t.Context(), member.Entry{}, ""); done || err != nil {
		t.Errorf("two processes have one name: %v", err)
	}
	held, raw, err := second.member.ReadEntry(t.Context())
	if err != nil || held.Incarnation != first.member.Self.Incarnation {
		t.Errorf("the name is that of %s: %v", held.Incarnation, err)
	}
	if done, err := second.member.Follow(t.Context(), held, raw); !done || err != nil {
		t.Errorf("follow: %v, %v", done, err)
	}
	if done, err := first.member.Follow(t.Context(), member.Entry{}, ""); done || err != nil {
		t.Errorf("a late registration counts: %v", err)
	}
}

// A process changes its own entry as long as it owns the entry.
func TestRewriteEntry(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	mark := func(e *member.Entry) { e.Indexed = true }
	if done, err := a.member.RewriteEntry(t.Context(), mark); !done || err != nil {
		t.Fatalf("%v, %v", done, err)
	}
	a.client.AddHook(&lossOf{digest: conn.RegisterScript.Digest})
	unmark := func(e *member.Entry) { e.Indexed = false }
	if done, err := a.member.RewriteEntry(t.Context(), unmark); done || err == nil {
		t.Fatalf("without an answer: %v, %v", done, err)
	}
	if done, err := a.member.RewriteEntry(t.Context(), mark); !done || err != nil {
		t.Fatalf("%v, %v", done, err)
	}
	registered := a.member.Registration()
	if raw := server.Do("hget", "lapse:nodes", "a").(string); raw != registered.Encode() || !strings.Contains(raw, `"indexed":true`) {
		t.Errorf("the entry is %s", raw)
	}
	server.Do("hset", "lapse:nodes", "a", `{"incarnation":"other","number":7}`)
	if done, err := a.member.RewriteEntry(t.Context(), unmark); done || err != nil {
		t.Errorf("of another process: %v, %v", done, err)
	}
}

// Nodes lists a node that started after the watch last looked: a drain must not be refused
// for want of another node.
func TestNodesThatJustStarted(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	join(t, server.URL(), "b", still)
	nodes, err := a.Nodes(t.Context())
	if err != nil || len(nodes) != 2 || nodes[1].Name != "b" || !nodes[1].Live {
		t.Errorf("got %+v, %v", nodes, err)
	}
}

// Nodes returns what is known of each node.
func TestNodes(t *testing.T) {
	server := redistest.Start(t)
	told := func(o *Options) {
		still(o)
		o.Version, o.Address, o.Format = "1.2.3", "10.0.0.1:7480", 4
	}
	a, b := join(t, server.URL(), "a", told), join(t, server.URL(), "b", told)
	c := join(t, server.URL(), "c", told)
	for _, m := range []*fleetNode{a, b, c} {
		m.member.KeepOnce() // asks for the status
		eventually(t, "the status was asked for", func() bool {
			return m.member.Notices.LastStatus() != ""
		})
		m.member.KeepOnce()
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b.age(t, 2*time.Hour, "a")
	b.room.Store(-1)
	a.crash()
	b.room.Store(100)
	b.look(t)
	b.waitAcquired(t, 4)
	nodes, err := b.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range nodes {
		if n.Incarnation == "" || n.Number == 0 || !strings.Contains(n.Process, "process") {
			t.Errorf("%+v", n)
		}
		got = append(got, fmt.Sprintf("%s self=%v live=%v released=%v dead=%v %s %s %d shards=%d held=%d adopted=%d %q",
			n.Name, n.Self, n.Live, n.Released, n.Silent > time.Hour, n.Version, n.Address, n.Format, n.Shards, n.Held, n.Adopted, n.Status))
	}
	const common = "1.2.3 10.0.0.1:7480 4 shards=4 held="
	if diff := cmp.Diff([]string{
		"a self=false live=false released=false dead=true " + common + `0 adopted=0 ""`,
		"b self=true live=true released=false dead=false " + common + `4 adopted=4 "status of b"`,
		"c self=false live=false released=true dead=false " + common + `4 adopted=0 ""`,
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	server.Kill()
	if nodes, err = b.Nodes(t.Context()); err != nil || len(nodes) != 3 {
		t.Errorf("without Redis: %d nodes, %v", len(nodes), err)
	}
}

// A node that is long dead and has no shard left is forgotten; under its name another one starts
// afresh.
func TestForgotten(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"Standalone": func(t *testing.T) string { return redistest.Start(t).URL() },
		"Cluster":    func(t *testing.T) string { return redistest.StartCluster(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			url := start(t)
			a, b := join(t, url, "a", nil), join(t, url, "b", still)
			if err := a.Apply(t.Context(), 1, batchOf(put("x", "1"), put("y", "1"))); err != nil {
				t.Fatal(err)
			}
			if err := a.Apply(t.Context(), 1, batchOf(bury("y", "1"))); err != nil {
				t.Fatal(err)
			}
			shardID := a.ShardID(0)
			a.crash()
			b.member.KeepOnce()
			b.age(t, 5*time.Hour, "a")
			b.look(t)
			b.waitAcquired(t, 4)
			b.look(t)
			if _, lost := b.told(); lost > 0 {
				t.Error("retired too soon")
			}
			b.age(t, 5*time.Hour, "a")
			b.look(t)
			eventually(t, "the empty ones are retired", func() bool { _, lost := b.told(); return lost == 3 })
			b.look(t)
			registered := func() string {
				return fmt.Sprint(b.client.HExists(t.Context(), b.keys.Nodes(), "a").Val(),
					b.client.Exists(t.Context(), b.keys.Heartbeat("a")).Val(),
					b.client.HLen(t.Context(), b.keys.Numbers()).Val())
			}
			if got := registered(); got != "true 1 2" {
				t.Errorf("with a shard that is not empty: %s", got)
			}
			if at, err := b.Locate(t.Context(), shardID, true); err != nil || at.Node != "" {
				t.Errorf("a retired shard is at %+v: %v", at, err)
			}
			n := b.member.Holds("a", 1).Number
			dead := recovery.Spot{Place: recovery.Dead, At: noon, Label: "topic"}
			for _, c := range []recovery.Change{remove("x"), {ID: []byte("y"), From: dead}} {
				b.look(t)
				if got := registered(); got != "true 1 2" {
					t.Errorf("with a shard that is not empty: %s", got)
				}
				if err := b.Apply(t.Context(), n, batchOf(c)); err != nil {
					t.Fatal(err)
				}
			}
			b.look(t) // retires
			b.look(t) // forgets
			if got := registered(); got != "false 0 1" {
				t.Errorf("it is not forgotten: %s", got)
			}
			if at, err := b.Locate(t.Context(), shardID, true); err != nil || at.Node != "" {
				t.Errorf("a forgotten shard is at %+v: %v", at, err)
			}
			a = a.lives.join(t)
			if a.terms.Shards != 4 || len(a.terms.Away) != 0 {
				t.Errorf("it starts with %+v", a.terms)
			}
			a.wantFound(t, a.put(t))
		})
	}
}

// A dead node is not forgotten while one of its shards cannot be read, as its server is down: no
// node would look for its tasks.
func TestNotForgottenUnseen(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	if err := a.Apply(t.Context(), 1, batchOf(put("x", "1"))); err != nil {
		t.Fatal(err)
	}
	tasks, shardID := a.member.Term(1).Keys.Tasks(), a.ShardID(1)
	a.crash()
	server.Do("rename", tasks, "aside")
	server.Do("set", tasks, "what answers an error")
	b.member.KeepOnce()
	b.age(t, 20*time.Hour, "a")
	for range 3 { // adopts, retires, forgets
		b.look(t)
	}
	b.waitAcquired(t, 3)
	eventually(t, "the empty ones are retired", func() bool { _, lost := b.told(); return lost == 3 })
	if b.member.ShardFor([]byte(shardID.NewID())) >= 0 {
		t.Error("it does not remember whose the shard was")
	}
	server.Do("rename", "aside", tasks)
	b.look(t)
	b.waitAcquired(t, 4)
	if s := b.member.Holds("a", 1); s == nil || s.Unread.Load() != 1 {
		t.Errorf("it has adopted %+v", s)
	}
}

// A node that comes back at the very moment of its removal is not removed.
func TestForgottenTooLate(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", nil), join(t, server.URL(), "b", still)
	a.crash()
	b.age(t, 0, "a")
	raw := server.Do("hget", b.keys.Nodes(), "a").(string)
	count := server.Do("get", b.keys.Heartbeat("a")).(string)
	number := int(a.ShardID(0).Node())
	forget := func(raw, count string) int {
		keys := []string{b.keys.Nodes(), b.keys.Heartbeat("a"), b.keys.Status(), b.keys.Numbers()}
		n, err := conn.ForgetScript.Run(t.Context(), b.client, keys, "a", raw, count, number).Int()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	server.Do("incr", b.keys.Heartbeat("a"))
	if forget(raw, count) != 0 {
		t.Error("forgotten after a heartbeat")
	}
	count = server.Do("get", b.keys.Heartbeat("a")).(string)
	if forget(raw+" ", count) != 0 {
		t.Error("forgotten though its entry is another")
	}
	// Redis had lost the list of numbers, and this number belongs to another node by now.
	server.Do("hset", b.keys.Numbers(), number, "c")
	server.Do("hset", b.keys.Status(), "a", "the last")
	if forget(raw, count) != 1 {
		t.Error("not forgotten though nothing has changed")
	}
	if got := server.Do("hget", b.keys.Numbers(), number); got != "c" {
		t.Errorf("the number of c is now that of %v", got)
	}
	if server.Do("hexists", b.keys.Status(), "a") != int64(0) {
		t.Error("what it had to say is kept")
	}
}
