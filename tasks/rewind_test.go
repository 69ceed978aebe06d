package tasks_test

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
)

// Tests of a storage that loses confirmed writes. Each runs for one node and for two.

// The storage loses some records and brings back one that is finished. Told so, the
// scheduler writes the lost ones again and deletes the other.
func TestRewoundShardIsMadeEqualToMemory(t *testing.T) {
	rewoundBubble(t, nil, func(t *testing.T, r *rewindRig) {
		due := time.Now().Add(time.Hour)
		var ids []string
		for i := range 100 {
			ids = append(ids, fmt.Sprint("t", i))
			_, err := r.Schedule(t.Context(), Request{ID: ids[i], Topic: "x", Due: due})
			want(t, "Schedule", err, nil)
		}
		entryOf := recovery.Spot{Place: recovery.Pending, At: due.UnixMilli()}
		var loss recovery.Batch
		for _, id := range ids[:50] {
			loss.Add(recovery.Change{ID: []byte(id), From: entryOf})
		}
		loss.Add(strayed("stray", entryOf.At))
		r.loses(&loss)

		r.storage.watcher.Rewound(0)
		synctest.Wait()
		slices.Sort(ids)
		if held := slices.Sorted(maps.Keys(r.held())); !slices.Equal(held, ids) {
			t.Errorf("held: %q", held)
		}
		if got := r.Stats().Rewinds; got != 1 {
			t.Errorf("%d rewinds counted", got)
		}
		r.wantGone("stray")
		for _, id := range ids {
			_, err := r.asked.Get(t.Context(), id)
			want(t, "Get "+id, err, nil)
		}
	})
}

// While the storage has not confirmed what is written and deleted, the log does not say that it
// has: the node may lose the shard.
func TestRewindClaimsNothingUnconfirmed(t *testing.T) {
	rewoundBubble(t, nil, func(t *testing.T, r *rewindRig) {
		for i := range 10 {
			_, err := r.Schedule(t.Context(), Request{ID: fmt.Sprint("t", i), Topic: "x", Delay: time.Hour})
			want(t, "Schedule", err, nil)
		}
		var loss recovery.Batch
		for id, at := range r.held() {
			loss.Add(recovery.Change{ID: []byte(id), From: recovery.Spot{Place: recovery.Pending, At: at}})
		}
		loss.Add(strayed("stray", time.Now().Add(time.Hour).UnixMilli()))
		r.loses(&loss)
		r.storage.gate = make(chan struct{})
		r.storage.watcher.Rewound(0)
		synctest.Wait()
		if held := r.held(); len(held) != 1 {
			t.Errorf("held: %v", held)
		}
		if !r.log.has("is being made equal to memory") || !r.log.has("writing=10 deleting=1") || r.log.has("was made equal") {
			t.Error(r.log.all())
		}
		close(r.storage.gate)
		synctest.Wait()
		r.wantGone("stray")
	})
}

// A process that has met no topic yet finds an unknown record, and only that goes.
func TestRewoundShardOfAnEmptyMemory(t *testing.T) {
	rewoundBubble(t, nil, func(t *testing.T, r *rewindRig) {
		var loss recovery.Batch
		loss.Add(strayed("stray", time.Now().Add(time.Hour).UnixMilli()))
		r.loses(&loss)
		r.storage.watcher.Rewound(0)
		synctest.Wait()
		r.wantGone("stray")
		if n, used := r.Stats().Rewinds, r.Engine().Store.Len(); n != 1 || used != 0 {
			t.Errorf("%d rewinds, %d slots in use", n, used)
		}
	})
}

// A write is confirmed by the storage, and lost, before memory has heard of the
// confirmation: the shard is made equal to memory while the task is still busy.
func TestRewoundUnderAConfirmedWrite(t *testing.T) {
	for name, change := range map[string]func(r *rewindRig) error{
		"creation": func(r *rewindRig) error {
			_, err := r.Schedule(context.Background(), Request{ID: "new", Topic: "x", Delay: 2 * time.Hour})
			return err
		},
		"move": func(r *rewindRig) error {
			_, err := r.asked.Reschedule(context.Background(), "old", Move{Delay: ptr(2 * time.Hour)})
			return err
		},
		"hold":         func(r *rewindRig) error { _, err := r.asked.Hold(context.Background(), "old"); return err },
		"cancellation": func(r *rewindRig) error { return r.asked.Cancel(context.Background(), "old") },
	} {
		t.Run(name, func(t *testing.T) {
			rewoundBubble(t, nil, func(t *testing.T, r *rewindRig) {
				_, err := r.Schedule(t.Context(), Request{ID: "old", Topic: "x", Delay: time.Hour})
				want(t, "Schedule", err, nil)
				var before record.Fields
				var entryOf recovery.Spot
				want(t, "Find", r.ledger.(recovery.Finder).Find(t.Context(), "old", func(e recovery.Entry) {
					entryOf = e.Spot
					before, _ = record.Decode(slices.Clone(e.Data))
				}), nil)

				r.storage.lose = func(b *recovery.Batch) {
					c := b.At(0)
					undo := recovery.Change{ID: c.ID, From: c.To, To: c.From}
					if !c.Creation() {
						undo.Data = before.Append(nil)
					}
					var loss recovery.Batch
					loss.Add(undo)
					r.loses(&loss)
					r.storage.watcher.Rewound(0)
					time.Sleep(time.Millisecond) // until that is done
				}
				want(t, name, change(r), nil)
				synctest.Wait()

				wanted := map[string]int64{}
				page, err := r.asked.List(t.Context(), Query{})
				want(t, "List", err, nil)
				for _, task := range page.Tasks {
					wanted[task.ID] = listedAt(&task).UnixMilli()
				}
				if held := r.held(); !maps.Equal(held, wanted) {
					t.Errorf("the ledger holds %v, memory %v; before %v", held, wanted, entryOf.At)
				}
			})
		})
	}
}

// A shard is rewound when replay has read all of it and still reads others: its unknown records
// go when replay is over.
func TestRewoundDuringReplay(t *testing.T) {
	rewoundBubble(t, func(r *rewindRig) {
		r.storage.after = func() {
			var loss recovery.Batch
			loss.Add(strayed("stray", time.Now().Add(time.Hour).UnixMilli()))
			r.loses(&loss)
			r.storage.watcher.Rewound(0)
		}
	}, func(t *testing.T, r *rewindRig) {
		if got := r.Stats(); got.Rewinds != 1 || !got.Readiness.Ready {
			t.Errorf("%+v", got)
		}
		r.wantGone("stray")
	})
}

// A shard is rewound while replay runs, which then begins anew: what this process has
// finished meanwhile does not come back to life.
func TestReplayAfterARewindFinishesTheFinished(t *testing.T) {
	var broken chan struct{}
	rewoundBubble(t, func(r *rewindRig) {
		gate := make(chan struct{})
		broken = gate
		r.storage.before = func() error {
			<-gate
			return errors.New("the scan is broken")
		}
	}, func(t *testing.T, r *rewindRig) {
		ids := []string{"cancelled", "acked"}
		for _, id := range ids {
			_, err := r.Schedule(t.Context(), Request{ID: id, Topic: "x"})
			want(t, "Schedule", err, nil)
		}
		want(t, "Cancel", r.asked.Cancel(t.Context(), "cancelled"), nil)
		ds, err := r.Reserve(t.Context(), "x", 1, 0, 0)
		want(t, "Reserve", err, nil)
		answers, err := r.asked.Settle(t.Context(), Verdict{Verb: Ack}, []string{ds[0].Receipt()})
		if err != nil || !answers[0].Recorded {
			t.Fatalf("Settle: %+v, %v", answers, err)
		}
		var loss recovery.Batch
		for _, id := range append(ids, "unread") {
			loss.Add(strayed(id, time.Now().UnixMilli()))
		}
		r.loses(&loss)
		r.storage.watcher.Rewound(0)
		close(broken)
		pass(time.Second)
		ds, err = r.asked.Reserve(t.Context(), "x", 10, 0, 0)
		if err != nil || len(ds) != 1 || ds[0].ID != "unread" {
			t.Errorf("delivered: %+v, %v", ds, err)
		}
		r.wantGone(ids...)
	})
}

// However many unknown records there are, only so many wait for the committer.
func TestManyUnknownRecords(t *testing.T) {
	t.Parallel()
	rewoundBubble(t, nil, func(t *testing.T, r *rewindRig) {
		due := time.Now().Add(time.Hour).UnixMilli()
		var loss recovery.Batch
		for i := range 3 * engine.QueueAtMost {
			loss.Add(strayed(fmt.Sprint("stray-", i), due))
		}
		r.loses(&loss)
		gate := make(chan struct{})
		r.storage.gate = gate
		r.storage.watcher.Rewound(0)
		pass(time.Second)
		if queued := r.Stats().Ledger.Queued; queued < engine.QueueAtMost || queued > 3*engine.QueueAtMost/2 {
			t.Errorf("%d deletions wait for the ledger", queued)
		}
		close(gate)
		pass(time.Minute)
		if left := len(r.held()); left != 0 {
			t.Errorf("%d strays are left", left)
		}
	})
}
