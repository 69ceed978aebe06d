package cluster_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Two nodes have a task with the same id, as the directory had lost an entry: the one that is
// registered stays, the other is buried with a reason, every node tells the same of the id,
// and it is logged once.
func TestConflictOfTwoNodes(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		a.Must(Request{ID: "x", Topic: "t", Delay: time.Hour, Payload: []byte(`"a"`)})
		file(f, "x", entryOf(f, "x"), recovery.DirectoryEntry{})
		b.Must(Request{ID: "x", Topic: "t", Delay: time.Hour, Payload: []byte(`"b"`)})
		rig.Pass(2 * time.Minute)
		for _, m := range f.Nodes {
			if got := m.MustGet("x"); got.Node != "b" || string(got.Payload) != `"b"` {
				t.Errorf("at %s it is %+v", m.Name, got)
			}
		}
		dead, err := f.Nodes[2].Admin().DeadTasks(t.Context(), "t", 10, "")
		if err != nil || len(dead.Tasks) != 1 || string(dead.Tasks[0].Payload) != `"a"` || !strings.Contains(dead.Tasks[0].LastError, "another node") {
			t.Errorf("dead: %+v, %v", dead, err)
		}
		if n := f.Log.Count("duplicate task id"); n != 1 {
			t.Errorf("it is logged %d times", n)
		}
		rig.Want(t, "Cancel", a.Cancel(t.Context(), "x"), nil)
		_, err = a.Get(t.Context(), "x")
		rig.Want(t, "Get of what was cancelled", err, ErrNotFound)
		_, err = b.Get(t.Context(), "x")
		rig.Want(t, "Get of what was cancelled", err, ErrNotFound)
	})
}

// What is registered under a shard of a node that is gone for good is taken out.
func TestEntriesOfNodesThatAreGone(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		file(f, "gone", recovery.DirectoryEntry{}, recovery.DirectoryEntry{ShardID: recovery.NewShardID(77, 3), Nonce: 1})
		f.Nodes[0].Must(Request{ID: "x", Topic: "t", Delay: time.Hour})
		rig.Pass(3 * cluster.WalkEvery)
		if got := entryOf(f, "gone"); got.ShardID != 0 {
			t.Errorf("still registered: %v", got)
		}
		if got := entryOf(f, "x"); got.ShardID == 0 {
			t.Error("what is in use was taken out")
		}
	})
}
