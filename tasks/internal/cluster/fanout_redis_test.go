package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// What is about many tasks is about those of all nodes of a real Redis, also when one of
// them has gone and its tasks are another one's.
func TestAllNodesOfRedis(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	var nodes []*redisNode
	for _, name := range []string{"a", "b", "c"} {
		nodes = append(nodes, newNamedRedisNode(t, url, name))
	}
	a := nodes[0]
	a.waitFor("all nodes are known", func() bool {
		return !slices.ContainsFunc(nodes, func(n *redisNode) bool { return rig.Cluster(n.Scheduler).NoPeers() })
	})
	var ids []string
	schedule := func(topic string) {
		t.Helper()
		ids = nil
		for i, n := range nodes {
			for range 40 {
				task, err := n.Schedule(t.Context(), Request{Topic: topic, Group: "g", Delay: time.Duration(i+1) * time.Hour})
				rig.Want(t, "Schedule", err, nil)
				ids = append(ids, task.ID)
			}
		}
		slices.Sort(ids)
	}
	listed := func(q Query) (all []string, err error) {
		for {
			page, err := a.List(t.Context(), q)
			if err != nil {
				return nil, err
			}
			all = append(all, rig.IDsOf(page.Tasks)...)
			if q.Cursor = page.Cursor; q.Cursor == "" {
				slices.Sort(all)
				return all, nil
			}
		}
	}
	schedule("x")
	got, err := listed(Query{Group: "g", Limit: 7})
	if err != nil || !slices.Equal(got, ids) {
		t.Errorf("List = %d tasks, %v; want %d", len(got), err, len(ids))
	}
	rig.Want(t, "DeleteTopic", a.Admin().DeleteTopic(t.Context(), "x", -1), ErrInUse)
	cancelled, err := nodes[1].CancelGroup(t.Context(), "g")
	if err != nil || cancelled.Cancelled != len(ids) {
		t.Errorf("CancelGroup = %+v, %v", cancelled, err)
	}

	schedule("y")
	killed, err := nodes[2].Admin().KillTopic(t.Context(), "y", -1)
	if err != nil || killed.Killed != len(ids) {
		t.Errorf("KillTopic = %+v, %v", killed, err)
	}
	dead, err := a.Admin().DeadTasks(t.Context(), "y", 1000, "")
	if err != nil || !slices.Equal(sorted(rig.IDsOf(dead.Tasks)), ids) {
		t.Errorf("DeadTasks = %d, %v", len(dead.Tasks), err)
	}
	requeued, err := a.Admin().Requeue(t.Context(), "y", Requeue{IDs: append([]string{"nobody"}, ids...), Delay: time.Hour})
	if err != nil || requeued.Requeued != len(ids) || !slices.Equal(requeued.Unknown, []string{"nobody"}) {
		t.Errorf("Requeue = %+v, %v", requeued, err)
	}

	rig.Want(t, "Close", nodes[2].Close(t.Context()), nil)
	for began := time.Now(); ; {
		if got, err = listed(Query{Topic: "y"}); err == nil {
			break
		}
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrReplaying) || time.Since(began) > 20*time.Second {
			t.Fatal("List:", err)
		}
	}
	if !slices.Equal(got, ids) {
		t.Errorf("List after an adoption = %d tasks; want %d", len(got), len(ids))
	}
	purged, err := nodes[1].Admin().Purge(t.Context(), "y")
	if err != nil || purged.Cancelled != len(ids) {
		t.Errorf("Purge = %+v, %v", purged, err)
	}
}

// A call about the tasks of all nodes reads no owners of shards from Redis, as every shard is
// covered by the answer of its holder: what it costs does not grow with the shards.
func TestCallsToAllNodesReadNoOwners(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var nodes []*Scheduler
	for _, name := range []string{"a", "b", "c"} {
		ledger, err := redisledger.Open(redisledger.Options{
			URL: server.URL(), Node: name, Shards: 4, FailoverAfter: time.Hour, Log: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), ledger, Config{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		<-rig.Engine(s).Reading.Replayed
		nodes = append(nodes, s)
	}
	a := nodes[0]
	if shardIDs, err := rig.Engine(a).Fleet.ShardIDs(t.Context()); err != nil || len(shardIDs) != 12 || rig.Cluster(a).NoPeers() {
		t.Fatalf("Homes = %v, %v", shardIDs, err)
	}
	for _, s := range nodes {
		for range 10 {
			_, err := s.Schedule(t.Context(), Request{Topic: "x", Group: "g", Delay: time.Hour})
			rig.Want(t, "Schedule", err, nil)
		}
	}
	counted := regexp.MustCompile(`cmdstat_hmget:calls=(\d+)`)
	reads := func() int {
		n, err := strconv.Atoi(counted.FindStringSubmatch(server.Do("info", "commandstats").(string))[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	least := math.MaxInt // nodes read on their own as well, but not the owner of each shard
	for range 10 {
		before := reads()
		page, err := a.List(t.Context(), Query{})
		if err != nil || len(page.Tasks) != 30 {
			t.Fatalf("List = %d tasks, %v", len(page.Tasks), err)
		}
		// A batch of cancellations would read tokens itself.
		cancelled, err := a.CancelGroup(t.Context(), "none")
		if err != nil || cancelled.Cancelled != 0 {
			t.Fatalf("CancelGroup = %+v, %v", cancelled, err)
		}
		least = min(least, reads()-before)
	}
	if least >= 12 {
		t.Errorf("%d reads, as if the owners of the 12 shards were read", least)
	}
}
