package tasks

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A node is a scheduler on a real Redis.
type node struct {
	*Scheduler
	t    testing.TB
	url  string
	name string
}

func newNode(t testing.TB, url string) *node {
	return newNamedNode(t, url, "a")
}

func newNamedNode(t testing.TB, url, name string) *node {
	n := &node{t: t, url: url, name: name}
	n.open()
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	return n
}

func (n *node) open() {
	n.t.Helper()
	ledger, err := redisledger.Open(redisledger.Options{
		URL: n.url, Node: n.name, Shards: 4, FailoverAfter: time.Second, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	if n.Scheduler, err = Open(n.t.Context(), ledger, Config{Log: slog.New(slog.DiscardHandler)}); err != nil {
		n.t.Fatal(err)
	}
	<-n.replayed
}

// waitFor polls, as a real Redis keeps its own time.
func (n *node) waitFor(what string, done func() bool) {
	n.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.After(20 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-over:
			n.t.Fatalf("waiting in vain until %s: %+v", what, n.Stats())
		}
	}
}

// schedule schedules tasks of one topic that are due in an hour.
func (n *node) schedule(topic string, ids ...string) {
	n.t.Helper()
	for _, id := range ids {
		_, err := n.Schedule(n.t.Context(), Request{ID: id, Topic: topic, Delay: time.Hour, Payload: []byte(`"` + id + `"`)})
		want(n.t, "Schedule "+id, err, nil)
	}
}

// pull makes a task due and reserves it.
func (n *node) pull(id string) Delivery {
	n.t.Helper()
	_, err := n.Fire(n.t.Context(), id)
	want(n.t, "Fire "+id, err, nil)
	ds, err := n.Reserve(n.t.Context(), "x", 1, 10*time.Second, 0)
	if err != nil || len(ds) != 1 || ds[0].ID != id {
		n.t.Fatalf("reserved %+v, %v, not %s", ds, err, id)
	}
	return ds[0]
}

func (n *node) settle(verb Verb, d Delivery) {
	n.t.Helper()
	hour := time.Hour
	answers, err := n.Settle(n.t.Context(), Verdict{Verb: verb, Delay: &hour}, []string{d.Receipt()})
	if err != nil || answers[0].Err != nil || !answers[0].Recorded {
		n.t.Fatalf("settling %s: %+v, %v", d.ID, answers, err)
	}
}

// all is what the scheduler says of its tasks, pending and dead.
func (n *node) all() map[string]string {
	n.t.Helper()
	held := map[string]string{}
	page, err := n.List(n.t.Context(), Query{Limit: 1000})
	want(n.t, "List", err, nil)
	for _, t := range page.Tasks {
		held[t.ID] = fmt.Sprintf("%v %s attempt %d revision %d next %d %s", t.State, t.Topic, t.Attempt, t.Revision, t.Next.UnixMilli(), t.Payload)
	}
	dead, err := n.DeadTasks(n.t.Context(), "x", 1000, "")
	want(n.t, "DeadTasks", err, nil)
	for _, t := range dead.Tasks {
		held["dead "+t.ID] = string(t.Payload)
	}
	return held
}

// recorded are the ids in Redis, read past the ledger.
func (n *node) recorded(server *redistest.Server) (ids []string) {
	n.t.Helper()
	for shard := range n.terms.Shards {
		for _, kind := range []string{"tasks", "dead"} {
			for _, id := range server.Do("hkeys", fmt.Sprintf("lapse:{a/%d}:%s", shard, kind)).([]any) {
				switch id := id.(string); {
				case kind == "dead":
					ids = append(ids, "dead "+id)
				case id[0] != '!':
					ids = append(ids, id)
				}
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// wantEqual waits until every shard was made equal to memory, and compares them: what
// is in Redis, and what the next process reads, with what memory holds.
func (n *node) wantEqual(server *redistest.Server, rewinds int64, wanted map[string]string) {
	n.t.Helper()
	ids := slices.Sorted(maps.Keys(wanted))
	n.waitFor("Redis holds what memory does", func() bool {
		s := n.Stats()
		return s.Rewinds == rewinds && s.Ledger.Queued == 0 && slices.Equal(n.recorded(server), ids)
	})
	if diff := cmp.Diff(wanted, n.all()); diff != "" {
		n.t.Errorf("memory has changed (-want +got):\n%s", diff)
	}
	if got := n.Stats().Total.Dead; int(got) != len(slices.DeleteFunc(ids, func(id string) bool { return len(id) < 5 || id[:5] != "dead " })) {
		n.t.Errorf("%d dead are counted", got)
	}
	want(n.t, "Close", n.Close(context.Background()), nil)
	n.open()
	if diff := cmp.Diff(wanted, n.all()); diff != "" {
		n.t.Errorf("the next process reads something else (-want +got):\n%s", diff)
	}
}

// Redis is killed, and started with an older file: acknowledged tasks do not come
// back, newer ones are not lost, and what had changed has changed.
func TestOlderRedisFile(t *testing.T) {
	server := redistest.Start(t, "dbfilename dump.rdb")
	n := newNode(t, server.URL())
	n.schedule("x", "kept", "acked", "retried", "moved", "buried", "cancelled", "in-flight")
	for i := range 500 {
		n.schedule("y", fmt.Sprint("old-", i))
	}
	server.Do("save")
	dump := filepath.Join(server.Dir, "dump.rdb")
	older, err := os.ReadFile(dump)
	want(t, "ReadFile", err, nil)

	for i := range 250 {
		want(t, "Cancel", n.Cancel(t.Context(), fmt.Sprint("old-", i)), nil)
		n.schedule("y", fmt.Sprint("new-", i))
	}
	n.schedule("x", "new")
	want(t, "Cancel", n.Cancel(t.Context(), "cancelled"), nil)
	_, err = n.Reschedule(t.Context(), "moved", Move{Delay: ptr(3 * time.Hour), Payload: []byte(`"elsewhere"`)})
	want(t, "Reschedule", err, nil)
	n.settle(Ack, n.pull("acked"))
	n.settle(Release, n.pull("retried"))
	n.settle(Bury, n.pull("buried"))
	wanted := n.all()
	delete(wanted, "in-flight")
	open := n.pull("in-flight")

	server.Kill()
	want(t, "WriteFile", os.WriteFile(dump, older, 0o600), nil)
	// What happens meanwhile is on top of the older state.
	go func() { _, _ = n.Settle(context.Background(), Verdict{Verb: Ack}, []string{open.Receipt()}) }()
	server.Start()
	n.waitFor("the acknowledgement is recorded", func() bool {
		a, err := n.Settle(t.Context(), Verdict{Verb: Ack}, []string{open.Receipt()})
		return err == nil && a[0].Err == nil && a[0].Recorded
	})
	n.wantEqual(server, 4, wanted)
	if _, known := n.all()["dead buried"]; !known {
		t.Error("what was buried is gone")
	}
	came, err := requeued(n.Requeue(t.Context(), "x", Requeue{IDs: []string{"buried"}}))
	if err != nil || came != 1 {
		t.Errorf("requeued %d, %v", came, err)
	}
	for _, id := range []string{"kept", "retried", "moved", "new"} {
		_, err := n.Fire(t.Context(), id)
		want(t, "Fire "+id, err, nil)
	}
	delivered := map[string]bool{}
	for len(delivered) < 5 {
		ds, err := n.Reserve(t.Context(), "x", 10, 10*time.Second, 0)
		if err != nil || len(ds) == 0 {
			t.Fatalf("only %v are delivered: %v", delivered, err)
		}
		for _, d := range ds {
			if delivered[d.ID] {
				t.Errorf("%s is delivered twice", d.ID)
			}
			delivered[d.ID] = true
			n.settle(Ack, d)
		}
	}
	if !delivered["buried"] || delivered["acked"] || delivered["cancelled"] || delivered["in-flight"] {
		t.Errorf("delivered: %v", delivered)
	}
}

// Redis loses everything, more than once: flushed, and started without its files.
func TestEmptyRedis(t *testing.T) {
	server := redistest.Start(t)
	n := newNode(t, server.URL())
	n.schedule("x", "acked", "retried")
	for i := range 500 {
		n.schedule("y", fmt.Sprint("t", i))
	}
	n.settle(Ack, n.pull("acked"))
	n.settle(Release, n.pull("retried"))
	_, err := n.SetTopic(t.Context(), "x", TopicSettings{Lease: 2 * time.Hour}, 0)
	want(t, "SetTopic", err, nil)
	_, err = n.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Hour}, 1)
	want(t, "SetTopic", err, nil)
	n.schedule("x", "open")
	wanted := n.all()
	open := n.pull("open")
	delete(wanted, "open")
	server.Do("flushall")
	n.waitFor("the shards are taken back", func() bool { return n.Stats().Rewinds == 4 })
	n.waitFor("the settings are there again", func() bool { return server.Do("hlen", "lapse:topics") == int64(3) })
	n.waitFor("everything is recorded", func() bool { return n.Stats().Ledger.Queued == 0 })
	want(t, "Close", n.Close(context.Background()), nil)
	n.open()
	n.settle(Ack, open) // its receipt was signed before the loss
	if topic, err := n.Topic("x"); err != nil || topic.Settings.Lease != time.Hour || topic.Revision != 1 {
		t.Errorf("the topic's settings have become %+v, %v", topic, err)
	}

	server.Do("flushall")
	n.wantEqual(server, 4, wanted)

	server.Kill()
	server.Start()
	n.wantEqual(server, 4, wanted)
	_, err = n.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Minute}, -1)
	want(t, "SetTopic", err, nil)
}

// One master of a cluster loses everything.
func TestEmptyMaster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	n := newNode(t, cluster.URL())
	for i := range 500 {
		n.schedule("y", fmt.Sprint("t", i))
	}
	wanted := n.all()
	victim := cluster.Master("lapse:{a/0}:tasks")
	victim.Kill()
	victim.Start()
	n.waitFor("the loss is noticed", func() bool { return n.Stats().Rewinds > 0 })
	held := func() (count int) {
		for shard := range n.terms.Shards {
			key := fmt.Sprintf("lapse:{a/%d}:pending", shard)
			count += int(cluster.Master(key).Do("scard", key).(int64)) - 1
		}
		return count
	}
	n.waitFor("Redis holds what memory does", func() bool { return held() == len(wanted) })
	want(t, "Close", n.Close(context.Background()), nil)
	n.open()
	if diff := cmp.Diff(wanted, n.all()); diff != "" {
		t.Errorf("the next process reads something else (-want +got):\n%s", diff)
	}
}

// The race of cancellation and delivery, see TestCancelRace. Afterwards Redis holds
// nothing.
func TestCancelRaceOnRedis(t *testing.T) {
	server := redistest.Start(t)
	n := newNode(t, server.URL())
	cancelRace(t, n.Scheduler, 20_000)
	if left := n.recorded(server); len(left) > 0 {
		t.Errorf("%d tasks are left in Redis: %.200v", len(left), left)
	}
}

// A record that is too short to be one is kept and counted, among the dead as well. The
// others of its page do not wait for it, nor does the start.
func TestDamagedRecordInRedis(t *testing.T) {
	server := redistest.Start(t)
	n := newNode(t, server.URL())
	n.schedule("x", "a", "b", "c", "d", "e", "f", "g", "h")
	want(t, "Close", n.Close(context.Background()), nil)
	server.Do("hset", "lapse:{a/0}:tasks", "damaged", "short")
	server.Do("sadd", "lapse:{a/0}:pending", "damaged")
	server.Do("hset", "lapse:{a/0}:dead", "damaged-dead", "short")
	server.Do("zadd", "lapse:{a/0}:deadindex", "0", "x\x000000000000000001damaged-dead", "0", "neither")
	n.open()
	if s := n.Stats(); s.UnknownRecords != 1 || s.Total.Pending != 8 {
		t.Errorf("%d records are unknown, %d tasks pending", s.UnknownRecords, s.Total.Pending)
	}
	_, err := n.Get(t.Context(), "damaged")
	want(t, "Get", err, ErrUnavailable)
	_, err = n.Schedule(t.Context(), Request{ID: "damaged-dead", Topic: "x"})
	want(t, "Schedule", err, ErrDead)
	if came, err := requeued(n.Requeue(t.Context(), "x", Requeue{})); came != 0 || err != nil {
		t.Errorf("requeued %d, %v", came, err)
	}
	if held := server.Do("hget", "lapse:{a/0}:tasks", "damaged"); held != "short" {
		t.Errorf("Redis holds %v", held)
	}
}
