package tasks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
)

// forgetful is a ledger whose storage loses writes when a test says so.
type forgetful struct {
	*memledger.Ledger
	watcher recovery.Watcher
	lose    func(b *recovery.Batch) // loses what was just written, before that is answered; may be nil
	gate    chan struct{}           // keeps Apply waiting until it is closed; may be nil
}

func (f *forgetful) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	if f.gate != nil {
		<-f.gate
	}
	err := f.Ledger.Apply(ctx, shard, b)
	if lose := f.lose; lose != nil && err == nil {
		f.lose = nil
		lose(b)
	}
	return err
}

func (f *forgetful) Watch(w recovery.Watcher) { f.watcher = w }

func (f *forgetful) ScanShard(ctx context.Context, shard int, page func([]recovery.Entry) error) error {
	return f.Ledger.Scan(ctx, func(all []recovery.Entry) error {
		var some []recovery.Entry
		for _, e := range all {
			if e.Shard == shard {
				some = append(some, e)
			}
		}
		return page(some)
	})
}

// The storage loses some records and brings back one that is finished. Told so, the
// scheduler writes the lost ones again and deletes the other.
func TestRewoundShardIsMadeEqualToMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		l := &forgetful{Ledger: memledger.New(memledger.Nominating())}
		s, err := Open(ctx, l, Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(ctx)
		synctest.Wait()
		due := time.Now().Add(time.Hour)
		for i := range 100 {
			if _, err := s.Schedule(ctx, Request{ID: fmt.Sprint("t", i), Topic: "x", Due: due}); err != nil {
				t.Fatal(err)
			}
		}
		filed := recovery.Spot{Place: recovery.Pending, At: due.UnixMilli()}
		var loss recovery.Batch
		for i := range 50 {
			loss.Add(recovery.Change{ID: fmt.Append(nil, "t", i), From: filed})
		}
		stray := fields{revision: 1, due: due.UnixMilli(), next: due.UnixMilli(), topic: []byte("x")}
		loss.Add(recovery.Change{ID: []byte("stray"), To: filed, Data: stray.encode(nil)})
		if err := l.Apply(ctx, 0, &loss); err != nil {
			t.Fatal(err)
		}

		l.watcher.Rewound(0)
		synctest.Wait()
		held := map[string]bool{}
		if err := l.Scan(ctx, func(page []recovery.Entry) error {
			for _, e := range page {
				held[string(e.ID)] = true
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if len(held) != 100 || held["stray"] {
			t.Errorf("%d records, the stray one among them: %v", len(held), held["stray"])
		}
		if got := s.Stats().Rewinds; got != 1 {
			t.Errorf("%d rewinds counted", got)
		}
	})
}

// A process that has met no topic yet finds a stray, and only that goes.
func TestRewoundShardOfAnEmptyMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		l := &forgetful{Ledger: memledger.New(memledger.Nominating())}
		s, err := Open(ctx, l, Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(ctx)
		synctest.Wait()
		due := time.Now().Add(time.Hour)
		filed := recovery.Spot{Place: recovery.Pending, At: due.UnixMilli()}
		var loss recovery.Batch
		stray := fields{revision: 1, due: due.UnixMilli(), next: due.UnixMilli(), topic: []byte("x")}
		loss.Add(recovery.Change{ID: []byte("stray"), To: filed, Data: stray.encode(nil)})
		if err := l.Apply(ctx, 0, &loss); err != nil {
			t.Fatal(err)
		}
		l.watcher.Rewound(0)
		synctest.Wait()
		if err := l.Find(ctx, "stray", func(recovery.Entry) { t.Error("the stray is still there") }); err != nil {
			t.Fatal(err)
		}
		if n, used := s.Stats().Rewinds, s.book.used; n != 1 || used != 0 {
			t.Errorf("%d rewinds, %d slots in use", n, used)
		}
	})
}

// A write is confirmed by the storage, and lost, before memory has heard of the
// confirmation: the shard is made equal to memory while the task is still busy.
func TestRewoundUnderAConfirmedWrite(t *testing.T) {
	for name, change := range map[string]func(s *Scheduler, id string) error{
		"creation": func(s *Scheduler, _ string) error {
			_, err := s.Schedule(context.Background(), Request{ID: "new", Topic: "x", Delay: 2 * time.Hour})
			return err
		},
		"move": func(s *Scheduler, id string) error {
			_, err := s.Reschedule(context.Background(), id, Move{Delay: ptr(2 * time.Hour)})
			return err
		},
		"cancellation": func(s *Scheduler, id string) error { return s.Cancel(context.Background(), id) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				l := &forgetful{Ledger: memledger.New(memledger.Nominating())}
				s, err := Open(ctx, l, Config{})
				want(t, "Open", err, nil)
				defer s.Close(ctx)
				synctest.Wait()
				_, err = s.Schedule(ctx, Request{ID: "old", Topic: "x", Delay: time.Hour})
				want(t, "Schedule", err, nil)
				var before fields
				var filed recovery.Spot
				want(t, "Find", l.Find(ctx, "old", func(e recovery.Entry) {
					filed = e.Spot
					before, _ = decode(slices.Clone(e.Data))
				}), nil)

				l.lose = func(b *recovery.Batch) {
					c := b.At(0)
					undo := recovery.Change{ID: c.ID, From: c.To, To: c.From}
					if !c.Creation() {
						undo.Data = before.encode(nil)
					}
					var loss recovery.Batch
					loss.Add(undo)
					want(t, "Apply", l.Ledger.Apply(ctx, 0, &loss), nil)
					l.watcher.Rewound(0)
					time.Sleep(time.Millisecond) // until that is done
				}
				want(t, name, change(s, "old"), nil)
				synctest.Wait()

				held := map[string]int64{}
				want(t, "Scan", l.Scan(ctx, func(page []recovery.Entry) error {
					for _, e := range page {
						held[string(e.ID)] = e.Spot.At
					}
					return nil
				}), nil)
				wanted := map[string]int64{}
				page, err := s.List(ctx, Query{})
				want(t, "List", err, nil)
				for _, task := range page.Tasks {
					wanted[task.ID] = task.Next.UnixMilli()
				}
				if !maps.Equal(held, wanted) {
					t.Errorf("the ledger holds %v, memory %v; before %v", held, wanted, filed.At)
				}
			})
		})
	}
}

// scannedBefore is forgetful right after its first scan.
type scannedBefore struct {
	forgetful
	once sync.Once
	loss recovery.Batch
}

func (l *scannedBefore) Scan(ctx context.Context, page func([]recovery.Entry) error) error {
	err := l.forgetful.Scan(ctx, page)
	l.once.Do(func() {
		_ = l.Apply(ctx, 0, &l.loss)
		l.watcher.Rewound(0)
	})
	return err
}

// A shard is rewound when replay has read all of it and still reads others: its strays
// go when replay is over.
func TestRewoundDuringReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		l := &scannedBefore{forgetful: forgetful{Ledger: memledger.New(memledger.Nominating())}}
		due := time.Now().Add(time.Hour).UnixMilli()
		stray := fields{revision: 1, due: due, next: due, topic: []byte("x")}
		l.loss.Add(recovery.Change{
			ID: []byte("stray"), To: recovery.Spot{Place: recovery.Pending, At: due}, Data: stray.encode(nil),
		})
		s, err := Open(ctx, l, Config{})
		want(t, "Open", err, nil)
		defer s.Close(ctx)
		synctest.Wait()
		if got := s.Stats(); got.Rewinds != 1 || !got.Readiness.Ready {
			t.Errorf("%+v", got)
		}
		want(t, "Find", l.Find(ctx, "stray", func(recovery.Entry) { t.Error("the stray is still there") }), nil)
	})
}

// brokenScan is forgetful; its first scan breaks when the test says so.
type brokenScan struct {
	forgetful
	once    sync.Once
	scanned chan struct{}
}

func (l *brokenScan) Scan(ctx context.Context, page func([]recovery.Entry) error) (err error) {
	l.once.Do(func() {
		<-l.scanned
		err = errors.New("the scan is broken")
	})
	if err != nil {
		return err
	}
	return l.forgetful.Scan(ctx, page)
}

// A shard is rewound while replay runs, which then begins anew: what this process has
// finished meanwhile does not come back to life.
func TestReplayAfterARewindFinishesTheFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		l := &brokenScan{
			forgetful: forgetful{Ledger: memledger.New(memledger.Nominating())}, scanned: make(chan struct{}),
		}
		s, err := Open(ctx, l, Config{})
		want(t, "Open", err, nil)
		defer s.Close(ctx)
		for _, id := range []string{"cancelled", "acked"} {
			_, err = s.Schedule(ctx, Request{ID: id, Topic: "x"})
			want(t, "Schedule", err, nil)
		}
		due := time.Now().UnixMilli()
		want(t, "Cancel", s.Cancel(ctx, "cancelled"), nil)
		ds, err := s.Reserve(ctx, "x", 1, 0, 0)
		want(t, "Reserve", err, nil)
		answers, err := s.Settle(ctx, Verdict{Verb: Ack}, []string{ds[0].Receipt()})
		if err != nil || !answers[0].Recorded {
			t.Fatalf("Settle: %+v, %v", answers, err)
		}
		var loss recovery.Batch
		for _, id := range []string{"cancelled", "acked", "unread"} {
			rec := fields{revision: 1, due: due, next: due, topic: []byte("x")}
			loss.Add(recovery.Change{
				ID: []byte(id), To: recovery.Spot{Place: recovery.Pending, At: due}, Data: rec.encode(nil),
			})
		}
		want(t, "Apply", l.Apply(ctx, 0, &loss), nil)
		l.watcher.Rewound(0)
		close(l.scanned)
		pass(time.Second)
		ds, err = s.Reserve(ctx, "x", 10, 0, 0)
		if err != nil || len(ds) != 1 || ds[0].ID != "unread" {
			t.Errorf("delivered: %+v, %v", ds, err)
		}
		for _, id := range []string{"cancelled", "acked"} {
			want(t, "Find", l.Find(ctx, id, func(recovery.Entry) { t.Errorf("%s is still there", id) }), nil)
		}
	})
}

// However many strays there are, only so many wait for the committer.
func TestManyStrays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		l := &forgetful{Ledger: memledger.New(memledger.Nominating())}
		s, err := Open(ctx, l, Config{})
		want(t, "Open", err, nil)
		defer s.Close(ctx)
		synctest.Wait()
		due := time.Now().Add(time.Hour).UnixMilli()
		stray := fields{revision: 1, due: due, next: due, topic: []byte("x")}
		var loss recovery.Batch
		for i := range 3 * queueAtMost {
			loss.Add(recovery.Change{
				ID: fmt.Append(nil, "stray-", i), To: recovery.Spot{Place: recovery.Pending, At: due}, Data: stray.encode(nil),
			})
		}
		want(t, "Apply", l.Ledger.Apply(ctx, 0, &loss), nil)
		l.gate = make(chan struct{})
		l.watcher.Rewound(0)
		pass(time.Second)
		if queued := s.Stats().Ledger.Queued; queued < queueAtMost || queued > 3*queueAtMost/2 {
			t.Errorf("%d deletions wait for the ledger", queued)
		}
		close(l.gate)
		pass(time.Minute)
		left := 0
		want(t, "Scan", l.Scan(ctx, func(page []recovery.Entry) error { left += len(page); return nil }), nil)
		if left != 0 {
			t.Errorf("%d strays are left", left)
		}
	})
}
