package engine_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A blockingObserver holds up what the scheduler does next, until it is released.
type blockingObserver struct{ held, free chan struct{} }

func (o *blockingObserver) Observe(e Event) {
	if e.Kind == EventRetried { // the sweep has found a lease that is over
		close(o.held)
		<-o.free
	}
}

// stuckPart asks whether s moves, for a second of its time.
func stuckPart(t *testing.T, s *Scheduler) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	stuck := (*StuckError)(nil)
	err := s.Admin().Moving(ctx)
	if err != nil && (!errors.As(err, &stuck) || stuck.For < time.Second) {
		t.Errorf("%v", err)
	}
	if stuck == nil {
		return ""
	}
	return stuck.Part
}

// A scheduler that hangs says which part of it does, for how long, and when it moves again. One
// that waits for nothing, or is closed, moves.
func TestMoving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fired, stop := make(chan struct{}), make(chan struct{})
		first := sync.OnceFunc(func() { close(fired) })
		observer := &blockingObserver{make(chan struct{}), make(chan struct{})}
		s, err := rig.OpenWith(t.Context(), memledger.New(), Config{Log: slog.New(slog.DiscardHandler), Observer: observer}, rig.Parts{
			Fired: func(values []uint64) []uint64 { first(); <-stop; return values },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		if part := stuckPart(t, s); part != "" {
			t.Errorf("idle, it says that %s does not move", part)
		}
		// Not at the time of a sweep, which would fire it too.
		if _, err := s.Schedule(t.Context(), Request{Topic: "x", Delay: 1500 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		<-fired
		if part := stuckPart(t, s); part != "its wheel" {
			t.Errorf("with a wheel that hangs it says %q", part)
		}
		close(stop)
		if part := stuckPart(t, s); part != "" {
			t.Errorf("with a wheel that goes on, it says that %s does not move", part)
		}

		if _, err := s.Reserve(t.Context(), "x", 1, 0, time.Second); err != nil {
			t.Fatal(err)
		}
		<-observer.held
		if part := stuckPart(t, s); part != "its sweep" {
			t.Errorf("with a sweep that hangs it says %q", part)
		}
		close(observer.free)
		if part := stuckPart(t, s); part != "" {
			t.Errorf("with a sweep that goes on, it says that %s does not move", part)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.Admin().Moving(t.Context()); err != nil {
			t.Errorf("closed: %v", err)
		}
	})
}

// A lock that another goroutine keeps counts as a scheduler that does not move.
func TestMovingNeedsTheLock(t *testing.T) {
	s, err := Open(t.Context(), memledger.New(), Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	lock := rig.Mutex(rig.Engine(s))
	lock.Lock()
	for range 2 { // the second joins the round of the first
		stuck := (*StuckError)(nil)
		if err := s.Admin().Moving(ctx); !errors.As(err, &stuck) || stuck.Part != "its lock" {
			t.Errorf("with its lock held: %v", err)
		}
	}
	lock.Unlock()
	if err := s.Admin().Moving(t.Context()); err != nil {
		t.Errorf("with its lock free: %v", err)
	}
}
