package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// oneAndFleet runs a test of a Redis that forgets for one node alone, and for a fleet of
// two that talk over the relay.
func oneAndFleet(t *testing.T, test func(t *testing.T, names ...string)) {
	t.Run("one", func(t *testing.T) { test(t, "a") })
	t.Run("fleet", func(t *testing.T) { test(t, "a", "b") })
}

// A redisFleet is all nodes of one Redis. What is asked of it goes to its nodes in turn.
type redisFleet struct {
	t     *testing.T
	nodes []*redisNode
	turn  int
}

// newRedisFleet starts nodes of these names, and waits until they know each other and all ids
// are in the directory. They are closed with the test.
func newRedisFleet(t *testing.T, url string, names ...string) *redisFleet {
	t.Helper()
	g := &redisFleet{t: t}
	for _, name := range names {
		n := &redisNode{t: t, url: url, name: name}
		if len(names) > 1 {
			// A busy machine must not make a living node look dead.
			n.failoverAfter = 5 * time.Second
		}
		n.open()
		t.Cleanup(func() { _ = n.Close(context.Background()) })
		g.nodes = append(g.nodes, n)
	}
	g.settled()
	return g
}

// settled waits until the nodes know each other, what they hold, and all ids are in the directory.
func (g *redisFleet) settled() {
	g.t.Helper()
	if len(g.nodes) == 1 {
		return
	}
	g.waitFor("the nodes know each other", func(n *redisNode) bool {
		return !rig.Cluster(n.Scheduler).NoPeers() && rig.Cluster(n.Scheduler).IsIndexed() && n.Stats().ShardsHeld == 4 && !rig.Engine(n.Scheduler).Unsure()
	})
}

// next is the node whose turn it is.
func (g *redisFleet) next() *redisNode {
	g.turn++
	return g.nodes[g.turn%len(g.nodes)]
}

// waitFor waits until something holds for each node.
func (g *redisFleet) waitFor(what string, holds func(n *redisNode) bool) {
	g.t.Helper()
	for _, n := range g.nodes {
		n.waitFor(what+" ("+n.name+")", func() bool { return holds(n) })
	}
}

func (g *redisFleet) schedule(topic string, ids ...string) {
	g.t.Helper()
	for _, id := range ids {
		g.next().schedule(topic, id)
	}
}

func (g *redisFleet) cancel(id string) {
	g.t.Helper()
	rig.Want(g.t, "Cancel "+id, g.next().Cancel(g.t.Context(), id), nil)
}

func (g *redisFleet) pull(id string) Delivery {
	g.t.Helper()
	return g.next().pull(id)
}

func (g *redisFleet) settle(verb Verb, d Delivery) {
	g.t.Helper()
	if !g.next().settles(verb, d) {
		g.waitFor("it is recorded", func(n *redisNode) bool { return rig.Engine(n.Scheduler).Committer.Stats().Queued == 0 })
	}
}

// recorded are the ids in Redis, read past the ledger.
func (g *redisFleet) recorded(server redisServer) (ids []string) {
	g.t.Helper()
	for _, n := range g.nodes {
		ids = append(ids, n.recorded(server)...)
	}
	slices.Sort(ids)
	return ids
}

// closeAll ends all processes, and begin starts the next ones.
func (g *redisFleet) closeAll() {
	g.t.Helper()
	for _, n := range g.nodes {
		rig.Want(g.t, "Close", n.Close(context.Background()), nil)
	}
}

func (g *redisFleet) begin() {
	g.t.Helper()
	for _, n := range g.nodes {
		n.open()
	}
	g.settled()
}

// wantEqual waits until every shard was made equal to memory, and compares them: what is
// in Redis, what each node says, and what the next processes read, with what was confirmed.
func (g *redisFleet) wantEqual(server redisServer, rewinds int64, wanted map[string]string) {
	g.t.Helper()
	ids := slices.Sorted(maps.Keys(wanted))
	g.waitFor("every shard was made equal to memory", func(n *redisNode) bool {
		s := n.Stats()
		return s.Rewinds == rewinds && s.Ledger.Queued == 0
	})
	g.nodes[0].waitFor("Redis holds what memory does", func() bool { return slices.Equal(g.recorded(server), ids) })
	g.settled()
	g.wantTold(wanted)
	dead := 0
	for _, n := range g.nodes {
		dead += int(n.Stats().Total.Dead)
	}
	if got := len(slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, "dead ") })); got != dead {
		g.t.Errorf("%d dead are counted, %d are dead", dead, got)
	}
	g.closeAll()
	g.begin()
	g.wantTold(wanted)
}

// wantTold wants each node to tell what was confirmed, of all tasks together and of each
// by its id.
func (g *redisFleet) wantTold(wanted map[string]string) {
	g.t.Helper()
	for _, n := range g.nodes {
		if diff := cmp.Diff(wanted, n.all()); diff != "" {
			g.t.Errorf("what %s tells (-want +got):\n%s", n.name, diff)
		}
		for id := range wanted {
			n.wantGet(strings.TrimPrefix(id, "dead "), nil)
		}
	}
}

// wantGet wants a look at a task to be answered so.
func (n *redisNode) wantGet(id string, expected error) {
	n.t.Helper()
	what := fmt.Sprintf("Get %s at %s", id, n.name)
	rig.Want(n.t, what, n.answered(what, func() error { _, err := n.Get(n.t.Context(), id); return err }), expected)
}

// wantDelivered wants just these tasks to be delivered once each, by whichever node.
func (g *redisFleet) wantDelivered(topic string, ids ...string) {
	g.t.Helper()
	delivered := map[string]bool{}
	for len(delivered) < len(ids) {
		ds, err := g.next().Reserve(g.t.Context(), topic, 10, 10*time.Second, 0)
		if err != nil || len(ds) == 0 {
			g.t.Fatalf("only %v are delivered: %v", delivered, err)
		}
		for _, d := range ds {
			if delivered[d.ID] || !slices.Contains(ids, d.ID) {
				g.t.Errorf("%s is delivered, twice: %v", d.ID, delivered[d.ID])
			}
			delivered[d.ID] = true
			g.settle(Ack, d)
		}
	}
	for _, n := range g.nodes {
		ds, err := n.Reserve(g.t.Context(), topic, 10, 0, 0)
		if err != nil || len(ds) != 0 {
			g.t.Errorf("%s delivers %v more, %v", n.name, ds, err)
		}
	}
}

// A redisServer answers commands: a server, or whatever stands for one at the moment.
type redisServer interface{ Do(args ...any) any }

var _ redisServer = (*redistest.Server)(nil)
