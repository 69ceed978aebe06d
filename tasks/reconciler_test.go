package tasks_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
)

// An id that was used twice is taken out of the directory once: no directory takes an id
// twice in one call, and then the others of that call would stay too.
func TestTombstonesOfOneID(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a := f.join("a", 1, Config{})
		shardID := recovery.NewShardID(a.Engine().NodeNumber, 0)
		dirEntry := func(nonce uint32) recovery.DirectoryEntry {
			return recovery.DirectoryEntry{ShardID: shardID, Nonce: nonce}
		}
		a.Engine().Mu.Lock()
		got := a.Cluster().GoneLocked([]cluster.Tombstone{{ID: "x", Entry: dirEntry(1)}, {ID: "y", Entry: dirEntry(2)}, {ID: "x", Entry: dirEntry(3)}})
		a.Engine().Unlock()
		want := []recovery.DirectoryUpdate{{ID: "x", Old: dirEntry(3)}, {ID: "y", Old: dirEntry(2)}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}
