package cluster_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A redisNode is a scheduler on a real Redis.
type redisNode struct {
	*Scheduler
	t    testing.TB
	url  string
	name string
	// failoverAfter is that of its ledger; 0: a second.
	failoverAfter time.Duration
	// wrap gives the scheduler another ledger in front of its own; nil: none.
	wrap func(*redisledger.Ledger) recovery.Ledger
}

func newRedisNode(t testing.TB, url string) *redisNode {
	return newNamedRedisNode(t, url, "a")
}

func newNamedRedisNode(t testing.TB, url, name string) *redisNode {
	n := &redisNode{t: t, url: url, name: name}
	n.open()
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	return n
}

func (n *redisNode) open() {
	n.t.Helper()
	ledger, err := redisledger.Open(redisledger.Options{
		URL: n.url, Node: n.name, Shards: 4, FailoverAfter: cmp.Or(n.failoverAfter, time.Second), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		n.t.Fatal(err)
	}
	var front recovery.Ledger = ledger
	if n.wrap != nil {
		front = n.wrap(ledger)
	}
	if n.Scheduler, err = Open(n.t.Context(), front, Config{Log: slog.New(slog.DiscardHandler)}); err != nil {
		n.t.Fatal(err)
	}
	<-rig.Engine(n.Scheduler).Reading.Replayed
}

// waitFor polls, as a real Redis keeps its own time.
func (n *redisNode) waitFor(what string, done func() bool) {
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
func (n *redisNode) schedule(topic string, ids ...string) {
	n.t.Helper()
	for _, id := range ids {
		_, err := n.Schedule(n.t.Context(), Request{ID: id, Topic: topic, Delay: time.Hour, Payload: []byte(`"` + id + `"`)})
		rig.Want(n.t, "Schedule "+id, err, nil)
	}
}

// pull makes a task due and reserves it.
func (n *redisNode) pull(id string) Delivery {
	n.t.Helper()
	_, err := n.Fire(n.t.Context(), id)
	rig.Want(n.t, "Fire "+id, err, nil)
	ds, err := n.Reserve(n.t.Context(), "x", 1, 10*time.Second, 0)
	if err != nil || len(ds) != 1 || ds[0].ID != id {
		n.t.Fatalf("reserved %+v, %v, not %s", ds, err, id)
	}
	return ds[0]
}

func (n *redisNode) settle(verb Verb, d Delivery) {
	n.t.Helper()
	if !n.settles(verb, d) {
		n.waitFor("it is recorded", func() bool { return rig.Engine(n.Scheduler).Committer.Stats().Queued == 0 })
	}
}

// settles settles a delivery, and reports whether that is recorded: while Redis is slow it is
// answered before.
func (n *redisNode) settles(verb Verb, d Delivery) (recorded bool) {
	n.t.Helper()
	hour := time.Hour
	answers, err := n.Settle(n.t.Context(), Verdict{Verb: verb, Delay: &hour}, []string{d.Receipt()})
	if err != nil || answers[0].Err != nil {
		n.t.Fatalf("settling %s: %+v, %v", d.ID, answers, err)
	}
	return answers[0].Recorded
}

// answered repeats a call that changes nothing until it is answered, and returns its error. A node
// whose heartbeats had to wait, for Redis or for a processor, does not answer before the next one.
func (n *redisNode) answered(what string, call func() error) (err error) {
	n.t.Helper()
	n.waitFor(what+" is answered", func() bool {
		err = call()
		return !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrReplaying)
	})
	return err
}

// all is what the scheduler says of its tasks, pending and dead.
func (n *redisNode) all() map[string]string {
	n.t.Helper()
	held := map[string]string{}
	var page Page
	rig.Want(n.t, "List", n.answered("List", func() (err error) {
		page, err = n.List(n.t.Context(), Query{Limit: 1000})
		return err
	}), nil)
	for _, t := range page.Tasks {
		held[t.ID] = fmt.Sprintf("%v %s attempt %d revision %d next %d %s", t.State, t.Topic, t.Attempt, t.Revision, t.Next.UnixMilli(), t.Payload)
	}
	var dead Page
	rig.Want(n.t, "DeadTasks", n.answered("DeadTasks", func() (err error) {
		dead, err = n.Admin().DeadTasks(n.t.Context(), "x", 1000, "")
		return err
	}), nil)
	for _, t := range dead.Tasks {
		held["dead "+t.ID] = string(t.Payload)
	}
	return held
}

// recorded are the ids in Redis, read past the ledger.
func (n *redisNode) recorded(server redisServer) (ids []string) {
	n.t.Helper()
	for shard := range 4 {
		for _, kind := range []string{"tasks", "dead"} {
			for _, id := range server.Do("hkeys", fmt.Sprintf("lapse:{%s/%d}:%s", n.name, shard, kind)).([]any) {
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

// The race of cancellation and delivery, see TestCancelRace. Afterwards Redis holds
// nothing.
func TestCancelRaceOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	n := newRedisNode(t, server.URL())
	rig.CancelRace(t, n.Scheduler, 20_000)
	if left := n.recorded(server); len(left) > 0 {
		t.Errorf("%d tasks are left in Redis: %.200v", len(left), left)
	}
}

// A record that is too short to be one is kept and counted, among the dead as well. The
// others of its page do not wait for it, nor does the start.
func TestDamagedRecordInRedis(t *testing.T) {
	server := redistest.Start(t)
	n := newRedisNode(t, server.URL())
	n.schedule("x", "a", "b", "c", "d", "e", "f", "g", "h")
	rig.Want(t, "Close", n.Close(context.Background()), nil)
	server.Do("hset", "lapse:{a/0}:tasks", "damaged", "short")
	server.Do("sadd", "lapse:{a/0}:pending", "damaged")
	server.Do("hset", "lapse:{a/0}:dead", "damaged-dead", "short")
	server.Do("zadd", "lapse:{a/0}:deadindex", "0", "x\x000000000000000001damaged-dead", "0", "neither")
	n.open()
	if s := n.Stats(); s.UnknownRecords != 1 || s.Total.Pending != 8 {
		t.Errorf("%d records are unknown, %d tasks pending", s.UnknownRecords, s.Total.Pending)
	}
	_, err := n.Get(t.Context(), "damaged")
	rig.Want(t, "Get", err, ErrUnavailable)
	_, err = n.Schedule(t.Context(), Request{ID: "damaged-dead", Topic: "x"})
	rig.Want(t, "Schedule", err, ErrDead)
	if came, err := rig.Requeued(n.Admin().Requeue(t.Context(), "x", Requeue{})); came != 0 || err != nil {
		t.Errorf("requeued %d, %v", came, err)
	}
	if held := server.Do("hget", "lapse:{a/0}:tasks", "damaged"); held != "short" {
		t.Errorf("Redis holds %v", held)
	}
}

// A change of some settings of a topic goes by what another node has just stored, also where what
// this node knows does not allow the change, or is older than the revision that the caller has.
func TestChangeOfTopicRightAfterAnotherNode(t *testing.T) {
	t.Parallel()
	g := newRedisFleet(t, redistest.Start(t).URL(), "a", "b")
	a, b := g.nodes[0], g.nodes[1]
	for i := range 10 {
		topic := fmt.Sprint("x", i)
		_, err := a.SetTopic(t.Context(), topic, TopicSettings{Lease: time.Minute}, -1)
		rig.Want(t, "SetTopic", err, nil)
		_, err = b.Admin().ChangeTopic(t.Context(), topic, -1, func(s *TopicSettings) error {
			if s.Lease != time.Minute {
				return fmt.Errorf("the change is based on a lease of %v", s.Lease)
			}
			s.Weight = 2
			return nil
		})
		rig.Want(t, "ChangeTopic", err, nil)

		made, err := a.SetTopic(t.Context(), topic+".y", TopicSettings{Lease: time.Minute}, -1)
		rig.Want(t, "SetTopic", err, nil)
		made, err = b.Admin().ChangeTopic(t.Context(), topic+".y", made.Revision, func(s *TopicSettings) error {
			s.Weight = 2
			return nil
		})
		rig.Want(t, "ChangeTopic of a revision", err, nil)
		if made.Settings.Weight != 2 || made.Settings.Lease != time.Minute {
			t.Fatalf("settings %+v", made.Settings)
		}
		made, err = a.SetTopic(t.Context(), topic+".z", TopicSettings{Weight: 2}, -1)
		rig.Want(t, "SetTopic", err, nil)
		_, err = b.SetTopic(t.Context(), topic+".z", TopicSettings{Weight: 3}, made.Revision)
		rig.Want(t, "SetTopic of a revision", err, nil)
		_, err = a.SetTopic(t.Context(), topic+".z", TopicSettings{Weight: 4}, made.Revision)
		rig.Want(t, "SetTopic of an old revision", err, ErrRevision)
	}
}
