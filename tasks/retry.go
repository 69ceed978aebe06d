package tasks

import (
	"errors"
	"math/rand/v2"
	"time"
	"unicode/utf8"
)

const maxReason = 1 << 10 // bytes of a last error

// A deathError makes a failed attempt the last one.
type deathError struct{ err error }

func (e *deathError) Error() string { return e.err.Error() }
func (e *deathError) Unwrap() error { return e.err }

// Kill marks an error that no further attempt can mend: the task is dead.
func Kill(err error) error { return &deathError{err} }

// A pauseError says when the next attempt may start.
type pauseError struct {
	err   error
	pause time.Duration
}

func (e *pauseError) Error() string { return e.err.Error() }
func (e *pauseError) Unwrap() error { return e.err }

// RetryAfter marks an error after which the next attempt starts in pause, instead
// of after the topic's backoff.
func RetryAfter(err error, pause time.Duration) error { return &pauseError{err, pause} }

// pause is drawn evenly from MinBackoff to MinBackoff * 2^n after the n-th attempt,
// at most MaxBackoff: exponential backoff with full jitter (Marc Brooker, "Exponential Backoff And
// Jitter", AWS Architecture Blog, 2015), with a floor.
//
// Example: MinBackoff 1 s, MaxBackoff 10 min. After the first attempt 1 to 2 s,
// after the second 1 to 4 s, after the tenth and later 1 s to 10 min.
func (r Retry) pause(attempt uint32) time.Duration {
	high := r.MaxBackoff
	if shift := min(attempt, 40); r.MinBackoff < r.MaxBackoff>>shift {
		high = r.MinBackoff << shift
	}
	if high <= r.MinBackoff {
		return r.MinBackoff
	}
	return r.MinBackoff + rand.N(high-r.MinBackoff+1)
}

// concludeLocked ends a delivery in the way that its receiver's error says.
func (s *Scheduler) concludeLocked(n uint32, sl *slot, err error) {
	var death *deathError
	var pause *pauseError
	switch {
	case err == nil:
		s.ackLocked(n, sl, nil, 0)
	case errors.As(err, &death):
		s.buryLocked(n, sl, err.Error(), nil, 0)
	case errors.As(err, &pause):
		d := min(max(pause.pause, 0), MaxAhead)
		s.failLocked(n, sl, err.Error(), &d, nil, 0)
	default:
		s.failLocked(n, sl, err.Error(), nil, nil, 0)
	}
}

// ackLocked finishes a task. From here on this process never delivers it again,
// recorded or not.
func (s *Scheduler) ackLocked(n uint32, sl *slot, c *call, i int) {
	t := s.byNumber[sl.topic]
	t.counts.Delivered++
	l := s.open[n]
	s.outcomes.add(s.book.index.hash(s.book.id(sl)), outcome{kind: wasDelivered, nonce: l.nonce})
	s.noteLocked(EventDelivered, sl, Event{Attempt: int(l.attempt)})
	s.closeLocked(n)
	s.setLocked(sl, finishing)
	s.sendLocked(write{slot: n, op: opFinish}, c, i)
}

// failLocked ends an attempt without success: the task waits for the next one, or
// is dead if that was the last.
func (s *Scheduler) failLocked(n uint32, sl *slot, reason string, pause *time.Duration, c *call, i int) {
	t := s.byNumber[sl.topic]
	t.counts.Failed++
	l := s.open[n]
	if int(l.attempt) >= t.settings.Retry.MaxAttempts {
		s.deadLocked(n, sl, reason, c, i)
		return
	}
	d := t.settings.Retry.pause(l.attempt)
	if pause != nil {
		d = *pause
	}
	now := s.now()
	s.noteLocked(EventRetried, sl, Event{Attempt: int(l.attempt), Err: reason})
	// Not before the deadline either, if the clock was set back since.
	sl.next = max(now+roundUpMillis(d), recordDue(s.book.record(sl)))
	s.endAttemptLocked(n, sl, recPending, sl.next, reason)
	s.armLocked(n, sl, now)
	s.sendLocked(write{slot: n, op: opRecord}, c, i)
}

// buryLocked ends an attempt for good because its receiver said so.
func (s *Scheduler) buryLocked(n uint32, sl *slot, reason string, c *call, i int) {
	s.byNumber[sl.topic].counts.Failed++
	s.deadLocked(n, sl, reason, c, i)
}

func (s *Scheduler) deadLocked(n uint32, sl *slot, reason string, c *call, i int) {
	s.byNumber[sl.topic].counts.Died++
	s.noteLocked(EventDied, sl, Event{Attempt: int(s.open[n].attempt), Err: reason})
	died := s.now()
	s.setLocked(sl, burying)
	s.endAttemptLocked(n, sl, recDead, died, reason)
	s.sendLocked(write{slot: n, op: opBury, at: died}, c, i)
}

// endAttemptLocked closes the delivery and writes its end into the task's record.
func (s *Scheduler) endAttemptLocked(n uint32, sl *slot, state uint8, next int64, reason string) {
	f, err := decode(s.book.record(sl))
	if err != nil {
		panic("tasks: a record in memory is damaged: " + err.Error())
	}
	f.state, f.next, f.attempt = state, next, s.open[n].attempt
	f.flags &^= flagClaimed | flagLease
	f.lastError = []byte(cut(reason, maxReason))
	s.scratch = f.encode(s.scratch[:0])
	s.book.rewrite(n, s.scratch)
	s.closeLocked(n)
}

// cut shortens a text to at most n bytes, at a character's end.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// sendLocked writes for a caller, if there is one.
func (s *Scheduler) sendLocked(w write, c *call, i int) {
	if c != nil {
		c.expect(i)
		w.call, w.index = c, i
	}
	s.writeLocked(w)
}
