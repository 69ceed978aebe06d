package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// away runs a test with fake time on three nodes, of which b holds one of a's shards and
// keeps it. The ids that it is called with belong into that shard, as a sees it.
func away(t *testing.T, test func(t *testing.T, f *rig.Fleet, ids []string)) {
	t.Helper()
	rig.FleetBubble(t, 3, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Nodes[0], f.Nodes[1]
		f.Lose(func(from, _ string, message []byte) bool { // a does not get it back
			return from == a.Name && bytes.Contains(message, []byte(cluster.ReleaseMethod.Name))
		})
		shardID := a.ShardID(1)
		rig.Want(t, "release", a.Engine().ReleaseShard(t.Context(), shardID, b.Name), nil)
		if ok, err := b.Member.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatal(ok, err)
		}
		rig.Pass(3 * time.Second)
		var ids []string
		for i := 0; len(ids) < 20; i++ {
			if id := fmt.Sprint("order-", i); a.Engine().Terms.ShardOf([]byte(id)) < 0 {
				ids = append(ids, id)
			}
		}
		test(t, f, ids)
	})
}

// wantPlaced wants a task with a chosen id to be where the ledger of its holder looks for
// it, and returns its holder.
func wantPlaced(f *rig.Fleet, id string) (holder *rig.Node) {
	f.T.Helper()
	for _, m := range f.Nodes {
		if m.Dead {
			continue
		}
		rig.Mutex(m.Engine()).Lock()
		n, known := m.Engine().Store.Find([]byte(id))
		shard := -1
		if known {
			shard = int(m.Engine().Store.Slot(n).Shard)
		}
		rig.Mutex(m.Engine()).Unlock()
		switch {
		case !known:
		case holder != nil:
			f.T.Errorf("%s is at %s and at %s", id, holder.Name, m.Name)
		default:
			holder = m
			if places := m.Engine().Terms.ShardsOf([]byte(id)); !slices.Contains(places, shard) {
				f.T.Errorf("%s is in shard %d of %s, which looks for it in %v", id, shard, m.Name, places)
			}
		}
	}
	if holder == nil {
		f.T.Fatalf("%s is nowhere", id)
	}
	return holder
}

// While the shard of its hash is away, a task with a chosen id is created by the node that
// holds the shard, and nowhere else.
func TestChosenIDWhileItsShardIsAway(t *testing.T) {
	request := func(id string) Request { return Request{ID: id, Topic: "t", Delay: time.Hour} }
	for name, create := range map[string]func(ctx context.Context, m *rig.Node, id string) (Task, error){
		"Schedule": func(ctx context.Context, m *rig.Node, id string) (Task, error) { return m.Schedule(ctx, request(id)) },
		"Replace":  func(ctx context.Context, m *rig.Node, id string) (Task, error) { return m.Replace(ctx, request(id)) },
		"ScheduleBatch": func(ctx context.Context, m *rig.Node, id string) (Task, error) {
			results, err := m.ScheduleBatch(ctx, []Request{request("with-" + id), request(id), {Topic: "t"}})
			for _, r := range results {
				err = errors.Join(err, r.Err)
			}
			return Task{ID: results[1].ID}, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			away(t, func(t *testing.T, f *rig.Fleet, ids []string) {
				a, b, third := f.Nodes[0], f.Nodes[1], f.Nodes[2]
				for i, id := range ids {
					if i%4 == 0 { // it exists at a node that no other would ask first
						third.Must(request(id))
					}
					_, err := create(t.Context(), a, id)
					rig.Want(t, id, err, nil)
					holder := wantPlaced(f, id)
					if want := []*rig.Node{third, b}[min(i%4, 1)]; holder != want {
						t.Errorf("%s is at %s; want %s", id, holder.Name, want.Name)
					}
					for _, m := range f.Nodes {
						if m.MustGet(id); i%2 == 0 {
							_, err := create(t.Context(), m, id)
							rig.Want(t, "again "+id, err, nil)
						}
					}
					rig.Want(t, "Cancel", a.Cancel(t.Context(), id), nil)
					if i%3 == 0 { // while its old directory entry is there yet
						_, err := create(t.Context(), a, id)
						rig.Want(t, "anew "+id, err, nil)
						wantPlaced(f, id)
					}
				}
			})
		})
	}
}

// While the holder of the shard is dead, and no node has adopted it, such a task is not
// created: 503.
func TestChosenIDWhileItsShardIsOrphaned(t *testing.T) {
	away(t, func(t *testing.T, f *rig.Fleet, ids []string) {
		a, b := f.Nodes[0], f.Nodes[1]
		b.Crash()
		_, err := a.Schedule(t.Context(), Request{ID: ids[0], Topic: "t", Delay: time.Hour})
		rig.Want(t, "Schedule", err, ErrNodeAway)
		f.Nodes[2].Member.AdoptFrom(b.Member.Member)
		rig.Pass(time.Second)
		a.Must(Request{ID: ids[0], Topic: "t", Delay: time.Hour})
		wantPlaced(f, ids[0])
	})
}
