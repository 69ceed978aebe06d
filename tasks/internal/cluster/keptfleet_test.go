package cluster_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Tests of TopicSettings.KeepFinished with several nodes, and with real ledgers.

// wantKeptAt fails the test unless a node answers for finished tasks of topic x that are kept,
// whatever node has them.
func wantKeptAt(t *testing.T, s *Scheduler, outcomes map[string]Outcome) {
	t.Helper()
	ctx := t.Context()
	for id, outcome := range outcomes {
		same := Request{ID: id, Topic: "x", Delay: time.Hour, Payload: []byte(id)}
		got, err := s.Get(ctx, id)
		if err != nil || got.State != Finished || got.Outcome != outcome || got.Finished.IsZero() || string(got.Payload) != id {
			t.Fatalf("Get of %s = %+v, %v", id, got, err)
		}
		got, err = s.Schedule(ctx, same)
		if err != nil || !got.Repeated || got.State != Finished || got.Outcome != outcome {
			t.Fatalf("Schedule of %s = %+v, %v", id, got, err)
		}
		other := same
		other.Payload = nil
		_, err = s.Schedule(ctx, other)
		rig.Want(t, "Schedule of another task", err, ErrExists)
		results, err := s.ScheduleBatch(ctx, []Request{same})
		if err != nil || results[0].Err != nil || !results[0].Repeated || !results[0].Finished {
			t.Fatalf("ScheduleBatch of %s = %+v, %v", id, results, err)
		}
		results, err = s.ScheduleBatch(ctx, []Request{other})
		rig.Want(t, "ScheduleBatch", err, nil)
		rig.Want(t, "ScheduleBatch of another task", results[0].Err, ErrExists)
		_, err = s.Reschedule(ctx, id, Move{Delay: new(time.Duration)})
		rig.Want(t, "Reschedule", err, ErrNotFound)
		kind := ErrNotFound
		if outcome == OutcomeCancelled {
			kind = nil
		}
		rig.Want(t, "Cancel", s.Cancel(ctx, id), kind)
	}
	page, err := s.List(ctx, Query{Topic: "x", State: Finished})
	if err != nil || len(page.Tasks) != len(outcomes) {
		t.Fatalf("%d are listed, %v; want %d", len(page.Tasks), err, len(outcomes))
	}
	page, err = s.Admin().DeadTasks(ctx, "x", 0, "")
	if err != nil || len(page.Tasks) != 0 {
		t.Fatalf("%d are dead, %v", len(page.Tasks), err)
	}
}

// Every node answers for the finished tasks of all: also long after, once their shard has another
// owner, and when its node has died.
func TestKeptTasksInAFleet(t *testing.T) {
	t.Parallel()
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		cfg := Config{Topics: map[string]TopicSettings{"x": {KeepFinished: time.Hour}}}
		a, b := f.Join("a", 1, cfg), f.Join("b", 1, cfg)
		rig.Pass(3 * time.Second)
		outcomes := make(map[string]Outcome)
		nodes := []*rig.Node{a, b}
		for i := range 12 {
			id, by := fmt.Sprint("order-", i), nodes[i%2]
			if i%4 == 0 { // an id that names its shard
				id = by.IDAt(0)
			}
			by.Must(Request{ID: id, Topic: "x", Delay: time.Hour, Payload: []byte(id)})
			settler := nodes[i/2%2]
			if i%3 == 0 {
				rig.Want(t, "Cancel", settler.Cancel(t.Context(), id), nil)
				outcomes[id] = OutcomeCancelled
				continue
			}
			_, err := settler.Fire(t.Context(), id)
			rig.Want(t, "Fire", err, nil)
			rig.Pass(10 * time.Millisecond)
			ds := <-settler.StartReserve(t.Context(), "x", 1, time.Second, time.Minute)
			settler.Want(ds, id)
			settler.SettleOne(Ack, ds[0])
			outcomes[id] = OutcomeDelivered
		}
		check := func(what string, nodes ...*rig.Node) {
			t.Helper()
			t.Log(what)
			for _, n := range nodes {
				wantKeptAt(t, n.Scheduler, outcomes)
				n.Check()
			}
		}
		check("at once", a, b)
		rig.Pass(5 * time.Minute) // of the reconciler
		check("later", a, b)
		b.Keeps.Store(true)
		rig.Want(t, "hand-over", a.HandTo(b), nil)
		rig.Pass(10 * time.Second)
		check("with another owner", a, b)
		b.Keeps.Store(false)
		rig.Pass(10 * time.Second)
		check("with its own node again", a, b)
		a.Crash()
		b.Adopt(a)
		check("adopted", b)
		a.Restart()
		rig.Pass(10 * time.Second)
		check("after a restart", a, b)
		put := Request{ID: "order-1", Topic: "x", Delay: time.Hour, Payload: []byte("order-1")}
		task, err := a.Replace(t.Context(), put)
		if err != nil || task.Repeated || task.State != Pending {
			t.Errorf("Replace = %+v, %v", task, err)
		}
		if got := b.MustGet("order-1"); got.State != Pending {
			t.Errorf("%+v", got)
		}
		rig.Want(t, "Cancel", b.Cancel(t.Context(), "order-1"), nil)
		outcomes["order-1"] = OutcomeCancelled
		other := Request{ID: "order-2", Topic: "y", Delay: time.Minute} // which keeps nothing
		_, err = b.Replace(t.Context(), other)
		rig.Want(t, "Replace", err, nil)
		rig.Want(t, "Cancel", a.Cancel(t.Context(), "order-2"), nil)
		delete(outcomes, "order-2")
		check("after a new task", a, b)
		rig.Pass(65 * time.Minute)
		for id := range outcomes {
			for _, n := range nodes {
				_, err := n.Get(t.Context(), id)
				rig.Want(t, "Get", err, ErrNotFound)
			}
			if task := b.Must(Request{ID: id, Topic: "x", Delay: time.Hour}); task.Repeated {
				t.Errorf("%+v", task)
			}
		}
		a.Check()
		b.Check()
	})
}

// Finished tasks that Redis has lost, and of which memory has no records: the ids are free again.
func TestLostKeptTask(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.keepFinished("x")
		for id, act := range map[string]func(id string) error{
			"created": func(id string) error {
				_, err := g.next().Schedule(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour})
				return err
			},
			"got": func(id string) error {
				if _, err := g.next().Get(t.Context(), id); !errors.Is(err, ErrNotFound) {
					return err
				}
				_, err := g.next().Schedule(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour})
				return err
			},
			"replaced": func(id string) error {
				_, err := g.next().Replace(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour})
				return err
			},
			"superseded": func(id string) error {
				_, err := g.next().Replace(t.Context(), Request{ID: id, Topic: "x", Delay: time.Hour, Supersede: true})
				return err
			},
			"replaced-in-a-batch": func(id string) error {
				results, err := g.next().ReplaceBatch(t.Context(), []Request{{ID: id, Topic: "x", Delay: time.Hour}})
				rig.Want(t, "ReplaceBatch", err, nil)
				return results[0].Err
			},
			"batched": func(id string) error {
				results, err := g.next().ScheduleBatch(t.Context(), []Request{{ID: id, Topic: "x", Delay: time.Hour}})
				rig.Want(t, "ScheduleBatch", err, nil)
				return results[0].Err
			},
		} {
			for _, index := range []bool{true, false} {
				name := fmt.Sprint(id, "-", index)
				g.schedule("x", name)
				g.settle(Ack, g.pull(name))
				g.forgetRecords()
				g.loseDead(server, index, name)
				g.nodes[0].waitFor("its shard is compared with the ledger", func() bool {
					err := act(name)
					if errors.Is(err, ErrUnavailable) {
						return false
					}
					rig.Want(t, name, err, nil)
					return true
				})
				for _, n := range g.nodes {
					task, err := n.Get(t.Context(), name)
					if err != nil || task.State != Pending {
						t.Fatalf("Get of %s = %+v, %v", name, task, err)
					}
				}
			}
		}
	})
}

// Redis has an older, pending record of a finished task: its end is recorded again.
func TestLostEndOfAKeptTask(t *testing.T) {
	t.Parallel()
	oneAndFleet(t, func(t *testing.T, names ...string) {
		server := redistest.Start(t)
		g := newRedisFleet(t, server.URL(), names...)
		g.keepFinished("x")
		for _, id := range []string{"delivered", "cancelled"} {
			g.schedule("x", id)
			key := g.keyOf(server, id)
			record := server.Do("hget", key+"tasks", id)
			outcome := OutcomeDelivered
			if id == "cancelled" {
				outcome = OutcomeCancelled
				rig.Want(t, "Cancel", g.next().Cancel(t.Context(), id), nil)
			} else {
				g.settle(Ack, g.pull(id))
			}
			g.loseDead(server, true, id)
			server.Do("hset", key+"tasks", id, record)
			server.Do("sadd", key+"pending", id)
			_, err := g.next().Get(t.Context(), id)
			rig.Want(t, "Get", err, nil)
			g.waitFor("it is finished again", func(n *redisNode) bool {
				task, err := n.Get(t.Context(), id)
				return err == nil && task.State == Finished && task.Outcome == outcome
			})
			if server.Do("hexists", key+"tasks", id) != int64(0) {
				t.Error("its pending record is still there")
			}
		}
		g.nodes[0].waitFor("both are counted, and none is dead", func() bool {
			kept := 0
			for _, n := range g.nodes {
				kept += int(n.Stats().Total.Finished)
			}
			return kept == 2 && g.dead() == 0 && g.indexed(server) == 2
		})
	})
}

// keepFinished has all nodes keep the finished tasks of a topic for an hour.
func (g *redisFleet) keepFinished(topic string) {
	g.t.Helper()
	_, err := g.next().SetTopic(g.t.Context(), topic, TopicSettings{KeepFinished: time.Hour}, -1)
	rig.Want(g.t, "SetTopic", err, nil)
	g.waitFor("the setting is known", func(n *redisNode) bool { // a busy one has not answered
		got, err := n.Topic(topic)
		return err == nil && got.Settings.KeepFinished == time.Hour
	})
}

// What is kept is there after restarts of nodes with each ledger, and is deleted when its time has
// passed while no node ran.
func TestKeptAcrossRestarts(t *testing.T) {
	t.Parallel()
	t.Run("disk", func(t *testing.T) {
		dir := t.TempDir()
		keptAcrossRestarts(t, func() (recovery.Ledger, error) { return diskledger.Open(dir, diskledger.Options{}) })
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		keptAcrossRestarts(t, func() (recovery.Ledger, error) {
			return redisledger.Open(redisledger.Options{
				URL: server.URL(), Node: "a", Shards: 4, FailoverAfter: time.Second, Log: slog.New(slog.DiscardHandler),
			})
		})
		for shard := range 4 {
			if left := server.Do("hlen", fmt.Sprintf("lapse:{a/%d}:dead", shard)); left != int64(0) {
				t.Errorf("Redis still has %v", left)
			}
		}
	})
}

func keptAcrossRestarts(t *testing.T, ledger func() (recovery.Ledger, error)) {
	var ahead time.Duration
	open := func() *Scheduler {
		ledger, err := ledger()
		rig.Want(t, "opening the ledger", err, nil)
		s, err := Open(t.Context(), ledger, Config{
			SweepEvery: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
			Clock: func() time.Time { return time.Now().Add(ahead) },
		})
		rig.Want(t, "Open", err, nil)
		<-rig.Engine(s).Reading.Replayed
		return s
	}
	s := open()
	_, err := s.SetTopic(t.Context(), "x", TopicSettings{KeepFinished: time.Hour}, -1)
	rig.Want(t, "SetTopic", err, nil)
	outcomes := make(map[string]Outcome)
	for i := range 700 { // more than one piece of the sweep
		id := fmt.Sprint("t", i)
		outcomes[id] = OutcomeCancelled
	}
	var requests []Request
	for id := range outcomes {
		requests = append(requests, Request{ID: id, Topic: "x", Delay: time.Hour, Payload: []byte(id)})
	}
	_, err = s.ScheduleBatch(t.Context(), requests)
	rig.Want(t, "ScheduleBatch", err, nil)
	_, err = s.Admin().Purge(t.Context(), "x")
	rig.Want(t, "Purge", err, nil)
	check := func() {
		t.Helper()
		some := make(map[string]Outcome)
		for id, outcome := range outcomes {
			if some[id] = outcome; len(some) == 5 {
				break
			}
		}
		for id, outcome := range some {
			got, err := s.Get(t.Context(), id)
			if err != nil || got.State != Finished || got.Outcome != outcome {
				t.Fatalf("Get of %s = %+v, %v", id, got, err)
			}
		}
		if n := s.Stats().Total; n.Finished != int64(len(outcomes)) || n.Dead != 0 {
			t.Fatalf("%+v", n)
		}
	}
	check()
	rig.Want(t, "Close", s.Close(t.Context()), nil)
	s = open()
	check()
	rig.Want(t, "Close", s.Close(t.Context()), nil)
	ahead = 2 * time.Hour
	s = open()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.Stats().Total.Finished > 0 {
		<-tick.C
	}
	_, err = s.Get(t.Context(), "t0")
	rig.Want(t, "Get", err, ErrNotFound)
	rig.Want(t, "Close", s.Close(t.Context()), nil)
}
