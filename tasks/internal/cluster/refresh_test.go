package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/task"
)

// What one node sets holds on the other one too, and stays what it is when Redis loses
// it. So does a deletion.
func TestSettingsReachOtherNodes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := newRedisFleet(t, server.URL(), "a", "b").nodes
	a, b := nodes[0], nodes[1]
	waitFor := func(what string, n *redisNode, lease time.Duration, revision int64) {
		t.Helper()
		n.waitFor(what, func() bool {
			x, err := n.Topic("x")
			if errors.Is(err, ErrNoTopic) {
				return revision == 0
			}
			return err == nil && x.Settings.Lease == lease && x.Revision == revision
		})
	}
	for i := range 20 {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		lease := time.Duration(i+1) * time.Minute
		set, err := from.SetTopic(t.Context(), "x", TopicSettings{Lease: lease}, -1)
		rig.Want(t, "SetTopic", err, nil)
		waitFor(fmt.Sprintf("node %s has heard of change %d", to.name, i), to, lease, set.Revision)
	}
	// Based on what it has not heard of, a change is refused or repeated, never lost.
	set, err := a.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Hour}, -1)
	rig.Want(t, "SetTopic", err, nil)
	_, err = b.SetTopic(t.Context(), "x", TopicSettings{Lease: 2 * time.Hour}, set.Revision-1)
	rig.Want(t, "SetTopic with an old revision", err, ErrRevision)
	rig.Want(t, "PauseTopic", b.Admin().PauseTopic(t.Context(), "x", true), nil)
	waitFor("the pause is known", a, time.Hour, set.Revision+1)

	rig.Want(t, "DeleteTopic", a.Admin().DeleteTopic(t.Context(), "x", -1), nil)
	b.waitFor("the deletion is known", func() bool {
		_, err := b.Topic("x")
		return errors.Is(err, ErrNoTopic)
	})
	_, err = b.SetTopic(t.Context(), "x", TopicSettings{Lease: time.Minute}, 0)
	rig.Want(t, "SetTopic after a deletion", err, nil)
	a.waitFor("it is there again", func() bool {
		x, err := a.Topic("x")
		return err == nil && x.Settings.Lease == time.Minute
	})

	// A Redis that has lost the settings has not deleted them.
	client := server.Client()
	rig.Want(t, "FLUSHALL", client.FlushAll(t.Context()).Err(), nil)
	a.waitFor("they are restored", func() bool {
		_, err := a.Schedule(t.Context(), Request{Topic: "x", Delay: time.Hour})
		kept, _ := client.HGet(t.Context(), "lapse:topics", task.SettingPrefix+"x").Result()
		return err == nil && kept != ""
	})
	for _, n := range []*redisNode{a, b} {
		n.waitFor("it has kept them", func() bool {
			x, err := n.Topic("x")
			return err == nil && x.Settings.Lease == time.Minute && x.Revision > 0
		})
	}
}

// A node reads what another one has changed, not all topics; and all if it does not know any
// more what has changed: then a topic that is not there was deleted.
func TestOneChangeOfSettings(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	a, b := newNamedRedisNode(t, server.URL(), "a"), newNamedRedisNode(t, server.URL(), "b")
	for i := range 50 {
		_, err := a.SetTopic(t.Context(), fmt.Sprint("t", i), TopicSettings{Lease: time.Minute}, -1)
		rig.Want(t, "SetTopic", err, nil)
	}
	waitFor := func(what, topic string, lease time.Duration) {
		t.Helper()
		b.waitFor(what, func() bool {
			x, err := b.Topic(topic)
			if lease == 0 {
				return errors.Is(err, ErrNoTopic) || err == nil && x.Revision == 0
			}
			return err == nil && x.Settings.Lease == lease
		})
	}
	waitFor("it knows the last topic", "t49", time.Minute)
	scans := func() int {
		text := client.Info(t.Context(), "commandstats").Val()
		m := regexp.MustCompile(`cmdstat_hscan:calls=(\d+)`).FindStringSubmatch(text)
		all, _ := strconv.Atoi(m[1])
		return all
	}
	before := scans()
	for i := range 5 {
		_, err := a.SetTopic(t.Context(), "t7", TopicSettings{Lease: time.Duration(i+2) * time.Minute}, -1)
		rig.Want(t, "SetTopic", err, nil)
		waitFor("it knows the change", "t7", time.Duration(i+2)*time.Minute)
	}
	rig.Want(t, "DeleteTopic", a.Admin().DeleteTopic(t.Context(), "t8", -1), nil)
	waitFor("it knows the deletion", "t8", 0)
	if n := scans() - before; n > 0 {
		t.Errorf("6 changes of one topic led to %d reads of all topics", n)
	}

	// In one step for node b: many changes, of which nothing is left.
	_, err := client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		p.HDel(t.Context(), "lapse:topics", task.SettingPrefix+"t9")
		p.HSet(t.Context(), "lapse:topics", task.SettingPrefix+"t10", `9:{"Lease":3600000000000}`, "!v", 90_000, "!n", "0000000000090000 0badcafe")
		p.ZRemRangeByRank(t.Context(), "lapse:changes:{lapse:topics}", 0, -1)
		p.ZAdd(t.Context(), "lapse:changes:{lapse:topics}", redis.Z{Member: "0000000000090000 0badcafe " + task.SettingPrefix + "t10"})
		return nil
	})
	rig.Want(t, "many changes", err, nil)
	waitFor("it knows the deletion of long ago", "t9", 0)
	waitFor("it knows the last change", "t10", time.Hour)
}

// A node that does not have the way of delivery that another one has chosen says so.
func TestSettingsOfAnotherNodesWay(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := newNamedRedisNode(t, server.URL(), "a"), newNamedRedisNode(t, server.URL(), "b")
	rig.Engine(a.Scheduler).Config.ByKind = task.Ways{"postal": &rig.Postal{}}
	_, err := a.SetTopic(context.Background(), "x", TopicSettings{Kind: "postal", Delivery: json.RawMessage(`{"to":"rome"}`)}, -1)
	rig.Want(t, "SetTopic", err, nil)
	b.waitFor("it says that it cannot deliver so", func() bool {
		x, err := b.Topic("x")
		return err == nil && x.Undeliverable != "" && x.Settings.Kind == "postal"
	})
}
