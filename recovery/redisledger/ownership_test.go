package redisledger

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/identity"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// elsewhere moves the next process of v to another machine.
func elsewhere(v *lives, l *Ledger) {
	l.member.Process.Boot = "another"
	l.member.FateOf = l.member.Process.FateOf
}

// Two processes of one name: a live one is never replaced.
func TestHeldByTheLiving(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	first := v.open(t)
	adopt(t, first)
	for name, second := range map[string]*Ledger{"same machine": v.open(t), "another machine": v.open(t)} {
		t.Run(name, func(t *testing.T) {
			if name == "another machine" {
				elsewhere(v, second)
			}
			_, err := second.Adopt(t.Context())
			if !errors.Is(err, recovery.ErrHeld) {
				t.Fatalf("Adopt beside a living process: %v", err)
			}
			for _, part := range []string{"process 1 on test", "127.0.0.1:7480", "--node"} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not name %q", err, part)
				}
			}
			apply(t, first, put("a", name))
		})
	}
}

// A process whose Adopt fails after it has got the name releases it.
func TestNameIsGivenBackAfterAFailure(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	first := v.open(t)
	server.Do("set", first.keys.Dataset(), "99:newer")
	if _, err := first.Adopt(t.Context()); !errors.Is(err, recovery.ErrLayout) {
		t.Fatalf("Adopt: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	server.Do("del", first.keys.Dataset())
	adopt(t, v.open(t)) // though the first process lives
}

// A process on another machine that sends no more heartbeats is adopted from after its own
// FailoverAfter, the longer one. When it wakes up it has lost its shards.
func TestAdoptFromTheSilent(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	v := oneShard(server.URL())
	sleeper := v.open(t)
	sleeper.member.FailoverAfter = time.Hour // it never beats
	adopt(t, sleeper)
	apply(t, sleeper, put("a", "1"))
	lost := make(chan error, 1)
	sleeper.Watch(recovery.Watcher{Lost: func(_ int, err error) { lost <- err }})

	successor := v.open(t)
	elsewhere(v, successor)
	raw := server.Do("hget", sleeper.keys.Nodes(), sleeper.opts.Node).(string)
	server.Do("hset", sleeper.keys.Nodes(), sleeper.opts.Node, strings.Replace(raw, `"failover_after":3600000`, `"failover_after":700`, 1))
	began := time.Now()
	adopt(t, successor)
	if waited := time.Since(began); waited < 700*time.Millisecond {
		t.Errorf("adopted after %v", waited)
	}
	apply(t, successor, put("a", "2"))
	if err := sleeper.Apply(t.Context(), 0, batchOf(put("a", "3"))); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply of a process that was replaced: %v", err)
	}
	wantHeld(t, server.Client(), successor, content{"a": "2"})
}

// A process that was replaced while it wrote nothing learns of it by its heartbeat.
func TestLostByHeartbeat(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	first := v.open(t)
	adopt(t, first)
	lost := make(chan error, 1)
	first.Watch(recovery.Watcher{Ended: func(err error) { lost <- err }})
	v.all[0].dead.Store(true) // as others see it
	adopt(t, v.open(t))
	select {
	case err := <-lost:
		if !errors.Is(err, recovery.ErrLost) {
			t.Errorf("told of %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("never told")
	}
	if err := first.Apply(t.Context(), 0, batchOf(put("a", "1"))); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply: %v", err)
	}
}

// A scan fails if it has read a shard that another process owns by now.
func TestScanOfALostShard(t *testing.T) {
	server := redistest.Start(t)
	v := oneShard(server.URL())
	v.opts.FailoverAfter = time.Hour
	first := v.open(t)
	adopt(t, first)
	apply(t, first, put("a", "1"))
	v.all[0].dead.Store(true)
	adopt(t, v.open(t))
	if err := first.ScanShard(t.Context(), 0, func([]recovery.Entry) error { return nil }); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("ScanShard: %v", err)
	}
}

// A process that has lost a shard does not repair it, nor does it take over what it has found.
func TestRepairByAFormerOwner(t *testing.T) {
	server := redistest.Start(t)
	l := oneShard(server.URL()).open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	keys := l.member.Term(0).Keys
	server.Do("srem", keys.Pending(), "a")
	for _, c := range []struct {
		token string
		want  int64
	}{{"other#x#9", 0}, {l.member.Term(0).Token.String(), 1}} {
		_ = conn.RepairScript.Run(t.Context(), l.client, keys.Living(), c.token, "a")
		if got := server.Do("sismember", keys.Pending(), "a"); got != c.want {
			t.Errorf("with the token %s: %v", c.token, got)
		}
	}
}

// The number of shards changes: tasks stay where they were recorded and are found, and an unused
// shard is retired when it is empty.
func TestShardCountChanges(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	v := newLives(server.URL())
	v.opts.Shards = 8
	l := v.open(t)
	terms := adopt(t, l)
	want := content{}
	write := func(n int, change func(id string) recovery.Change) {
		t.Helper()
		id := fmt.Sprint("task-", n)
		c := change(id)
		shard := terms.ShardOf(c.ID)
		if err := l.Find(t.Context(), id, func(e recovery.Entry) { shard = e.Shard }); err != nil {
			t.Fatal(err)
		}
		if err := l.GetDead(t.Context(), []string{id}, func(_ int, e recovery.Entry) { shard = e.Shard }); err != nil {
			t.Fatal(err)
		}
		if err := l.Apply(t.Context(), shard, batchOf(c)); err != nil {
			t.Fatal(err)
		}
		if delete(want, id); c.To.Place == recovery.Pending {
			want[id] = string(c.Data)
		}
	}
	creation := func(id string) recovery.Change { return put(id, "record of "+id) }
	for n := range 100 {
		write(n, creation)
	}
	for step, shards := range []int{3, 5, 8, 3} {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		v.opts.Shards = shards
		l = v.open(t)
		terms = adopt(t, l)
		m := newMemory()
		if err := recovery.Replay(t.Context(), l, m, nil); err != nil {
			t.Fatal(err)
		}
		m.compare(t, want)
		for id := range want {
			found := 0
			if err := l.Find(t.Context(), id, func(recovery.Entry) { found++ }); err != nil || found != 1 {
				t.Fatalf("%d shards: %s was found %d times: %v", shards, id, found, err)
			}
		}
		for n := 25 * step; n < 25*(step+1); n++ {
			if n%2 == 0 {
				write(n, func(id string) recovery.Change { return bury(id, "dead "+id) })
			}
			write(n, remove)
			write(1000+n, creation)
		}
	}
	for id := range want {
		var n int
		_, _ = fmt.Sscanf(id, "task-%d", &n)
		write(n, remove)
	}
	// Dead ones are left: their shards stay.
	retired := func() (n int) {
		if err := l.Scan(t.Context(), func([]recovery.Entry) error { return nil }); err != nil {
			t.Fatal(err)
		}
		for shard := range 8 {
			if l.member.Holds(l.opts.Node, shard) == nil {
				n++
			}
		}
		return n
	}
	_ = retired()
	for n := range 100 {
		if err := l.GetDead(t.Context(), []string{fmt.Sprint("task-", n)}, func(_ int, e recovery.Entry) {
			c := recovery.Change{ID: e.ID, From: e.Spot}
			if err := l.Apply(t.Context(), e.Shard, batchOf(c)); err != nil {
				t.Fatal(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := retired(); n != 5 {
		t.Errorf("%d shards were retired, want 5", n)
	}
	// A retired shard comes back into use.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	v.opts.Shards = 8
	l = v.open(t)
	if terms := adopt(t, l); terms.Shards != 8 {
		t.Fatalf("%d shards", terms.Shards)
	}
	for n := range 8 {
		if err := l.Apply(t.Context(), n, batchOf(put("x", "1"))); err != nil {
			t.Errorf("shard %d: %v", n, err)
		}
	}
}

// A real process is killed and leaves its name at once; while it lives, the error names it.
func TestProcessKilled(t *testing.T) {
	if identity.Self().Started == 0 {
		t.Skip("this platform has no /proc")
	}
	server := redistest.Start(t)
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childVariable+"="+server.URL())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = cmd.Process.Kill(), cmd.Wait() }()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "adopted\n" {
		t.Fatalf("the child says %q: %v", line, err)
	}

	open := func() *Ledger {
		l, err := Open(Options{URL: server.URL(), Node: childNode, Log: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	if _, err := open().Adopt(t.Context()); !errors.Is(err, recovery.ErrHeld) ||
		!strings.Contains(err.Error(), fmt.Sprintf("process %d ", cmd.Process.Pid)) {
		t.Fatalf("Adopt beside a living process: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Without waiting for it: a process that was killed a moment ago may still
	// be shown, as running or as a zombie.
	l := open()
	eventually(t, "the dead process is seen to be dead", func() bool {
		_, err := l.Adopt(t.Context())
		if err != nil && !errors.Is(err, recovery.ErrHeld) {
			t.Fatal(err)
		}
		return err == nil
	})
	found := 0
	if err := l.Find(t.Context(), "a", func(recovery.Entry) { found++ }); err != nil || found != 1 {
		t.Errorf("found %d of the child's tasks: %v", found, err)
	}
}

const (
	childVariable = "REDISLEDGER_TEST_URL"
	childNode     = "child"
)

// runChild makes this process the child of TestProcessKilled, if it is one.
func runChild() {
	url := os.Getenv(childVariable)
	if url == "" {
		return
	}
	l, err := Open(Options{URL: url, Node: childNode, Log: quiet()})
	if err == nil {
		_, err = l.Adopt(context.Background())
	}
	if err == nil {
		err = l.Apply(context.Background(), layout.ShardOf([]byte("a"), DefaultShards), batchOf(put("a", "1")))
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("adopted")
	select {}
}
