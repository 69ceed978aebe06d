package tasks_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// What a topic refuses, and what it makes of values.
func TestTopic(t *testing.T) {
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		ctx, s := t.Context(), r.Scheduler
		orders := tasks.NewTopic[Order]("orders")
		first, err := orders.Schedule(ctx, s, "a", time.Hour, Order{1})
		rig.Want(t, "Schedule", err, nil)
		if string(first.Payload) != `{"Number":1}` || first.Topic != orders.Name() {
			t.Errorf("%s in %s", first.Payload, first.Topic)
		}
		if again, err := orders.Schedule(ctx, s, "a", time.Hour, Order{1}); err != nil || !again.Repeated {
			t.Errorf("the same again: %+v, %v", again, err)
		}
		put, err := orders.Replace(ctx, s, "a", 0, Order{2})
		rig.Want(t, "Replace", err, nil)
		if put.Revision != 2 {
			t.Errorf("revision %d", put.Revision)
		}
		got, err := s.Reserve(ctx, "orders", 1, time.Minute, time.Minute)
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		if v, err := orders.Value(&got[0]); err != nil || v.Number != 2 {
			t.Errorf("value %v, %v", v, err)
		}
		if _, err := tasks.NewTopic[int]("orders").Value(&got[0]); err == nil {
			t.Error("an object became a number")
		}

		none := tasks.NewTopic[func()]("orders")
		_, err = none.Schedule(ctx, s, "b", 0, func() {})
		rig.Want(t, "Schedule of what has no JSON", err, tasks.ErrInvalid)
		_, err = none.Replace(ctx, s, "b", 0, func() {})
		rig.Want(t, "Replace by what has no JSON", err, tasks.ErrInvalid)
		unnamed := tasks.NewTopic[int]("")
		_, err = unnamed.Schedule(ctx, s, "b", 0, 1)
		rig.Want(t, "Schedule without a topic", err, tasks.ErrInvalid)
		rig.Want(t, "Handle without a topic", unnamed.Handle(s, nil), tasks.ErrInvalid)
	})
}

// A closable ledger counts how often it was closed.
type closable struct {
	recovery.Ledger
	closed int
}

func (l *closable) Close() error {
	l.closed++
	return l.Ledger.Close()
}

// Run ends with its context, with a part that fails, and with the scheduler; and leaves the ledger
// closed.
func TestRun(t *testing.T) {
	broken := errors.New("no database")
	for name, c := range map[string]struct {
		part tasks.Part
		want error
	}{
		"part fails": {func(context.Context, *tasks.Scheduler) error { return broken }, broken},
		"scheduler ends": {func(_ context.Context, s *tasks.Scheduler) error {
			return s.Close(context.Background())
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ran := 0
			count := func(context.Context, *tasks.Scheduler) error { ran++; return nil }
			ledger := &closable{Ledger: memledger.New()}
			err := tasks.Run(t.Context(), ledger, quiet, count, c.part)
			if !errors.Is(err, c.want) || ran != 1 {
				t.Errorf("%v after %d parts, want %v", err, ran, c.want)
			}
			if ledger.closed == 0 {
				t.Error("the ledger is open")
			}
		})
	}

	t.Run("context ends", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var inner context.Context
		err := tasks.Run(ctx, memledger.New(), quiet, func(ctx context.Context, _ *tasks.Scheduler) error {
			inner = ctx
			stop()
			return nil
		})
		if err != nil || inner.Err() == nil {
			t.Errorf("%v; the context of the parts: %v", err, inner.Err())
		}
	})

	t.Run("settings", func(t *testing.T) {
		ledger := &closable{Ledger: memledger.New()}
		if err := tasks.Run(t.Context(), ledger, tasks.Config{MaxPending: -1}); err == nil {
			t.Error("opened with settings that are not valid")
		}
		if ledger.closed == 0 {
			t.Error("the ledger is open")
		}
	})
}
