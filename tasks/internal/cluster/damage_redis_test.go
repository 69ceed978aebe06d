package cluster_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// What another program has written in the place of Lapse's data in Redis keeps no process from
// starting: all tasks whose records are there are delivered, and the damage is told.
func TestDamagedRedis(t *testing.T) {
	const count = 40
	for _, c := range []struct {
		name   string
		damage func(do func(args ...any) any)
		lost   int    // tasks of one shard
		waits  string // of readiness; empty: it is of no interest
		logs   string
	}{
		{"data set", func(do func(...any) any) { do("set", "lapse:dataset", "garbage") }, 0, "lapse:dataset", "set aside"},
		{"type of the data set", func(do func(...any) any) { do("del", "lapse:dataset"); do("sadd", "lapse:dataset", "x") }, 0, "lapse:dataset", "set aside"},
		{"entry", func(do func(...any) any) { do("hset", "lapse:nodes", "a", "garbage") }, 0, "", "registry entry unreadable"},
		{"empty entry", func(do func(...any) any) { do("hset", "lapse:nodes", "a", "{}") }, 0, "", "registry entry unreadable"},
		{"entry of another node", func(do func(...any) any) { do("hset", "lapse:nodes", "b", "garbage") }, 0, "entry of node b", ""},
		{"registry", func(do func(...any) any) { do("set", "lapse:nodes", "x") }, 0, "lapse:nodes", "set aside"},
		{"token", func(do func(...any) any) { do("hset", "lapse:{a/1}:tasks", "!o", "garbage") }, 0, "", "token of a shard's owner"},
		{"sequence", func(do func(...any) any) {
			do("hset", "lapse:{a/1}:tasks", "!s", "garbage", "!r", "x", "!a", "y")
		}, 0, "", ""},
		{"records", func(do func(...any) any) { do("set", "lapse:{a/1}:tasks", "x") }, 1, "lapse:{a/1}:tasks", "set aside"},
		{"pending ids", func(do func(...any) any) { do("set", "lapse:{a/1}:pending", "x") }, 0, "lapse:{a/1}:pending", "set aside"},
		{"dead", func(do func(...any) any) { do("set", "lapse:{a/1}:dead", "x") }, 0, "lapse:{a/1}:dead", "set aside"},
		{"index of the dead", func(do func(...any) any) { do("set", "lapse:{a/1}:deadindex", "x") }, 0, "lapse:{a/1}:deadindex", "set aside"},
		{"heartbeat", func(do func(...any) any) { do("set", "lapse:heartbeat:{lapse:nodes}:a", "x") }, 0, "", ""},
		{"type of the heartbeat", func(do func(...any) any) {
			do("del", "lapse:heartbeat:{lapse:nodes}:a")
			do("sadd", "lapse:heartbeat:{lapse:nodes}:a", "x")
		}, 0, "heartbeat", "set aside"},
		{"status", func(do func(...any) any) { do("set", "lapse:status:{lapse:nodes}", "x") }, 0, "status", "set aside"},
		{"numbers", func(do func(...any) any) { do("set", "lapse:numbers:{lapse:nodes}", "x") }, 0, "numbers", "set aside"},
		{"a number", func(do func(...any) any) { do("hset", "lapse:numbers:{lapse:nodes}", "x", "a", "0", "a") }, 0, "", ""},
		{"settings", func(do func(...any) any) { do("set", "lapse:topics", "x") }, 0, "lapse:topics", "set aside"},
		{"changes", func(do func(...any) any) { do("set", "lapse:changes:{lapse:topics}", "x") }, 0, "changes", "set aside"},
		{"counts of changes", func(do func(...any) any) { do("hset", "lapse:topics", "!v", "x", "!n", "y", "!f", "z") }, 0, "", ""},
		{"setting", func(do func(...any) any) { do("hset", "lapse:topics", "topic/other", "garbage") }, 0, "", "settings of a topic cannot be read"},
		{"key of receipts", func(do func(...any) any) { do("hset", "lapse:topics", "receipt-key", "garbage") }, 0, "", ""},
		{"directory", func(do func(...any) any) {
			for i := range 256 {
				do("del", fmt.Sprint("lapse:ids:", i))
				do("set", fmt.Sprint("lapse:ids:", i), "x")
			}
		}, 0, "lapse:ids:", "set aside"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			n := newRedisNode(t, server.URL())
			for i := range count {
				n.schedule("x", fmt.Sprint("id-", i))
			}
			_, err := n.SetTopic(t.Context(), "other", tasks.TopicSettings{Lease: time.Minute}, -1)
			rig.Want(t, "SetTopic", err, nil)
			lost := 0
			if c.lost > 0 {
				lost = len(strings.Split(fmt.Sprint(server.Do("smembers", "lapse:{a/1}:pending")), " ")) - 1
			}
			rig.Want(t, "Close", n.Close(t.Context()), nil)
			c.damage(server.Do)

			var log logLines
			ledger, err := redisledger.Open(redisledger.Options{
				URL: server.URL(), Node: "a", Shards: 4, FailoverAfter: 500 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, nil)),
			})
			if err != nil {
				t.Fatal(err)
			}
			if n.Scheduler, err = tasks.Open(t.Context(), ledger, tasks.Config{Log: slog.New(slog.NewTextHandler(&log, nil))}); err != nil {
				t.Fatal(err)
			}
			n.waitFor("all tasks are read", func() bool { return int(n.Stats().Total.Pending) == count-lost && n.Readiness().Ready })
			n.waitFor("readiness tells it", func() bool {
				for _, w := range n.Readiness().Waiting {
					if c.waits != "" && strings.Contains(w.What, c.waits) {
						return true
					}
				}
				return c.waits == ""
			})
			if !strings.Contains(log.String(), c.logs) || c.logs != "" && !strings.Contains(log.String(), "level=ERROR") {
				t.Errorf("the log says: %s", &log)
			}
			// It takes, delivers and settles tasks of all shards.
			for i := range count {
				id := fmt.Sprint("new-", i)
				n.waitFor(id+" is taken", func() bool {
					_, err = n.Schedule(t.Context(), tasks.Request{ID: id, Topic: "y"})
					return err == nil
				})
			}
			for got := 0; got < count; {
				ds, err := n.Reserve(t.Context(), "y", count, time.Second, 0)
				rig.Want(t, "Reserve", err, nil)
				for _, d := range ds {
					settled, err := n.Settle(t.Context(), tasks.Verdict{Verb: tasks.Ack}, []string{d.Receipt()})
					if err != nil || settled[0].Err != nil {
						t.Fatalf("Settle: %v, %v", settled, err)
					}
					got++
				}
			}
			_, err = n.SetTopic(t.Context(), "z", tasks.TopicSettings{Lease: time.Minute}, -1)
			rig.Want(t, "SetTopic", err, nil)
			n.waitFor("its heartbeat goes on", func() bool { return n.Readiness().LedgerOK })
		})
	}
}

// logLines are those of a log.
type logLines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A node that starts under a new name beside what one of another name has left, and that is not
// known to have ended in order, says in readiness what it does not serve yet, until it has adopted
// that.
func TestNewNameBesideAnOldOne(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	old := newNamedRedisNode(t, server.URL(), "old")
	old.schedule("x", "a", "b")
	rig.Want(t, "Close", old.Close(t.Context()), nil)
	for n := range 4 { // it has not said that it has ended
		server.Do("hdel", fmt.Sprintf("lapse:{old/%d}:tasks", n), "!a")
	}
	n := newNamedRedisNode(t, server.URL(), "new")
	tells := func() bool {
		for _, w := range n.Readiness().Waiting {
			if w.What == "node old" && strings.Contains(w.Detail, "503") {
				return true
			}
		}
		return false
	}
	n.waitFor("readiness tells it", tells)
	n.waitFor("it is adopted", func() bool { return !tells() })
	n.waitFor("all is served", func() bool {
		page, err := n.List(t.Context(), tasks.Query{})
		if err != nil || len(page.Tasks) != 2 {
			return false
		}
		_, err = n.Schedule(t.Context(), tasks.Request{ID: "c", Topic: "x", Delay: time.Hour})
		return err == nil
	})
}
