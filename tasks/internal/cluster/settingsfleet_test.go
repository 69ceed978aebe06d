package cluster_test

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// settingsPatience is for how long a change of settings waits for nodes that do not answer.
const settingsPatience = 500 * time.Millisecond

// What a caller has set holds for its next call, whichever node gets that.
func TestSettingsHoldAtAllNodes(t *testing.T) {
	t.Parallel()
	g := newRedisFleet(t, redistest.Start(t).URL(), "a", "b", "c")
	g.waitFor("the nodes know each other", func(n *redisNode) bool { return len(n.Admin().Peers()) == 2 })
	ctx := t.Context()
	holds := func(what string, change func() error, holds func(TopicSettings) bool) {
		t.Helper()
		began := time.Now()
		rig.Want(t, what, change(), nil)
		if time.Since(began) >= settingsPatience {
			t.Logf("%s: a node has not answered in time, and may not know yet", what)
			g.waitFor(what, func(n *redisNode) bool { got, err := n.Topic("x"); return err == nil && holds(got.Settings) })
			return
		}
		for _, n := range g.nodes {
			if got, err := n.Topic("x"); err != nil || !holds(got.Settings) {
				t.Errorf("%s: node %s has %+v, %v", what, n.name, got.Settings, err)
			}
		}
	}
	holds("SetTopic", func() error {
		_, err := g.nodes[0].SetTopic(ctx, "x", TopicSettings{KeepFinished: time.Hour}, -1)
		return err
	}, func(set TopicSettings) bool { return set.KeepFinished == time.Hour })
	holds("PauseTopic", func() error { return g.nodes[1].Admin().PauseTopic(ctx, "x", true) },
		func(set TopicSettings) bool { return set.Paused })
	holds("ChangeTopic", func() error {
		_, err := g.nodes[2].Admin().ChangeTopic(ctx, "x", -1, func(set *TopicSettings) error { set.Retry.MaxAttempts = 7; return nil })
		return err
	}, func(set TopicSettings) bool { return set.Paused && set.Retry.MaxAttempts == 7 })
}

// A node that does not answer has a change of settings wait for a bounded time.
func TestSettingsOfASilentNode(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		f.Lose(func(from, _ string, _ []byte) bool { return from == "b" })
		began := time.Now()
		_, err := f.Nodes[0].SetTopic(t.Context(), "x", TopicSettings{KeepFinished: time.Hour}, -1)
		rig.Want(t, "SetTopic", err, nil)
		if took := time.Since(began); took != settingsPatience {
			t.Errorf("SetTopic took %v", took)
		}
		f.Lose(nil)
	})
}
