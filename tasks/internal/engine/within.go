package engine

import (
	"context"
	"errors"
	"sync"
	"time"
)

// ErrLate is the cause of a context whose call has waited for the ledger long enough.
var ErrLate = errors.New("the ledger did not answer in time")

// Within bounds a public method by Config.AnswerWithin, however many waits it has. A call that
// never waits has no timer.
func (s *Engine) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	b := &bounded{Context: ctx, deadline: time.Now().Add(s.Config.AnswerWithin), timers: &s.Life.timers}
	return b, b.end
}

// A bounded is a context with a deadline that gets its timer when it is first waited for.
type bounded struct {
	context.Context // the parent
	deadline        time.Time
	timers          *sync.Pool // of *time.Timer, which are stopped

	mu     sync.Mutex
	timed  context.Context // nil: nothing has waited yet
	cancel context.CancelFunc
	ended  bool
}

// runLocked returns the context with its timer, which it starts if need be.
func (b *bounded) runLocked() context.Context {
	if b.timed == nil {
		b.timed, b.cancel = context.WithDeadlineCause(b.Context, b.deadline, ErrLate)
		if b.ended {
			b.cancel()
		}
	}
	return b.timed
}

// end is the context's CancelFunc.
func (b *bounded) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.cancel != nil {
		b.cancel()
	}
}

func (b *bounded) Done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.runLocked().Done()
}

func (b *bounded) Deadline() (time.Time, bool) {
	if d, ok := b.Context.Deadline(); ok && d.Before(b.deadline) {
		return d, true
	}
	return b.deadline, true
}

func (b *bounded) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timed != nil || b.ended || !time.Now().Before(b.deadline) {
		return b.runLocked().Err()
	}
	return b.Context.Err()
}

func (b *bounded) Value(key any) any {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timed != nil {
		return b.timed.Value(key)
	}
	return b.Context.Value(key)
}

// wait waits for done, or until ctx ends, whose cause it returns then. For a context of Within it
// needs a timer alone, and no place among the children of the caller's context.
func wait(ctx context.Context, done <-chan struct{}) error {
	b, ok := ctx.(*bounded)
	if !ok {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	timer, used := b.timers.Get().(*time.Timer)
	if used {
		timer.Reset(time.Until(b.deadline))
	} else {
		timer = time.NewTimer(time.Until(b.deadline))
	}
	defer func() {
		timer.Stop()
		select { // with GODEBUG=asynctimerchan=1 it may hold an old expiry
		case <-timer.C:
		default:
		}
		b.timers.Put(timer)
	}()
	select {
	case <-done:
		return nil
	case <-timer.C:
		return ErrLate
	case <-b.Context.Done():
		return context.Cause(b.Context)
	}
}
