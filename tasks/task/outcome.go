package task

import (
	"errors"
	"time"
	"unicode/utf8"
)

// A Judgement is what becomes of a delivery, once its deliverer has returned.
type Judgement struct {
	Verb   Verb // Ack, Release, Bury or Return; 0 leaves it open
	Reason string
	Pause  *time.Duration // Release: nil means the topic's backoff
	Aside  bool           // Return: it waits as after ErrUnwanted
}

// Judge returns what becomes of a delivery after the error of its deliverer. It calls methods of
// that error, which are not Lapse's and may panic, and must not be called under a lock.
func Judge(err error) Judgement {
	if err == nil { // before the variables below, which errors.As has allocated
		return Judgement{Verb: Ack}
	}
	var death deathError
	var pause pauseError
	switch {
	case errors.Is(err, ErrLater):
		return Judgement{}
	case errors.Is(err, ErrNoReceiver):
		return Judgement{Verb: Return, Reason: err.Error()}
	case errors.Is(err, ErrUnwanted):
		return Judgement{Verb: Return, Reason: err.Error(), Aside: true}
	case errors.As(err, &death):
		return Judgement{Verb: Bury, Reason: err.Error()}
	case errors.As(err, &pause):
		d := min(max(pause.pause, 0), MaxAhead)
		return Judgement{Verb: Release, Reason: err.Error(), Pause: &d}
	}
	return Judgement{Verb: Release, Reason: err.Error()}
}

// Verdict returns the judgement as the settlement of a receipt.
func (v *Judgement) Verdict() Verdict {
	return Verdict{Verb: v.Verb, Delay: v.Pause, Reason: Cut(v.Reason, MaxReason), Aside: v.Aside}
}

// A deathError makes a failed attempt the last one.
type deathError struct{ error }

func (e deathError) Unwrap() error { return e.error }

// Kill returns err marked as one that no further attempt can mend: the task is dead.
func Kill(err error) error { return deathError{some(err)} }

// A pauseError says when the next attempt may start.
type pauseError struct {
	error
	pause time.Duration
}

func (e pauseError) Unwrap() error { return e.error }

// RetryAfter returns err marked so that the next attempt starts after pause, instead of after the
// topic's backoff.
func RetryAfter(err error, pause time.Duration) error { return pauseError{some(err), pause} }

// some returns err, or an error in place of nil.
func some(err error) error {
	if err == nil {
		return errors.New("no reason given")
	}
	return err
}

// MaxReason bounds the last error that is kept of a task, in bytes.
const MaxReason = 1 << 10

// Cut returns a text shortened to at most n bytes, at the end of a character.
func Cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
