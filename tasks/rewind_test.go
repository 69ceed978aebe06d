package tasks

import (
	"context"
	"fmt"
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
}

func (f *forgetful) Watch(w recovery.Watcher) { f.watcher = w }

func (f *forgetful) ScanShard(ctx context.Context, shard int, page func([]recovery.Entry) error) error {
	return f.Scan(ctx, func(all []recovery.Entry) error {
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
