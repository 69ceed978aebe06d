package engine_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A lateMember answers no look-up any more from some time on.
type lateMember struct {
	*memfleet.Member
	from atomic.Int64 // in nanoseconds of the wall clock; 0: it answers
}

func (m *lateMember) wait(ctx context.Context) error {
	if from := m.from.Load(); from == 0 || time.Now().UnixNano() < from {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (m *lateMember) Locate(ctx context.Context, shardID recovery.ShardID, anew bool) (recovery.Holder, error) {
	if err := m.wait(ctx); err != nil {
		return recovery.Holder{}, err
	}
	return m.Member.Locate(ctx, shardID, anew)
}

func (m *lateMember) Holders(ctx context.Context, shardIDs []recovery.ShardID) (map[recovery.ShardID]recovery.Holder, error) {
	if err := m.wait(ctx); err != nil {
		return nil, err
	}
	return m.Member.Holders(ctx, shardIDs)
}

// A call whose last attempt runs out of time while it looks up where a task is says what the
// attempts before it have found out: its node is away. It does not say that the ledger is.
func TestLookUpWithoutTime(t *testing.T) {
	rig.FleetBubble(t, 1, func(t *testing.T, f *rig.Fleet) {
		away := f.Nodes[0]
		task := away.Must(Request{Topic: "x", Delay: time.Hour})
		member := &lateMember{Member: f.Ledger.Join("late", 1)}
		s, err := Open(t.Context(), member, Config{Node: "late", Log: slog.New(slog.DiscardHandler)})
		rig.Want(t, "Open", err, nil)
		defer s.Close(context.Background())
		rig.Pass(3 * time.Second)
		_, err = s.Get(t.Context(), task.ID)
		rig.Want(t, "Get while the node lives", err, nil)
		away.Crash()
		again := Request{ID: task.ID, Topic: "x", Delay: time.Hour}
		for what, call := range map[string]func(ctx context.Context) error{
			"Get":      func(ctx context.Context) error { _, err := s.Get(ctx, task.ID); return err },
			"Cancel":   func(ctx context.Context) error { return s.Cancel(ctx, task.ID) },
			"Schedule": func(ctx context.Context) error { _, err := s.Schedule(ctx, again); return err },
			"Replace":  func(ctx context.Context) error { _, err := s.Replace(ctx, again); return err },
			"List":     func(ctx context.Context) error { _, err := s.List(ctx, Query{}); return err },
			"Purge":    func(ctx context.Context) error { _, err := s.Admin().Purge(ctx, "x"); return err },
		} {
			member.from.Store(time.Now().Add(rig.Engine(s).Config.AnswerWithin / 2).UnixNano())
			rig.Want(t, what, call(t.Context()), ErrNodeAway)
			member.from.Store(1)
			rig.Want(t, what+" without any look-up", call(t.Context()), ErrUnavailable)
		}
		member.from.Store(0)
	})
}
