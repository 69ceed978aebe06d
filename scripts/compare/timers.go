package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/cli/bench"
)

// timers are those of the Go runtime: a goroutine a task, nothing recorded.
type timers struct {
	got   func([]byte)
	left  atomic.Int64
	group sync.WaitGroup
}

func (s *timers) Schedule(_ context.Context, t bench.Task) error {
	payload := append([]byte(nil), t.Payload...)
	s.left.Add(1)
	s.group.Add(1)
	time.AfterFunc(time.Until(t.Due), func() {
		defer s.group.Done()
		s.got(payload)
		s.left.Add(-1)
	})
	return nil
}

func (s *timers) ScheduleBatch(ctx context.Context, ts []bench.Task) error {
	for _, t := range ts {
		_ = s.Schedule(ctx, t) // never fails
	}
	return nil
}

func (s *timers) Receive(_ context.Context, got func([]byte)) error { s.got = got; return nil }

func (s *timers) Standing(context.Context) (bench.Standing, error) {
	return bench.Standing{Left: int(s.left.Load())}, nil
}

// Close waits for the timers, which are short here.
func (s *timers) Close() error { s.group.Wait(); return nil }
