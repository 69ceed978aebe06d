package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// Tests of what is moved from the spool in several batches.

// spoolLarge spools what is moved in three batches, and returns the ids.
func spoolLarge(t *testing.T, s *tasks.Scheduler) (ids []string) {
	t.Helper()
	for range 40 {
		task, err := s.Schedule(t.Context(), tasks.Request{Topic: "y", Delay: time.Hour, Payload: []byte(`"` + strings.Repeat("y", 60_000) + `"`)})
		if err != nil || !task.Spooled {
			t.Fatalf("Schedule: %v, %v", task.Spooled, err)
		}
		ids = append(ids, task.ID)
	}
	return ids
}

// The ledger has no room for one batch of what was spooled, and has room for the next.
func TestFullBetweenTwoSpoolBatches(t *testing.T) {
	for _, refused := range []int{movingBatch, movingBatch + 1, movingBatch + 2} {
		t.Run(fmt.Sprint("batch ", refused), func(t *testing.T) {
			rig.SpoolBubble(t, func(t *testing.T, r *rig.SpoolRig) {
				r.Away()
				ids := spoolLarge(t, r.Scheduler)
				r.Faulty.Heal()
				r.Faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: refused, Err: recovery.ErrFull})
				for r.Stats().Spool.Tasks > 0 {
					rig.Pass(5 * time.Millisecond)
				}
				r.CrashBoth() // before an audit can find that the ledger lacks a task
				for _, id := range ids {
					r.InLedger(id, recovery.Pending)
				}
			}, memledger.Shards(1))
		})
	}
}

// A rewinding ledger confirms the first batch that comes from a spool, and loses it. It says so
// before the answer arrives.
type rewinding struct {
	rig.ForgetfulLedger
	full atomic.Bool
	lost bool
}

func (l *rewinding) Condition() error {
	if l.full.Load() {
		return recovery.ErrFull
	}
	return nil
}

func (l *rewinding) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	if b.Mark().Number == 0 || l.lost {
		return l.ForgetfulLedger.Apply(ctx, shard, b)
	}
	l.lost = true
	l.F.Watcher.Rewound(shard)
	time.Sleep(time.Second) // the node sees to what it has under way
	return nil
}

// The ledger loses a batch of what was spooled while the next one waits behind it.
func TestRewindBetweenTwoSpoolBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memledger.New(memledger.Nominating(), memledger.Shards(1))
		l := &rewinding{ForgetfulLedger: rig.ForgetfulLedger{Ledger: mem, F: &rig.Forgetful{}}}
		l.full.Store(true)
		s, err := tasks.Open(t.Context(), l, tasks.Config{Node: "a", Spool: memledger.New(), Log: slog.New(slog.DiscardHandler)})
		rig.Want(t, "Open", err, nil)
		defer s.Close(context.Background())
		rig.Pass(3 * time.Second)
		ids := spoolLarge(t, s)
		l.full.Store(false)
		for s.Stats().Spool.Tasks > 0 {
			rig.Pass(5 * time.Millisecond)
		}
		if !l.lost || s.Stats().Rewinds != 1 {
			t.Fatal("the ledger has lost nothing")
		}
		held := make(map[string]bool)
		rig.Want(t, "Scan", mem.Scan(t.Context(), func(page []recovery.Entry) error {
			for _, e := range page {
				held[string(e.ID)] = true
			}
			return nil
		}), nil)
		for _, id := range ids {
			if !held[id] {
				t.Errorf("the ledger lacks %s", id)
			}
		}
	})
}
