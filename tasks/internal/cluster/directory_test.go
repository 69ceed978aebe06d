package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// entryOf is where an id is registered.
func entryOf(f *rig.Fleet, id string) recovery.DirectoryEntry {
	f.T.Helper()
	dirEntries, err := f.Nodes[len(f.Nodes)-1].Member.Lookup(f.T.Context(), []string{id})
	if err != nil {
		f.T.Fatal("Look:", err)
	}
	return dirEntries[0]
}

// file changes a directory entry behind the nodes' backs.
func file(f *rig.Fleet, id string, from, to recovery.DirectoryEntry) {
	f.T.Helper()
	now, err := f.Nodes[len(f.Nodes)-1].Member.Update(f.T.Context(), []recovery.DirectoryUpdate{{ID: id, Old: from, New: to}})
	if err != nil || now[0] != to {
		f.T.Fatalf("File(%s) = %v, %v", id, now, err)
	}
}

func TestEntryOutlivesItsTask(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		a.Must(Request{ID: "x", Topic: "t", Delay: time.Hour})
		first := entryOf(f, "x")
		if first.ShardID.Node() != a.Engine().NodeNumber {
			t.Fatalf("registered under %v", first)
		}
		rig.Want(t, "Cancel", b.Cancel(t.Context(), "x"), nil)
		rig.Pass(cluster.RemoveAfter - 2*time.Second)
		if got := entryOf(f, "x"); got != first {
			t.Fatalf("the entry went from %v to %v too early", first, got)
		}
		rig.Want(t, "Cancel again", b.Cancel(t.Context(), "x"), nil)
		// The node that creates it now is led to node a, and the new entry stays.
		if again := b.Must(Request{ID: "x", Topic: "t", Delay: time.Hour}); again.Node != "a" || again.Repeated {
			t.Fatalf("created again: %+v", again)
		}
		second := entryOf(f, "x")
		if second == first || second.ShardID != first.ShardID {
			t.Fatalf("registered again: %v after %v", second, first)
		}
		rig.Pass(cluster.RemoveAfter + 5*time.Second)
		if got := entryOf(f, "x"); got != second {
			t.Fatalf("the entry of a task that exists went from %v to %v", second, got)
		}
		rig.Want(t, "Cancel", a.Cancel(t.Context(), "x"), nil)
		rig.Pass(cluster.RemoveAfter + 5*time.Second)
		if got := entryOf(f, "x"); got.ShardID != 0 {
			t.Fatalf("still registered: %v", got)
		}
		if other := b.Must(Request{ID: "x", Topic: "t", Delay: time.Hour}); other.Node != "b" {
			t.Fatalf("created anew: %+v", other)
		}
		rig.Want(t, "Cancel", a.Cancel(t.Context(), "x"), nil)
	})
}

// A process may end between registering an id and creating its task, or between the end of a
// task and the removal of its entry.
func TestStaleEntryHeals(t *testing.T) {
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		for i, m := range f.Nodes {
			id := fmt.Sprint("x-", i)
			stale := recovery.DirectoryEntry{ShardID: f.Nodes[0].ShardID(1), Nonce: 7}
			file(f, id, recovery.DirectoryEntry{}, stale)
			_, err := m.Get(t.Context(), id)
			rig.Want(t, "Get", err, ErrNotFound)
			task := m.Must(Request{ID: id, Topic: "t", Delay: time.Hour})
			if got := entryOf(f, id); task.Node != "a" || got == stale || got.ShardID.Node() != f.Nodes[0].Engine().NodeNumber {
				t.Errorf("created %+v, registered %v", task, got)
			}
			results, err := m.ScheduleBatch(t.Context(), []Request{{ID: id, Topic: "t", Delay: time.Hour}, {ID: id + "-b", Topic: "t"}})
			rig.Want(t, "ScheduleBatch", err, nil)
			rig.Want(t, "of the batch", results[0].Err, nil)
		}
		file(f, "nobody", recovery.DirectoryEntry{}, recovery.DirectoryEntry{ShardID: recovery.NewShardID(77, 3), Nonce: 1})
		_, err := f.Nodes[1].Get(t.Context(), "nobody")
		rig.Want(t, "Get of what is registered under a shard that never was", err, ErrNotFound)
		f.Nodes[1].Must(Request{ID: "nobody", Topic: "t", Delay: time.Hour})
		if got := f.Nodes[2].MustGet("nobody"); got.Node != "b" {
			t.Errorf("%+v", got)
		}
		file(f, "left", recovery.DirectoryEntry{}, recovery.DirectoryEntry{ShardID: f.Nodes[2].ShardID(0), Nonce: 1})
		rig.Pass(3 * cluster.WalkEvery)
		if got := entryOf(f, "left"); got.ShardID != 0 {
			t.Errorf("what belongs to no task is still registered: %v", got)
		}
		for i := range f.Nodes {
			f.Nodes[2].MustGet(fmt.Sprint("x-", i))
		}
	})
}

// A node that is alone registers nothing. When another one comes, ids stay unique from the
// first moment, and are all entryOf soon.
func TestSecondNode(t *testing.T) {
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		for i := range 300 {
			a.Must(Request{ID: fmt.Sprint("x-", i), Topic: "t", Delay: time.Hour})
		}
		a.Must(Request{ID: "deceased", Topic: "d"})
		rig.Pass(time.Millisecond)
		ds, err := a.Reserve(t.Context(), "d", 1, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		_, err = a.Settle(t.Context(), Verdict{Verb: Bury}, []string{ds[0].Receipt()})
		rig.Want(t, "Settle", err, nil)
		if got := entryOf(f, "x-1"); got.ShardID != 0 {
			t.Fatalf("a node that is alone has registered %v", got)
		}
		b := f.Start("b", rig.FleetShards, Config{})
		b.MustGet("x-7")
		b.MustGet("deceased")
		_, err = b.Schedule(t.Context(), Request{ID: "deceased", Topic: "d"})
		rig.Want(t, "Schedule of a dead one", err, ErrDead)
		if again := b.Must(Request{ID: "x-8", Topic: "t", Delay: time.Hour}); !again.Repeated || again.Node != "a" {
			t.Errorf("created twice: %+v", again)
		}
		rig.Want(t, "Cancel", b.Cancel(t.Context(), "x-9"), nil)
		_, err = b.Get(t.Context(), "none")
		rig.Want(t, "Get", err, ErrNotFound)
		a.Must(Request{ID: "at-once", Topic: "t", Delay: time.Hour})
		if got := entryOf(f, "at-once"); got.ShardID.Node() != a.Engine().NodeNumber {
			t.Errorf("a new id is registered %v", got)
		}
		rig.Pass(5 * time.Second)
		for _, id := range []string{"x-0", "x-7", "x-8", "x-299", "deceased"} {
			if got := entryOf(f, id); got.ShardID.Node() != a.Engine().NodeNumber {
				t.Errorf("%s is registered %v", id, got)
			}
		}
		if unindexed, err := b.Member.Unindexed(t.Context()); err != nil || len(unindexed) != 0 {
			t.Errorf("Unindexed = %q, %v", unindexed, err)
		}
	})
}

// The ids of a dead node that had not registered them are found at the node that adopted them.
func TestUnindexedNodeDies(t *testing.T) {
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		a := f.Nodes[0]
		for i := range 50 {
			a.Must(Request{ID: fmt.Sprint("x-", i), Topic: "t", Delay: time.Hour})
		}
		a.Crash()
		b := f.Start("b", rig.FleetShards, Config{})
		d := f.Start("d", rig.FleetShards, Config{})
		f.Nodes = []*rig.Node{b, d}
		_, err := d.Get(t.Context(), "x-3")
		rig.Want(t, "Get while no node has adopted it", err, ErrUnavailable)
		_, err = d.Schedule(t.Context(), Request{ID: "x-3", Topic: "t"})
		rig.Want(t, "Schedule while no node has adopted it", err, ErrUnavailable)
		b.Member.AdoptFrom(a.Member.Member)
		for i := range 50 {
			if got := d.MustGet(fmt.Sprint("x-", i)); got.Node != "b" {
				t.Fatalf("%+v", got)
			}
		}
		if again := d.Must(Request{ID: "x-3", Topic: "t", Delay: time.Hour}); !again.Repeated {
			t.Errorf("created twice: %+v", again)
		}
		rig.Pass(30 * time.Second)
		if got := entryOf(f, "x-49"); got.ShardID.Node() != a.Engine().NodeNumber {
			t.Errorf("registered %v", got)
		}
		_, err = d.Get(t.Context(), "none")
		rig.Want(t, "Get", err, ErrNotFound)
	})
}

// What the directory has lost is registered again: at once when the shard has lost something
// as well, otherwise by the audit.
func TestLostEntries(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		for i := range 20 {
			id := fmt.Sprint("x-", i)
			a.Must(Request{ID: id, Topic: "t", Delay: time.Hour})
			file(f, id, entryOf(f, id), recovery.DirectoryEntry{})
		}
		a.Engine().Rewound(a.Member, 0)
		rig.Pass(5 * time.Second)
		for i := range 20 {
			b.MustGet(fmt.Sprint("x-", i))
			id := fmt.Sprint("x-", i)
			file(f, id, entryOf(f, id), recovery.DirectoryEntry{})
		}
		rig.Pass(time.Minute)
		for i := range 20 {
			b.MustGet(fmt.Sprint("x-", i))
		}
	})
}
