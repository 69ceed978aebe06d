package engine_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A task whose time is over while no node runs is deleted after the next start, and the others
// are kept: across the ends of pages and pieces.
func TestRetentionAcrossRestarts(t *testing.T) {
	t.Parallel()
	t.Run("disk", func(t *testing.T) {
		dir := t.TempDir()
		retentionAcrossRestarts(t, func() (recovery.Ledger, error) {
			return diskledger.Open(dir, diskledger.Options{})
		})
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		retentionAcrossRestarts(t, func() (recovery.Ledger, error) {
			return redisledger.Open(redisledger.Options{
				URL: server.URL(), Node: "a", Shards: 4, FailoverAfter: time.Second, Log: slog.New(slog.DiscardHandler),
			})
		})
		if left := server.Do("hlen", "lapse:{a/0}:dead"); left.(int64) > 8 {
			t.Errorf("Redis still has %v", left)
		}
	})
}

func retentionAcrossRestarts(t *testing.T, ledger func() (recovery.Ledger, error)) {
	var ahead time.Duration
	open := func() *Scheduler {
		ledger, err := ledger()
		rig.Want(t, "opening the ledger", err, nil)
		s, err := Open(t.Context(), ledger, Config{
			SweepEvery: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
			Clock: func() time.Time { return time.Now().Add(ahead) },
		})
		rig.Want(t, "Open", err, nil)
		<-rig.Engine(s).Reading.Replayed
		return s
	}
	s := open()
	die := func(topic string, n int) {
		t.Helper()
		ids := make([]Request, n)
		for i := range ids {
			ids[i] = Request{Topic: topic}
		}
		_, err := s.ScheduleBatch(t.Context(), ids)
		rig.Want(t, "ScheduleBatch", err, nil)
		for n > 0 {
			ds, err := s.Reserve(t.Context(), topic, min(n, MaxReserve), time.Minute, 0)
			rig.Want(t, "Reserve", err, nil)
			var receipts []string
			for _, d := range ds {
				receipts = append(receipts, d.Receipt())
			}
			_, err = s.Settle(t.Context(), Verdict{Verb: Bury}, receipts)
			rig.Want(t, "Settle", err, nil)
			n -= len(ds)
		}
	}
	const n = 2*engine.RedrivenAtOnce + 7
	die("x", n)
	die("y", 3)
	_, err := s.SetTopic(t.Context(), "y", TopicSettings{DeadRetention: 30 * 24 * time.Hour}, -1)
	rig.Want(t, "SetTopic", err, nil)
	rig.Want(t, "Close", s.Close(context.Background()), nil)

	ahead = 4 * 24 * time.Hour
	s = open()
	die("x", 5)
	rig.Want(t, "Close", s.Close(context.Background()), nil)
	ahead = 8 * 24 * time.Hour
	s = open()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.Stats().Total.Expired < n {
		<-tick.C
	}
	if c := s.Stats().Total; c.Expired != n || c.Dead != 8 {
		t.Errorf("counts %+v", c)
	}
	page, err := s.Admin().DeadTasks(t.Context(), "x", 0, "")
	if err != nil || len(page.Tasks) != 5 {
		t.Errorf("%d are left, %v", len(page.Tasks), err)
	}
	rig.Want(t, "Close", s.Close(context.Background()), nil)
}
