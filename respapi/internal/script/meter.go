package script

import (
	"context"
	"errors"
	"time"
)

// Bounds of one run.
const (
	MostSteps  = 100_000
	MostMemory = 16 << 20        // bytes of what a script puts together, and is answered
	MostTime   = 5 * time.Second // with the time that its commands take
	// stepMemory is what an instruction takes at most: a table with its first entry.
	stepMemory  = 1 << 10
	stepsAtOnce = 256 // are counted together
	takenAtOnce = 64 << 10
)

// ErrBound is the error of a script that exceeds one of its bounds.
var ErrBound = errors.New("the script exceeds its bounds")

type boundError string

func (e boundError) Error() string { return string(e) }
func (boundError) Unwrap() error   { return ErrBound }

// A meter counts what a run takes. The interpreter asks its context before each instruction whether
// it is done; that is how steps are counted.
type meter struct {
	context.Context
	host   Host
	steps  int
	texts  int64 // bytes
	room   int64 // bytes that were taken from the host, and not used
	failed error // the first bound that was exceeded
}

// stopped is the channel of a meter whose run has failed.
var stopped = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done counts a step. It returns a closed channel once a bound is exceeded.
func (m *meter) Done() <-chan struct{} {
	if m.steps++; m.steps%stepsAtOnce == 1 {
		m.take(stepsAtOnce * stepMemory)
		m.look()
		if m.steps > MostSteps {
			m.fail(boundError("the script has taken more than 100000 steps"))
		}
	}
	if m.failed != nil {
		return stopped
	}
	return nil
}

// look looks at the time, and whether the client is there.
func (m *meter) look() {
	switch err := context.Cause(m.Context); {
	case errors.Is(err, context.DeadlineExceeded):
		m.fail(boundError("the script has taken more than " + MostTime.String()))
	case err != nil:
		m.fail(err)
	}
}

// Err returns why the run has failed.
func (m *meter) Err() error { return m.failed }

func (m *meter) fail(err error) {
	if m.failed == nil {
		m.failed = err
	}
}

// text counts the bytes of a text before it is made. It reports whether they are allowed.
func (m *meter) text(n int64) bool {
	if m.texts += n; m.texts > MostMemory {
		m.fail(boundError("the script has put together more than 16 MiB"))
		return false
	}
	return m.take(n)
}

// take counts bytes, for which the host is asked in large pieces.
func (m *meter) take(n int64) bool {
	if m.room < n {
		more := max(n-m.room, takenAtOnce)
		if err := m.host.Take(more); err != nil {
			m.fail(err)
			return false
		}
		m.room += more
	}
	m.room -= n
	return true
}
