package engine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrLate is the cause of a context whose call has waited for the ledger long enough.
var ErrLate = errors.New("the ledger did not answer in time")

// Within bounds a public method by Config.AnswerWithin, however many waits it has. The time runs
// from the first wait on: most calls never wait, and need no timer.
func (s *Engine) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	b := &bounded{Context: ctx, within: s.Config.AnswerWithin}
	return b, b.end
}

// A bounded is a context that gets its timer when it is first waited for. Until then it is its
// parent.
type bounded struct {
	context.Context // the parent
	within          time.Duration
	begin           sync.Once
	timed           atomic.Pointer[timed] // nil: nothing has waited yet
	ended           atomic.Bool
}

type timed struct {
	context.Context
	cancel context.CancelFunc
}

// run returns the context with its timer, which it starts if need be.
func (b *bounded) run() context.Context {
	b.begin.Do(func() {
		ctx, cancel := context.WithTimeoutCause(b.Context, b.within, ErrLate)
		b.timed.Store(&timed{ctx, cancel})
		if b.ended.Load() {
			cancel()
		}
	})
	return b.timed.Load()
}

// now returns the context as it stands.
func (b *bounded) now() context.Context {
	if t := b.timed.Load(); t != nil {
		return t
	}
	return b.Context
}

// end is the context's CancelFunc.
func (b *bounded) end() {
	b.ended.Store(true)
	if t := b.timed.Load(); t != nil {
		t.cancel()
	}
}

func (b *bounded) Deadline() (time.Time, bool) { return b.run().Deadline() }
func (b *bounded) Done() <-chan struct{}       { return b.run().Done() }
func (b *bounded) Value(key any) any           { return b.now().Value(key) }

func (b *bounded) Err() error {
	if b.ended.Load() {
		return b.run().Err()
	}
	return b.now().Err()
}
