package tasks_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// Two nodes have a task with the same id, as the directory had lost an entry: the one that is
// registered stays, the other is buried with a reason, every node tells the same of the id,
// and it is logged once.
func TestConflictOfTwoNodes(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		a.must(Request{ID: "x", Topic: "t", Delay: time.Hour, Payload: []byte(`"a"`)})
		f.file("x", f.entryOf("x"), recovery.DirectoryEntry{})
		b.must(Request{ID: "x", Topic: "t", Delay: time.Hour, Payload: []byte(`"b"`)})
		pass(2 * time.Minute)
		for _, m := range f.nodes {
			if got := m.get("x"); got.Node != "b" || string(got.Payload) != `"b"` {
				t.Errorf("at %s it is %+v", m.name, got)
			}
		}
		dead, err := f.nodes[2].DeadTasks(t.Context(), "t", 10, "")
		if err != nil || len(dead.Tasks) != 1 || string(dead.Tasks[0].Payload) != `"a"` || !strings.Contains(dead.Tasks[0].LastError, "another node") {
			t.Errorf("dead: %+v, %v", dead, err)
		}
		if n := f.log.count("duplicate task id"); n != 1 {
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
	fleetBubble(t, 2, func(t *testing.T, f *fleet) {
		f.file("gone", recovery.DirectoryEntry{}, recovery.DirectoryEntry{ShardID: recovery.NewShardID(77, 3), Nonce: 1})
		f.nodes[0].must(Request{ID: "x", Topic: "t", Delay: time.Hour})
		pass(3 * cluster.WalkEvery)
		if got := f.entryOf("gone"); got.ShardID != 0 {
			t.Errorf("still registered: %v", got)
		}
		if got := f.entryOf("x"); got.ShardID == 0 {
			t.Error("what is in use was taken out")
		}
	})
}
