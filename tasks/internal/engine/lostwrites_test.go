package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Tests of a storage that loses confirmed writes. Each runs for one node and for two.

// The storage loses some records and brings back one that is finished. Told so, the
// scheduler writes the lost ones again and deletes the other.
func TestRewoundShardIsMadeEqualToMemory(t *testing.T) {
	rig.RewoundBubble(t, nil, func(t *testing.T, r *rig.RewindRig) {
		due := time.Now().Add(time.Hour)
		var ids []string
		for i := range 100 {
			ids = append(ids, fmt.Sprint("t", i))
			_, err := r.Schedule(t.Context(), Request{ID: ids[i], Topic: "x", Due: due})
			rig.Want(t, "Schedule", err, nil)
		}
		entryOf := recovery.Spot{Place: recovery.Pending, At: due.UnixMilli()}
		var loss recovery.Batch
		for _, id := range ids[:50] {
			loss.Add(recovery.Change{ID: []byte(id), From: entryOf})
		}
		loss.Add(rig.Strayed("stray", entryOf.At))
		r.Loses(&loss)

		r.Storage.Watcher.Rewound(0)
		synctest.Wait()
		slices.Sort(ids)
		if held := slices.Sorted(maps.Keys(r.Held())); !slices.Equal(held, ids) {
			t.Errorf("held: %q", held)
		}
		if got := r.Stats().Rewinds; got != 1 {
			t.Errorf("%d rewinds counted", got)
		}
		r.WantGone("stray")
		for _, id := range ids {
			_, err := r.Asked.Get(t.Context(), id)
			rig.Want(t, "Get "+id, err, nil)
		}
	})
}

// While the storage has not confirmed what is written and deleted, the log does not say that it
// has: the node may lose the shard.
func TestRewindClaimsNothingUnconfirmed(t *testing.T) {
	rig.RewoundBubble(t, nil, func(t *testing.T, r *rig.RewindRig) {
		for i := range 10 {
			_, err := r.Schedule(t.Context(), Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
			rig.Want(t, "Schedule", err, nil)
		}
		var loss recovery.Batch
		for id, at := range r.Held() {
			loss.Add(recovery.Change{ID: []byte(id), From: recovery.Spot{Place: recovery.Pending, At: at}})
		}
		loss.Add(rig.Strayed("stray", time.Now().Add(time.Hour).UnixMilli()))
		r.Loses(&loss)
		r.Storage.Gate = make(chan struct{})
		r.Storage.Watcher.Rewound(0)
		synctest.Wait()
		if held := r.Held(); len(held) != 1 {
			t.Errorf("held: %v", held)
		}
		if !r.Log.Has("is being made equal to memory") || !r.Log.Has("writing=10 deleting=1") || r.Log.Has("was made equal") {
			t.Error(r.Log.All())
		}
		close(r.Storage.Gate)
		synctest.Wait()
		r.WantGone("stray")
	})
}

// A process that has met no topic yet finds an unknown record, and only that goes.
func TestRewoundShardOfAnEmptyMemory(t *testing.T) {
	rig.RewoundBubble(t, nil, func(t *testing.T, r *rig.RewindRig) {
		var loss recovery.Batch
		loss.Add(rig.Strayed("stray", time.Now().Add(time.Hour).UnixMilli()))
		r.Loses(&loss)
		r.Storage.Watcher.Rewound(0)
		synctest.Wait()
		r.WantGone("stray")
		if n, used := r.Stats().Rewinds, r.Engine().Store.Len(); n != 1 || used != 0 {
			t.Errorf("%d rewinds, %d slots in use", n, used)
		}
	})
}

// A write is confirmed by the storage, and lost, before memory has heard of the
// confirmation: the shard is made equal to memory while the task is still busy.
func TestRewoundUnderAConfirmedWrite(t *testing.T) {
	for name, change := range map[string]func(r *rig.RewindRig) error{
		"creation": func(r *rig.RewindRig) error {
			_, err := r.Schedule(context.Background(), Request{ID: "new", Topic: "x", Delay: 2 * time.Hour})
			return err
		},
		"move": func(r *rig.RewindRig) error {
			_, err := r.Asked.Reschedule(context.Background(), "old", Move{Delay: rig.Ptr(2 * time.Hour)})
			return err
		},
		"hold":         func(r *rig.RewindRig) error { _, err := r.Asked.Hold(context.Background(), "old"); return err },
		"cancellation": func(r *rig.RewindRig) error { return r.Asked.Cancel(context.Background(), "old") },
	} {
		t.Run(name, func(t *testing.T) {
			rig.RewoundBubble(t, nil, func(t *testing.T, r *rig.RewindRig) {
				_, err := r.Schedule(t.Context(), Request{ID: "old", Topic: "x", Delay: time.Hour})
				rig.Want(t, "Schedule", err, nil)
				var before record.Fields
				var entryOf recovery.Spot
				rig.Want(t, "Find", r.Ledger.(recovery.Finder).Find(t.Context(), "old", func(e recovery.Entry) {
					entryOf = e.Spot
					before, _ = record.Decode(slices.Clone(e.Data))
				}), nil)

				r.Storage.Lose = func(b *recovery.Batch) {
					c := b.At(0)
					undo := recovery.Change{ID: c.ID, From: c.To, To: c.From}
					if !c.Creation() {
						undo.Data = before.Append(nil)
					}
					var loss recovery.Batch
					loss.Add(undo)
					r.Loses(&loss)
					r.Storage.Watcher.Rewound(0)
					time.Sleep(time.Millisecond) // until that is done
				}
				rig.Want(t, name, change(r), nil)
				synctest.Wait()

				wanted := map[string]int64{}
				page, err := r.Asked.List(t.Context(), Query{})
				rig.Want(t, "List", err, nil)
				for _, task := range page.Tasks {
					wanted[task.ID] = rig.ListedAt(&task).UnixMilli()
				}
				if held := r.Held(); !maps.Equal(held, wanted) {
					t.Errorf("the ledger holds %v, memory %v; before %v", held, wanted, entryOf.At)
				}
			})
		})
	}
}

// A shard is rewound when replay has read all of it and still reads others: its unknown records
// go when replay is over.
func TestRewoundDuringReplay(t *testing.T) {
	rig.RewoundBubble(t, func(r *rig.RewindRig) {
		r.Storage.After = func() {
			var loss recovery.Batch
			loss.Add(rig.Strayed("stray", time.Now().Add(time.Hour).UnixMilli()))
			r.Loses(&loss)
			r.Storage.Watcher.Rewound(0)
		}
	}, func(t *testing.T, r *rig.RewindRig) {
		if got := r.Stats(); got.Rewinds != 1 || !got.Readiness.Ready {
			t.Errorf("%+v", got)
		}
		r.WantGone("stray")
	})
}

// A shard is rewound while replay runs, which then begins anew: what this process has
// finished meanwhile does not come back to life.
func TestReplayAfterARewindFinishesTheFinished(t *testing.T) {
	var broken chan struct{}
	rig.RewoundBubble(t, func(r *rig.RewindRig) {
		gate := make(chan struct{})
		broken = gate
		r.Storage.Before = func() error {
			<-gate
			return errors.New("the scan is broken")
		}
	}, func(t *testing.T, r *rig.RewindRig) {
		ids := []string{"cancelled", "acked"}
		for _, id := range ids {
			_, err := r.Schedule(t.Context(), Request{ID: id, Topic: "x"})
			rig.Want(t, "Schedule", err, nil)
		}
		rig.Want(t, "Cancel", r.Asked.Cancel(t.Context(), "cancelled"), nil)
		ds, err := r.Reserve(t.Context(), "x", 1, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		answers, err := r.Asked.Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[0].Receipt()})
		if err != nil || !answers[0].Recorded {
			t.Fatalf("Settle: %+v, %v", answers, err)
		}
		var loss recovery.Batch
		for _, id := range append(ids, "unread") {
			loss.Add(rig.Strayed(id, time.Now().UnixMilli()))
		}
		r.Loses(&loss)
		r.Storage.Watcher.Rewound(0)
		close(broken)
		rig.Pass(time.Second)
		ds, err = r.Asked.Reserve(t.Context(), "x", 10, 0, 0)
		if err != nil || len(ds) != 1 || ds[0].ID != "unread" {
			t.Errorf("delivered: %+v, %v", ds, err)
		}
		r.WantGone(ids...)
	})
}

// However many unknown records there are, only so many wait for the committer.
func TestManyUnknownRecords(t *testing.T) {
	t.Parallel()
	rig.RewoundBubble(t, nil, func(t *testing.T, r *rig.RewindRig) {
		due := time.Now().Add(time.Hour).UnixMilli()
		var loss recovery.Batch
		for i := range 3 * engine.QueueAtMost {
			loss.Add(rig.Strayed(fmt.Sprint("stray-", i), due))
		}
		r.Loses(&loss)
		gate := make(chan struct{})
		r.Storage.Gate = gate
		r.Storage.Watcher.Rewound(0)
		rig.Pass(time.Second)
		if queued := r.Stats().Ledger.Queued; queued < engine.QueueAtMost || queued > 3*engine.QueueAtMost/2 {
			t.Errorf("%d deletions wait for the ledger", queued)
		}
		close(gate)
		rig.Pass(time.Minute)
		if left := len(r.Held()); left != 0 {
			t.Errorf("%d strays are left", left)
		}
	})
}
