package tasks_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// entryOf is where an id is registered.
func (f *fleet) entryOf(id string) recovery.DirectoryEntry {
	f.t.Helper()
	dirEntries, err := f.nodes[len(f.nodes)-1].member.Lookup(f.t.Context(), []string{id})
	if err != nil {
		f.t.Fatal("Look:", err)
	}
	return dirEntries[0]
}

// file changes a directory entry behind the nodes' backs.
func (f *fleet) file(id string, from, to recovery.DirectoryEntry) {
	f.t.Helper()
	now, err := f.nodes[len(f.nodes)-1].member.Update(f.t.Context(), []recovery.DirectoryUpdate{{ID: id, Old: from, New: to}})
	if err != nil || now[0] != to {
		f.t.Fatalf("File(%s) = %v, %v", id, now, err)
	}
}

func TestEntryOutlivesItsTask(t *testing.T) {
	fleetBubble(t, 2, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		a.must(Request{ID: "x", Topic: "t", Delay: time.Hour})
		first := f.entryOf("x")
		if first.ShardID.Node() != a.Engine().NodeNumber {
			t.Fatalf("registered under %v", first)
		}
		want(t, "Cancel", b.Cancel(t.Context(), "x"), nil)
		pass(cluster.RemoveAfter - 2*time.Second)
		if got := f.entryOf("x"); got != first {
			t.Fatalf("the entry went from %v to %v too early", first, got)
		}
		want(t, "Cancel again", b.Cancel(t.Context(), "x"), nil)
		// The node that creates it now is led to node a, and the new entry stays.
		if again := b.must(Request{ID: "x", Topic: "t", Delay: time.Hour}); again.Node != "a" || again.Repeated {
			t.Fatalf("created again: %+v", again)
		}
		second := f.entryOf("x")
		if second == first || second.ShardID != first.ShardID {
			t.Fatalf("registered again: %v after %v", second, first)
		}
		pass(cluster.RemoveAfter + 5*time.Second)
		if got := f.entryOf("x"); got != second {
			t.Fatalf("the entry of a task that exists went from %v to %v", second, got)
		}
		want(t, "Cancel", a.Cancel(t.Context(), "x"), nil)
		pass(cluster.RemoveAfter + 5*time.Second)
		if got := f.entryOf("x"); got.ShardID != 0 {
			t.Fatalf("still registered: %v", got)
		}
		if other := b.must(Request{ID: "x", Topic: "t", Delay: time.Hour}); other.Node != "b" {
			t.Fatalf("created anew: %+v", other)
		}
		want(t, "Cancel", a.Cancel(t.Context(), "x"), nil)
	})
}

// A process may end between registering an id and creating its task, or between the end of a
// task and the removal of its entry.
func TestStaleEntryHeals(t *testing.T) {
	fleetBubble(t, 3, func(t *testing.T, f *fleet) {
		for i, m := range f.nodes {
			id := fmt.Sprint("x-", i)
			stale := recovery.DirectoryEntry{ShardID: f.nodes[0].shardID(1), Nonce: 7}
			f.file(id, recovery.DirectoryEntry{}, stale)
			_, err := m.Get(t.Context(), id)
			want(t, "Get", err, ErrNotFound)
			task := m.must(Request{ID: id, Topic: "t", Delay: time.Hour})
			if got := f.entryOf(id); task.Node != "a" || got == stale || got.ShardID.Node() != f.nodes[0].Engine().NodeNumber {
				t.Errorf("created %+v, registered %v", task, got)
			}
			results, err := m.ScheduleBatch(t.Context(), []Request{{ID: id, Topic: "t", Delay: time.Hour}, {ID: id + "-b", Topic: "t"}})
			want(t, "ScheduleBatch", err, nil)
			want(t, "of the batch", results[0].Err, nil)
		}
		f.file("nobody", recovery.DirectoryEntry{}, recovery.DirectoryEntry{ShardID: recovery.NewShardID(77, 3), Nonce: 1})
		_, err := f.nodes[1].Get(t.Context(), "nobody")
		want(t, "Get of what is registered under a shard that never was", err, ErrNotFound)
		f.nodes[1].must(Request{ID: "nobody", Topic: "t", Delay: time.Hour})
		if got := f.nodes[2].get("nobody"); got.Node != "b" {
			t.Errorf("%+v", got)
		}
		f.file("left", recovery.DirectoryEntry{}, recovery.DirectoryEntry{ShardID: f.nodes[2].shardID(0), Nonce: 1})
		pass(3 * cluster.WalkEvery)
		if got := f.entryOf("left"); got.ShardID != 0 {
			t.Errorf("what belongs to no task is still registered: %v", got)
		}
		for i := range f.nodes {
			f.nodes[2].get(fmt.Sprint("x-", i))
		}
	})
}

// A node that is alone registers nothing. When another one comes, ids stay unique from the
// first moment, and are all entryOf soon.
func TestSecondNode(t *testing.T) {
	fleetBubble(t, 1, func(t *testing.T, f *fleet) {
		a := f.nodes[0]
		for i := range 300 {
			a.must(Request{ID: fmt.Sprint("x-", i), Topic: "t", Delay: time.Hour})
		}
		a.must(Request{ID: "deceased", Topic: "d"})
		pass(time.Millisecond)
		ds, err := a.Reserve(t.Context(), "d", 1, 0, 0)
		want(t, "Reserve", err, nil)
		_, err = a.Settle(t.Context(), Verdict{Verb: Bury}, []string{ds[0].Receipt()})
		want(t, "Settle", err, nil)
		if got := f.entryOf("x-1"); got.ShardID != 0 {
			t.Fatalf("a node that is alone has registered %v", got)
		}
		b := f.start("b", fleetShards, Config{})
		b.get("x-7")
		b.get("deceased")
		_, err = b.Schedule(t.Context(), Request{ID: "deceased", Topic: "d"})
		want(t, "Schedule of a dead one", err, ErrDead)
		if again := b.must(Request{ID: "x-8", Topic: "t", Delay: time.Hour}); !again.Repeated || again.Node != "a" {
			t.Errorf("created twice: %+v", again)
		}
		want(t, "Cancel", b.Cancel(t.Context(), "x-9"), nil)
		_, err = b.Get(t.Context(), "none")
		want(t, "Get", err, ErrNotFound)
		a.must(Request{ID: "at-once", Topic: "t", Delay: time.Hour})
		if got := f.entryOf("at-once"); got.ShardID.Node() != a.Engine().NodeNumber {
			t.Errorf("a new id is registered %v", got)
		}
		pass(5 * time.Second)
		for _, id := range []string{"x-0", "x-7", "x-8", "x-299", "deceased"} {
			if got := f.entryOf(id); got.ShardID.Node() != a.Engine().NodeNumber {
				t.Errorf("%s is registered %v", id, got)
			}
		}
		if unindexed, err := b.member.Unindexed(t.Context()); err != nil || len(unindexed) != 0 {
			t.Errorf("Unindexed = %q, %v", unindexed, err)
		}
	})
}

// The ids of a dead node that had not registered them are found at the node that adopted them.
func TestUnindexedNodeDies(t *testing.T) {
	fleetBubble(t, 1, func(t *testing.T, f *fleet) {
		a := f.nodes[0]
		for i := range 50 {
			a.must(Request{ID: fmt.Sprint("x-", i), Topic: "t", Delay: time.Hour})
		}
		a.crash()
		b := f.start("b", fleetShards, Config{})
		d := f.start("d", fleetShards, Config{})
		f.nodes = []*node{b, d}
		_, err := d.Get(t.Context(), "x-3")
		want(t, "Get while no node has adopted it", err, ErrUnavailable)
		_, err = d.Schedule(t.Context(), Request{ID: "x-3", Topic: "t"})
		want(t, "Schedule while no node has adopted it", err, ErrUnavailable)
		b.member.AdoptFrom(a.member.Member)
		for i := range 50 {
			if got := d.get(fmt.Sprint("x-", i)); got.Node != "b" {
				t.Fatalf("%+v", got)
			}
		}
		if again := d.must(Request{ID: "x-3", Topic: "t", Delay: time.Hour}); !again.Repeated {
			t.Errorf("created twice: %+v", again)
		}
		pass(30 * time.Second)
		if got := f.entryOf("x-49"); got.ShardID.Node() != a.Engine().NodeNumber {
			t.Errorf("registered %v", got)
		}
		_, err = d.Get(t.Context(), "none")
		want(t, "Get", err, ErrNotFound)
	})
}

// What the directory has lost is registered again: at once when the shard has lost something
// as well, otherwise by the audit.
func TestLostEntries(t *testing.T) {
	fleetBubble(t, 2, func(t *testing.T, f *fleet) {
		a, b := f.nodes[0], f.nodes[1]
		for i := range 20 {
			id := fmt.Sprint("x-", i)
			a.must(Request{ID: id, Topic: "t", Delay: time.Hour})
			f.file(id, f.entryOf(id), recovery.DirectoryEntry{})
		}
		a.Engine().Rewound(a.member, 0)
		pass(5 * time.Second)
		for i := range 20 {
			b.get(fmt.Sprint("x-", i))
			id := fmt.Sprint("x-", i)
			f.file(id, f.entryOf(id), recovery.DirectoryEntry{})
		}
		pass(time.Minute)
		for i := range 20 {
			b.get(fmt.Sprint("x-", i))
		}
	})
}
