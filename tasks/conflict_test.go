package tasks

import (
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// Two nodes have a task with the same id, as the directory had lost an entry: the one that is
// registered stays, the other is buried with a reason, every node tells the same of the id,
// and it is logged once.
func TestConflictOfTwoNodes(t *testing.T) {
	crewed(t, 3, func(t *testing.T, c *crew) {
		a, b := c.nodes[0], c.nodes[1]
		a.must(Request{ID: "x", Topic: "t", Delay: time.Hour, Payload: []byte(`"a"`)})
		c.file("x", c.filed("x"), recovery.DirectoryEntry{})
		b.must(Request{ID: "x", Topic: "t", Delay: time.Hour, Payload: []byte(`"b"`)})
		pass(2 * time.Minute)
		for _, m := range c.nodes {
			if got := m.get("x"); got.Node != "b" || string(got.Payload) != `"b"` {
				t.Errorf("at %s it is %+v", m.name, got)
			}
		}
		dead, err := c.nodes[2].DeadTasks(t.Context(), "t", 10, "")
		if err != nil || len(dead.Tasks) != 1 || string(dead.Tasks[0].Payload) != `"a"` || !strings.Contains(dead.Tasks[0].LastError, "another node") {
			t.Errorf("dead: %+v, %v", dead, err)
		}
		if n := c.log.count("two nodes have a task"); n != 1 {
			t.Errorf("it is logged %d times", n)
		}
		want(t, "Cancel", a.Cancel(t.Context(), "x"), nil)
		_, err = a.Get(t.Context(), "x")
		want(t, "Get of what was cancelled", err, ErrNotFound)
		_, err = b.Get(t.Context(), "x")
		want(t, "Get of what was cancelled", err, ErrNotFound)
	})
}

// What is registered under a shard of a node that is gone for good is taken out.
func TestEntriesOfNodesThatAreGone(t *testing.T) {
	crewed(t, 2, func(t *testing.T, c *crew) {
		c.file("gone", recovery.DirectoryEntry{}, recovery.DirectoryEntry{ShardID: recovery.NewShardID(77, 3), Nonce: 1})
		c.nodes[0].must(Request{ID: "x", Topic: "t", Delay: time.Hour})
		pass(3 * cluster.WalkEvery)
		if got := c.filed("gone"); got.ShardID != 0 {
			t.Errorf("still registered: %v", got)
		}
		if got := c.filed("x"); got.ShardID == 0 {
			t.Error("what is in use was taken out")
		}
	})
}
