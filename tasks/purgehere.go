package tasks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// purgeAtOnce bounds how many changes of one purge wait for the ledger.
const purgeAtOnce = 2048

// A purge cancels all tasks of a topic, or of a group, that can be cancelled; or it kills
// them.
type purge struct {
	*engine
	pick         // of topics
	group string // if that is what was asked for
	kill  bool   // they become dead instead

	walk       *walk
	busy       []string // ids of visited tasks that another caller was changing
	cancelled  int
	unrecorded bool           // some are cancelled in a shard for which the ledger is known not to answer
	delivering map[uint16]int // by shard
	named      []skipped      // the first of those that were being delivered, up to keep
	keep       int
	tried      map[int]string // of the piece, those that had been delivered before
	retried    []string       // those of them that were cancelled, up to keep
}

// skipped is a task that was being delivered.
type skipped struct {
	id    string
	shard uint16
}

// run cancels them all, and reports that; or it has been at work for long enough, and has
// cancelled some. 0: nothing is long enough.
func (p *purge) run(ctx context.Context, enough time.Duration) (all bool, err error) {
	if err := p.begin(ctx); err != nil {
		return false, err
	}
	defer p.walk.leave()
	for began := p.elapsed(); !p.walk.over || len(p.busy) > 0; {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if enough > 0 && p.cancelled > 0 && p.elapsed()-began >= enough {
			return false, nil
		}
		if err := p.piece(ctx); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (p *purge) result() purgeResult {
	t := purgeResult{cancelled: p.cancelled}
	for _, n := range p.delivering {
		t.delivering += n
	}
	for _, l := range p.named {
		t.left = append(t.left, l.id)
	}
	return t
}

func (p *purge) begin(ctx context.Context) error {
	ctx, cancel := p.within(ctx)
	defer cancel()
	if err := p.waitReplayed(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.unlock()
	switch {
	case p.ended:
		return ErrClosed
	case p.unsure():
		return errUnsure
	}
	p.walk = p.walkLocked(p.pick, p.group)
	return nil
}

// piece cancels up to purgeAtOnce tasks, and waits until the ledger has forgotten
// them.
func (p *purge) piece(ctx context.Context) error {
	ctx, cancel := p.within(ctx)
	defer cancel()
	c := newPendingWrite(0)
	p.tried = make(map[int]string)
	if p.kill {
		c.phase.Store(sent) // a death is never taken back
	}
	err := p.collect(ctx, c)
	p.mu.Lock()
	c.complete()
	p.unlock()
	// That an outcome is open weighs more than why no more was begun.
	if late := p.await(ctx, c); err == nil || errors.Is(late, ErrUnknown) {
		err = late
	}
	for i, answer := range p.outcomesOf(c) {
		switch {
		case answer == nil:
			p.cancelled++
			if id, ok := p.tried[i]; ok {
				p.retried = append(p.retried, id)
			}
		case err == nil:
			err = answer
		}
	}
	if p.unrecorded && (err == nil || !errors.Is(err, ErrUnknown)) {
		err = ErrUnrecorded
	}
	return err
}

// collect begins to cancel the tasks of a piece. First come those that were busy before,
// for which it waits.
func (p *purge) collect(ctx context.Context, c *pendingWrite) error {
	sent := 0
	for ; len(p.busy) > 0 && sent < purgeAtOnce; p.busy = p.busy[1:] {
		n, sl, err := p.lockTask(ctx, p.busy[0])
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrDead):
			continue
		case errors.Is(err, errBeingCancelled):
			p.unrecorded = true
			continue
		case err != nil:
			return err
		}
		if p.belongsLocked(sl) {
			sent, err = p.visitLocked(n, sl, c, sent)
		}
		if p.unlock(); err != nil {
			return err
		}
	}
	for !p.walk.over && sent <= purgeAtOnce-atOnce && len(p.busy) < purgeAtOnce {
		n, err := p.some(c)
		if sent += n; err != nil {
			return err
		}
	}
	return nil
}

// some visits the next tasks, as many as are dealt with under one lock, and returns how
// many cancellations were sent.
func (p *purge) some(c *pendingWrite) (sent int, err error) {
	p.mu.Lock()
	defer p.unlock()
	if p.ended {
		return 0, ErrClosed
	}
	for n, sl := range p.walk.pieceLocked() {
		if sent, err = p.visitLocked(n, sl, c, sent); err != nil || sent == atOnce {
			break
		}
	}
	return sent, err
}

// tryLocked notes a task that is about to be cancelled, at a place of the piece, if it has
// been delivered before.
func (p *purge) tryLocked(sl *store.Slot, at int) {
	if len(p.retried)+len(p.tried) < p.keep && p.store.Fields(sl).Attempt > 0 {
		p.tried[at] = string(p.store.ID(sl))
	}
}

// belongsLocked tells whether a task that was waited for is still one to be cancelled: it
// may have passed to another topic or group.
func (p *purge) belongsLocked(sl *store.Slot) bool {
	if p.group != "" && string(p.store.Group(sl)) != p.group {
		return false
	}
	return p.has(p.byNumber[sl.Topic].name)
}

// visitLocked sends the cancellation of a task if it can be cancelled, and returns how
// many have been sent now.
func (p *purge) visitLocked(n uint32, sl *store.Slot, c *pendingWrite, sent int) (int, error) {
	switch sl.State {
	case store.Pending, store.Ready:
		if p.kill {
			if err := p.writable(int(sl.Shard)); err != nil {
				return sent, err
			}
			p.tryLocked(sl, len(c.errs))
			p.killLocked(n, sl, c)
			return sent + 1, nil
		}
		if err := p.cancellableLocked(sl); err != nil {
			return sent, err
		}
		p.disarmLocked(sl)
		p.setLocked(sl, store.Cancelling)
		if p.ledgerDown(int(sl.Shard)) {
			p.unrecorded = true
			sl.Flags |= store.Wanted
			p.writeLocked(write{slot: n, op: opCancel})
		} else {
			p.tryLocked(sl, len(c.errs))
			p.writeLocked(write{slot: n, op: opCancel, pending: c, index: c.extend(n)})
		}
		return sent + 1, nil
	case store.Delivering, store.Parking: // until it is settled, here or where its shard goes
		p.delivering[sl.Shard]++
		if len(p.named) < p.keep {
			p.named = append(p.named, skipped{string(p.store.ID(sl)), sl.Shard})
		}
	case store.Claiming, store.Moving, store.Cancelling:
		// It was there when the purge began, and may be pending again soon; that
		// a caller cancels it does not say that it works out.
		p.busy = append(p.busy, string(p.store.ID(sl)))
	case store.Vacant, store.Creating, store.Finishing, store.Burying, store.Requeuing, store.Checking:
		// Gone, going, or not there yet.
	}
	return sent, nil
}

// A purgeQuery asks for the tasks of a topic or a group to be cancelled, or killed. The
// topic may be the beginning of names and an asterisk.
type purgeQuery struct {
	Topic, Group string
	Kill         bool
	Keep         int      // how many of those that are being delivered are to be named
	Patterns     []string `json:",omitempty"` // as of a listQuery
}

// result is what a purge has done.
type purgeResult struct {
	cancelled, delivering int
	left                  []string            // ids of the first of those that were being delivered
	retried               map[string]struct{} // ids of cancelled ones that had been delivered before
}

func (s *engine) newPurge(q *purgeQuery) *purge {
	return &purge{engine: s, pick: pick{q.Topic, q.Patterns}, group: q.Group, kill: q.Kill, keep: q.Keep, delivering: make(map[uint16]int)}
}

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
