package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
)

// DeleteTopic forgets a topic's settings, unless it has tasks on this node that are
// pending, ready or being delivered: those would be delivered by the defaults, which
// nobody may have wanted. Its dead tasks stay as they are. ifRevision is the revision that
// the caller has seen, or -1 for any.
//
// Errors: ErrNoTopic, ErrInUse, ErrRevision, ErrReplaying, ErrUnavailable, ErrUnknown,
// ErrClosed.
func (s *Scheduler) DeleteTopic(ctx context.Context, name string, ifRevision int64) error {
	revision, inUse, err := s.deletable(ctx, name, ifRevision)
	switch {
	case err != nil:
		return err
	case inUse:
		return ErrInUse
	}
	return s.forgetTopic(ctx, name, revision)
}

// KillTopic is DeleteTopic for a topic that has tasks: those that are pending or ready
// become dead, for the reason TopicDeleted, a piece at a time as in Purge; then the
// settings are forgotten. Tasks that are being delivered are left to their receivers; a
// further attempt, if it comes to that, follows the defaults. Killed is always right about
// what was done before an error; repeating the call does the rest.
//
// Errors: those of DeleteTopic but ErrInUse.
func (s *Scheduler) KillTopic(ctx context.Context, name string, ifRevision int64) (Killed, error) {
	revision, _, err := s.deletable(ctx, name, ifRevision)
	if err != nil {
		return Killed{}, err
	}
	p := purge{Scheduler: s, topic: name, kill: true}
	err = p.run(ctx)
	k := Killed{Killed: p.cancelled, Delivering: p.delivering}
	if err != nil || revision == 0 {
		return k, err
	}
	return k, s.forgetTopic(ctx, name, revision)
}

// Killed counts what a KillTopic has done.
type Killed struct {
	Killed     int // tasks that are recorded as dead
	Delivering int // tasks that were being delivered, and are left to their receivers
}

const killedReason = "the topic was deleted"

// killLocked makes a task dead that waits for an attempt.
func (s *Scheduler) killLocked(n uint32, sl *slot, c *call) {
	s.disarmLocked(sl)
	f := s.book.fields(sl)
	s.byNumber[sl.topic].counts.Died++
	s.noteLocked(EventDied, sl, Event{Attempt: int(f.attempt), Err: killedReason})
	died := s.now()
	f.state, f.next, f.lastError = recTopicDeleted, died, []byte(killedReason)
	f.flags &^= flagClaimed | flagLease
	s.scratch = f.encode(s.scratch[:0])
	s.book.rewrite(n, s.scratch)
	s.setLocked(sl, burying)
	s.writeLocked(write{slot: n, op: opBury, at: died, call: c, index: c.join(n)})
}

// deletable tells what must be known before a topic is deleted: the revision of its
// settings, and whether it has tasks. It waits for the end of replay.
func (s *Scheduler) deletable(ctx context.Context, name string, ifRevision int64) (revision int64, inUse bool, err error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	if err := s.waitReplayed(ctx); err != nil {
		return 0, false, err
	}
	s.mu.Lock()
	defer s.unlock()
	have, ok := s.topics[name]
	if ok {
		revision, inUse = have.revision, have.gauges[Pending]+have.gauges[Ready]+have.gauges[Delivering] > 0
	}
	switch {
	case s.ended:
		return 0, false, ErrClosed
	case revision == 0 && !inUse:
		return 0, false, ErrNoTopic
	case ifRevision >= 0 && revision != ifRevision:
		return 0, false, ErrRevision
	}
	return revision, inUse, nil
}

// forgetTopic lets the defaults hold for a topic again.
func (s *Scheduler) forgetTopic(ctx context.Context, name string, revision int64) error {
	if _, err := s.putTopic(ctx, name, revision, nil); err != nil {
		if errors.Is(err, recovery.ErrConflict) {
			_ = s.reloadTopic(ctx, name, s.metTopic(name), revision) // for the next call
			return ErrRevision
		}
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	s.mu.Lock()
	defer s.unlock()
	// Somebody may have set them anew.
	if have := s.keptTopic([]byte(name)); have.revision == revision {
		s.equipLocked(have, s.cfg.brought[name], 0)
	}
	return nil
}

func (s *Scheduler) metTopic(name string) *topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keptTopic([]byte(name))
}
