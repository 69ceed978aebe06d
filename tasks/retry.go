package tasks

import (
	"errors"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"github.com/lapsehq/lapse/tasks/internal/record"
)

const maxReason = 1 << 10 // bytes of a last error

// A deathError makes a failed attempt the last one.
type deathError struct{ error }

func (e deathError) Unwrap() error { return e.error }

// Kill marks an error that no further attempt can mend: the task is dead.
func Kill(err error) error { return deathError{some(err)} }

// A pauseError says when the next attempt may start.
type pauseError struct {
	error
	pause time.Duration
}

func (e pauseError) Unwrap() error { return e.error }

// RetryAfter marks an error after which the next attempt starts in pause, instead
// of after the topic's backoff.
func RetryAfter(err error, pause time.Duration) error { return pauseError{some(err), pause} }

func some(err error) error {
	if err == nil {
		return errors.New("no reason given")
	}
	return err
}

// A judgement is what becomes of a delivery, once its deliverer has returned.
type judgement struct {
	verb   Verb // Ack, Release or Bury; 0 leaves it open
	reason string
	pause  *time.Duration // Release: nil means the topic's backoff
}

// judge reads a deliverer's error. It calls methods of that error, which are not
// ours and may panic, and must not be called under a lock.
func judge(err error) judgement {
	var death deathError
	var pause pauseError
	switch {
	case err == nil:
		return judgement{verb: Ack}
	case errors.Is(err, ErrLater):
		return judgement{}
	case errors.As(err, &death):
		return judgement{verb: Bury, reason: err.Error()}
	case errors.As(err, &pause):
		d := min(max(pause.pause, 0), MaxAhead)
		return judgement{verb: Release, reason: err.Error(), pause: &d}
	}
	return judgement{verb: Release, reason: err.Error()}
}

// pause is drawn evenly from MinBackoff to MinBackoff * 2^n after the n-th attempt,
// at most MaxBackoff: exponential backoff with full jitter (Marc Brooker, "Exponential Backoff And
// Jitter", AWS Architecture Blog, 2015), with a floor.
//
// Example: MinBackoff 1 s, MaxBackoff 10 min. After the first attempt 1 to 2 s,
// after the second 1 to 4 s, after the tenth and later 1 s to 10 min.
func (r Retry) pause(attempt uint32) time.Duration {
	return r.MinBackoff + rand.N(r.longest(attempt)-r.MinBackoff+1)
}

// longest bounds the pause after the n-th attempt.
func (r Retry) longest(attempt uint32) time.Duration {
	high := r.MaxBackoff
	if shift := min(attempt, 40); r.MinBackoff < r.MaxBackoff>>shift {
		high = r.MinBackoff << shift
	}
	return max(high, r.MinBackoff)
}

// concludeLocked ends a delivery as it was judged.
func (s *Scheduler) concludeLocked(t *topic, n uint32, v judgement) {
	sl := s.book.slot(n)
	switch v.verb {
	case Ack:
		s.ackLocked(n, sl, nil, 0)
	case Bury:
		s.buryLocked(n, sl, v.reason, nil, 0)
	case Release:
		s.failLocked(n, sl, v.reason, v.pause, nil, 0)
	default:
		if !t.later {
			t.later = true
			s.pledged += t.busy
		}
		s.leaveOpenLocked(n)
	}
}

// ackLocked finishes a task. From here on this process never delivers it again,
// recorded or not.
func (s *Scheduler) ackLocked(n uint32, sl *slot, c *pendingWrite, i int) {
	t := s.byNumber[sl.topic]
	t.counts.Delivered++
	l := s.open[n]
	s.outcomes.add(s.book.index.hash(s.book.id(sl)), outcome{kind: wasDelivered, nonce: l.nonce, created: record.Created(s.book.record(sl))})
	s.noteLocked(EventDelivered, sl, Event{Attempt: int(l.attempt)})
	s.closeLocked(n)
	s.setLocked(sl, finishing)
	s.sendLocked(write{slot: n, op: opFinish}, c, i)
}

// failLocked ends an attempt without success: the task waits for the next one, or
// is dead if that was the last.
func (s *Scheduler) failLocked(n uint32, sl *slot, reason string, pause *time.Duration, c *pendingWrite, i int) {
	t := s.byNumber[sl.topic]
	t.counts.Failed++
	s.failures.failed(t.name, reason)
	l := s.open[n]
	if t.settings.Retry.over(l.attempt, s.now()-record.Due(s.book.record(sl))) {
		s.deadLocked(n, sl, record.Exhausted, reason, c, i)
		return
	}
	d := t.settings.Retry.pause(l.attempt)
	if pause != nil {
		d = *pause
	}
	now := s.now()
	s.noteLocked(EventRetried, sl, Event{Attempt: int(l.attempt), Err: reason})
	// Not before the deadline either, if the clock was set back since.
	sl.next = max(now+roundUpMillis(d), record.Due(s.book.record(sl)))
	s.endAttemptLocked(n, sl, record.Pending, sl.next, reason)
	s.armLocked(n, sl, now)
	s.sendLocked(write{slot: n, op: opRecord}, c, i)
}

// buryLocked ends an attempt for good because its receiver said so.
func (s *Scheduler) buryLocked(n uint32, sl *slot, reason string, c *pendingWrite, i int) {
	t := s.byNumber[sl.topic]
	t.counts.Failed++
	s.failures.failed(t.name, reason)
	s.deadLocked(n, sl, record.Buried, reason, c, i)
}

// deadLocked ends an attempt, and with it the task. The state of its record says why.
func (s *Scheduler) deadLocked(n uint32, sl *slot, state uint8, reason string, c *pendingWrite, i int) {
	t := s.byNumber[sl.topic]
	t.counts.Died++
	s.failures.died(t.name)
	s.noteLocked(EventDied, sl, Event{Attempt: int(s.open[n].attempt), Err: reason})
	died := s.now()
	s.setLocked(sl, burying)
	s.endAttemptLocked(n, sl, state, died, reason)
	s.sendLocked(write{slot: n, op: opBury, at: died}, c, i)
}

// endAttemptLocked closes the delivery and writes its end into the task's record.
func (s *Scheduler) endAttemptLocked(n uint32, sl *slot, state uint8, next int64, reason string) {
	f := s.book.fields(sl)
	f.State, f.Next, f.Attempt = state, next, s.open[n].attempt
	f.Flags &^= record.Claimed | record.HasLease
	f.LastError = []byte(cut(reason, maxReason))
	s.scratch = f.Append(s.scratch[:0])
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
func (s *Scheduler) sendLocked(w write, c *pendingWrite, i int) {
	if c != nil {
		c.add(i, w.slot)
		w.pending, w.index = c, i
	}
	s.writeLocked(w)
}
