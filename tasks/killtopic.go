package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

const killedReason = "the topic was deleted"

// killLocked makes a task dead that waits for an attempt, as its topic is deleted.
func (s *engine) killLocked(n uint32, sl *store.Slot, c *pendingWrite) {
	s.buryWaitingLocked(n, sl, record.TopicDeleted, killedReason, c)
}

// buryWaitingLocked makes a task dead that waits for an attempt.
func (s *engine) buryWaitingLocked(n uint32, sl *store.Slot, state byte, reason string, c *pendingWrite) {
	s.disarmLocked(sl)
	f := s.store.Fields(sl)
	s.byNumber[sl.Topic].counts.Died++
	s.emitLocked(EventDied, sl, Event{Attempt: int(f.Attempt), Err: reason})
	died := s.now()
	f.State, f.Next, f.LastError = state, died, []byte(reason)
	f.Flags &^= record.Claimed | record.HasLease
	s.scratch = f.Append(s.scratch[:0])
	s.store.Rewrite(n, s.scratch)
	s.setLocked(sl, store.Burying)
	s.writeLocked(write{slot: n, op: opBury, at: died, pending: c, index: c.extend(n)})
}

// deletable tells what must be known before a topic is deleted: the revision of its
// settings, and whether it has tasks here. It waits for the end of replay.
func (s *engine) deletable(ctx context.Context, name string) (revision int64, inUse bool, err error) {
	ctx, cancel := s.within(ctx)
	defer cancel()
	if err := s.waitReplayed(ctx); err != nil {
		return 0, false, err
	}
	s.mu.Lock()
	defer s.unlock()
	if s.ended {
		return 0, false, ErrClosed
	}
	if t, ok := s.topics[name]; ok {
		revision = t.revision
	}
	return revision, s.usedLocked(name), nil
}

// usedLocked tells that a topic has tasks here that are not dead.
func (s *engine) usedLocked(name string) bool {
	t, ok := s.topics[name]
	return ok && t.gauges[Pending]+t.gauges[Ready]+t.gauges[Delivering] > 0
}

// forgetTopic lets the defaults hold for a topic again.
func (s *engine) forgetTopic(ctx context.Context, name string, revision int64) error {
	if _, err := s.putTopic(ctx, name, revision, nil); err != nil {
		if errors.Is(err, recovery.ErrConflict) {
			_ = s.reloadTopic(ctx, name, s.metTopic(name), revision) // for the next call
			return ErrRevision
		}
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	s.mu.Lock()
	defer s.unlock()
	// Another caller may have set them anew.
	if have := s.keptTopic([]byte(name)); have.revision == revision {
		s.applyLocked(have, s.cfg.Resolved[name], 0)
	}
	return nil
}

func (s *engine) metTopic(name string) *topic {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keptTopic([]byte(name))
}
