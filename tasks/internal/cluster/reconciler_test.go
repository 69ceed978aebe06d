package cluster_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// An id that was used twice is taken out of the directory once: no directory takes an id
// twice in one call, and then the others of that call would stay too.
func TestTombstonesOfOneID(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a := f.Join("a", 1, Config{})
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		dirEntry := func(nonce uint32) recovery.DirectoryEntry {
			return recovery.DirectoryEntry{ShardID: shardID, Nonce: nonce}
		}
		got := a.Cluster().Gone([]cluster.Tombstone{{ID: "x", Entry: dirEntry(1)}, {ID: "y", Entry: dirEntry(2)}, {ID: "x", Entry: dirEntry(3)}})
		want := []recovery.DirectoryUpdate{{ID: "x", Old: dirEntry(3)}, {ID: "y", Old: dirEntry(2)}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// A task that has not been read into memory keeps its entry in the directory: without it, another
// node would create the id a second time.
func TestTombstoneOfATaskThatIsNotRead(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		var release func()
		f.Before = func(m *rig.FaultyMember) { release = m.Hold("Scan") }
		a := f.Join("a", 1, Config{})
		entry := recovery.DirectoryEntry{ShardID: recovery.NewShardID(a.Engine().NodeNumber, 0), Nonce: 1}
		gone := func() int { return len(a.Cluster().Gone([]cluster.Tombstone{{ID: "x", Entry: entry}})) }
		if n := gone(); n != 0 {
			t.Errorf("%d entries are removed while memory does not know the task", n)
		}
		release()
		rig.Pass(time.Second)
		if n := gone(); n != 1 {
			t.Errorf("%d entries are removed of a task that is gone", n)
		}
	})
}

// While shards are acquired the directory is behind for moments, which is no warning. What lasts is
// one, and so is its end.
func TestDirectoryThatIsBehind(t *testing.T) {
	const warning, over = "cannot be brought up to date", "the directory of ids is up to date again"
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		b := f.Nodes[1]
		for i := range 3 {
			other := f.Start(fmt.Sprint("other", i), rig.FleetShards, Config{})
			rig.Want(t, "MarkIndexed", other.Member.MarkIndexed(t.Context(), false), nil)
			other.Crash()
			b.Adopt(other)
			rig.Pass(3 * time.Second)
		}
		if f.Log.Has(warning) || f.Log.Has(over) {
			t.Errorf("the log tells of moments: %s", f.Log.All())
		}

		b.Must(Request{Topic: "x", ID: "gone", Delay: time.Hour})
		b.Member.Fail("Update", slices.Repeat([]error{errors.New("no directory")}, 1000)...)
		rig.Want(t, "Cancel", b.Cancel(t.Context(), "gone"), nil)
		rig.Pass(time.Minute)
		if f.Log.Count(warning) != 1 {
			t.Errorf("after a minute, the log warns %d times", f.Log.Count(warning))
		}
		b.Member.Heal()
		rig.Pass(time.Minute)
		if f.Log.Count(warning) != 1 || f.Log.Count(over) != 1 {
			t.Errorf("the log warns %d times, and tells %d times that it is over", f.Log.Count(warning), f.Log.Count(over))
		}
	})
}
