package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A jammed ledger does not answer for one of its shards.
type jammed struct {
	*memledger.Ledger
	shard atomic.Int64
	free  chan struct{}
}

func (j *jammed) Apply(ctx context.Context, shard int, b *recovery.Batch) error {
	if int64(shard) == j.shard.Load() {
		<-j.free
	}
	return j.Ledger.Apply(ctx, shard, b)
}

// A task that stays busy does not keep an act from those behind it.
func TestActsPassTasksThatStayBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &jammed{Ledger: memledger.New(memledger.Shards(4)), free: make(chan struct{})}
		l.shard.Store(-1)
		s, err := Open(t.Context(), l, Config{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		rig.Want(t, "Open", err, nil)
		defer s.Close(context.Background())
		synctest.Wait()
		const number = 60
		for i := range number {
			_, err := s.Schedule(t.Context(), Request{ID: fmt.Sprintf("t%02d", i), Topic: "x", Delay: time.Hour + time.Duration(i)*time.Second})
			rig.Want(t, "Schedule", err, nil)
		}
		l.shard.Store(0)
		stuck := 0 // writes of these tasks are not answered
		for i := range number {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := s.Reschedule(ctx, fmt.Sprintf("t%02d", i), Move{Payload: []byte(`1`)}); err != nil {
				stuck++
			}
			cancel()
		}
		if stuck == 0 || stuck == number {
			t.Fatalf("%d of %d tasks are busy", stuck, number)
		}
		a := Act{Action: MoveAction, Due: time.Now().Add(3 * time.Hour), Query: Query{Topic: "x"}}
		got, err := s.Admin().Act(t.Context(), a)
		if !errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrUnknown) || got.Done != number-stuck {
			t.Errorf("%d tasks are busy: %+v, %v", stuck, got, err)
		}
		close(l.free)
		l.shard.Store(-1)
		rig.Pass(5 * time.Second)
		for got.Done, a.Query.Cursor = 0, ""; ; {
			rest, err := s.Admin().Act(t.Context(), a)
			rig.Want(t, "Act", err, nil)
			got.Done += rest.Done
			if a.Query.Cursor = rest.Cursor; rest.Cursor == "" {
				break
			}
		}
		if got.Done != number {
			t.Errorf("afterwards: %+v", got)
		}
	})
}

// A node that reads its dead tasks slowly answers another node in time, and the list goes on.
func TestDeadAreSelectedFromASlowLedger(t *testing.T) {
	rig.FleetBubble(t, 2, func(t *testing.T, f *rig.Fleet) {
		const number = 100
		for i := range number {
			f.Nodes[0].Must(Request{ID: fmt.Sprint("t", i), Topic: "x"})
		}
		rig.Pass(time.Second)
		ds, err := f.Nodes[0].Reserve(t.Context(), "x", number, 0, 0)
		rig.Want(t, "Reserve", err, nil)
		for _, d := range ds {
			f.Nodes[0].SettleOne(Bury, d)
		}
		f.Nodes[0].Member.Reading.Store(int64(20 * time.Millisecond))
		calls := 0
		a := Act{Action: DeleteAction, Query: Query{Topic: "x"}, Dry: true}
		counted := acted(t, func() *Scheduler { calls++; return f.Nodes[1].Scheduler }, a)
		if counted.Matched != number || calls > 10 {
			t.Errorf("counted %+v with %d calls", counted, calls)
		}
	})
}
