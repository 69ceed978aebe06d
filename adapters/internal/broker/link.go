package broker

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Errors of attempts that the broker has not answered.
var (
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the way is closed")
	// ErrTimeout is returned when there was no answer in time.
	ErrTimeout = errors.New("no acknowledgement in time")
)

// GaveUp is the error of an attempt whose context has ended.
func GaveUp(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrTimeout
	}
	return ctx.Err()
}

// A Link is the connection of a way. It is made when a delivery first needs it, and again after it
// has ended.
type Link[C any] struct {
	// Connect makes a connection.
	Connect func() (C, error)
	// Ended reports whether a connection has ended for good.
	Ended func(C) bool
	// Pause is how long after an attempt that failed the next one may begin.
	Pause time.Duration

	mu         sync.Mutex  // guards the rest
	current    *attempt[C] // nil until a delivery needs it
	closed     bool
	connecting sync.WaitGroup
}

// An attempt is a connection, or the attempt to make one.
type attempt[C any] struct {
	done   chan struct{} // closed when the fields below are set
	conn   C
	err    error
	failed time.Time // when err was found
}

// Get returns the connection. The first caller makes it, and callers that come meanwhile wait for
// the same. Errors: that of Connect, ErrClosed, or why the context has ended.
func (l *Link[C]) Get(ctx context.Context) (conn C, err error) {
	a, err := l.attempt()
	if err != nil {
		return conn, err
	}
	select {
	case <-a.done:
		return a.conn, a.err
	case <-ctx.Done():
		return conn, GaveUp(ctx)
	}
}

func (l *Link[C]) attempt() (*attempt[C], error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if l.current == nil || l.over(l.current) {
		a := &attempt[C]{done: make(chan struct{})}
		l.current = a
		l.connecting.Go(func() {
			defer close(a.done)
			if a.conn, a.err = l.Connect(); a.err != nil {
				a.failed = time.Now()
			}
		})
	}
	return l.current, nil
}

// over reports whether it is time for another attempt.
func (l *Link[C]) over(a *attempt[C]) bool {
	select {
	case <-a.done:
	default:
		return false
	}
	if a.err != nil {
		return time.Since(a.failed) >= l.Pause
	}
	return l.Ended(a.conn)
}

// Close ends the connection by end, once it has been made. Get returns ErrClosed from then on.
func (l *Link[C]) Close(end func(C)) {
	l.mu.Lock()
	l.closed = true
	a := l.current
	l.mu.Unlock()
	l.connecting.Wait()
	if a != nil && a.err == nil {
		end(a.conn)
	}
}
