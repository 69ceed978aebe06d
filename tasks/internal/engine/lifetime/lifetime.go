package lifetime

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// A Lifetime is how far a process has come, and what runs in it.
type Lifetime struct {
	Opened  chan struct{} // closed, by the caller, when Open has succeeded
	Closing chan struct{} // closed when Close begins
	Done    chan struct{} // closed when nothing runs any more, or the ledger is lost

	Context    context.Context // of handlers and background work; cancelled at the end of the grace
	Cancel     context.CancelFunc
	Handlers   sync.WaitGroup // running handlers
	Background sync.WaitGroup // what runs until Context ends

	ending     sync.Mutex // while a channel is closed, or something is added to a group
	closeBegun atomic.Bool
	closed     chan struct{} // closed when Close is over, which closeErr waits for
	closeErr   error
}

// Begin begins it. Its context has the values of ctx, and does not end with it.
func (l *Lifetime) Begin(ctx context.Context) {
	l.Opened, l.Closing = make(chan struct{}), make(chan struct{})
	l.Done, l.closed = make(chan struct{}), make(chan struct{})
	l.Context, l.Cancel = context.WithCancel(context.WithoutCancel(ctx))
}

// Enter counts the caller as a handler, which Close waits for, until Handlers.Done is called. It
// reports false once Close has begun. It does not wait.
func (l *Lifetime) Enter() bool { return l.unlessClosing(func() { l.Handlers.Add(1) }) }

// Handle runs f in a goroutine that counts as a handler. It reports false once Close has begun.
func (l *Lifetime) Handle(f func()) bool { return l.unlessClosing(func() { l.Handlers.Go(f) }) }

// Go runs f in the background. It reports false once Close has begun.
func (l *Lifetime) Go(f func()) bool { return l.unlessClosing(func() { l.Background.Go(f) }) }

func (l *Lifetime) unlessClosing(f func()) bool {
	l.ending.Lock()
	defer l.ending.Unlock()
	select {
	case <-l.Closing:
		return false
	default:
	}
	f()
	return true
}

// Every calls f once in every period, until Close begins.
func (l *Lifetime) Every(period time.Duration, f func()) {
	l.EveryOr(period, nil, func(bool) { f() })
}

// EveryOr calls f once in every period, and whenever it receives from wake, until Close begins. It
// tells f whether it was woken.
func (l *Lifetime) EveryOr(period time.Duration, wake <-chan struct{}, f func(woken bool)) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f(false)
		case <-wake:
			f(true)
		case <-l.Closing:
			return
		}
	}
}

// Rest waits. It reports false when Close has begun.
func (l *Lifetime) Rest(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-l.Closing:
		return false
	}
}

// Acquire waits for one of the places of a kind of work, which the caller gives back. It reports
// false if Close begins, or Context ends, before.
func (l *Lifetime) Acquire(places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	case <-l.Closing:
		return false
	case <-l.Context.Done():
		return false
	}
}

// Outlast waits until all of these are closed. It reports false if Close begins, or Context ends,
// before.
func (l *Lifetime) Outlast(all ...<-chan struct{}) bool {
	for _, over := range all {
		select {
		case <-over:
		case <-l.Closing:
			return false
		case <-l.Context.Done():
			return false
		}
	}
	return true
}

// End closes Closing. It may be called more than once.
func (l *Lifetime) End() { l.close(l.Closing) }

// Finish closes Done. It may be called more than once.
func (l *Lifetime) Finish() { l.close(l.Done) }

func (l *Lifetime) close(ch chan struct{}) {
	l.ending.Lock()
	defer l.ending.Unlock()
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// Close has the first caller shut down, and all callers wait for that, whose error they get.
func (l *Lifetime) Close(shutDown func() error) error {
	if l.closeBegun.CompareAndSwap(false, true) {
		l.closeErr = shutDown()
		l.Finish()
		close(l.closed)
	}
	<-l.closed
	return l.closeErr
}

// Ended waits until the goroutines of a group have ended. It reports false if ctx ends before.
func Ended(ctx context.Context, group *sync.WaitGroup) bool {
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}
