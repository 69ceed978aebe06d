package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// PurgeAtOnce bounds how many changes of one purge wait for the ledger.
const PurgeAtOnce = 2048

// A Purge cancels all tasks of a topic, or of a group, that can be cancelled; or it kills
// them.
type Purge struct {
	*Engine
	Pick         // of topics
	group string // if that is what was asked for
	kill  bool   // they become dead instead

	walk       *Walk
	busy       []string // ids of visited tasks that another caller was changing
	cancelled  int
	unrecorded bool           // some are cancelled in a shard for which the ledger does not answer
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

// Run cancels them all, and reports that; or it has been at work for long enough, and has
// cancelled some. 0: nothing is long enough.
func (p *Purge) Run(ctx context.Context, enough time.Duration) (all bool, err error) {
	if err := p.begin(ctx); err != nil {
		return false, err
	}
	defer p.walk.Leave()
	for began := p.Elapsed(); !p.walk.over || len(p.busy) > 0; {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		if enough > 0 && p.cancelled > 0 && p.Elapsed()-began >= enough {
			return false, nil
		}
		if err := p.piece(ctx); err != nil {
			return false, err
		}
	}
	return true, nil
}

// Part returns what a node tells others of the result so far. A task that was being delivered
// counts only in the shards of the snapshot; nil: in all.
func (p *Purge) Part(st Snapshot) query.PurgePart {
	a := query.PurgePart{Cancelled: p.cancelled, Retried: p.retried}
	for shard, n := range p.delivering {
		if h, ok := st[int(shard)]; ok || st == nil {
			a.Delivering = append(a.Delivering, query.LeftCount{ShardID: h.ShardID, Count: n})
		}
	}
	for _, l := range p.named {
		if h, ok := st[int(l.shard)]; ok || st == nil {
			a.Left = append(a.Left, query.LeftTask{ID: l.id, ShardID: h.ShardID})
		}
	}
	return a
}

func (p *Purge) begin(ctx context.Context) error {
	ctx, cancel := p.Within(ctx)
	defer cancel()
	if err := p.waitReplayed(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.unlock()
	switch {
	case p.Ended:
		return task.ErrClosed
	case p.Unsure():
		return ErrUnsure
	}
	p.walk = p.walkLocked(p.Pick, p.group)
	return nil
}

// piece cancels up to PurgeAtOnce tasks, and waits until the ledger has forgotten
// them.
func (p *Purge) piece(ctx context.Context) error {
	ctx, cancel := p.Within(ctx)
	defer cancel()
	c := NewPendingWrite(0)
	p.tried = make(map[int]string)
	c.cancels = !p.kill
	if p.kill {
		c.Phase.Store(sent) // a death is never taken back
	}
	err := p.collect(ctx, c)
	p.mu.Lock()
	c.complete()
	p.unlock()
	// ErrUnknown takes precedence.
	if late := p.Await(ctx, c); err == nil || errors.Is(late, task.ErrUnknown) {
		err = late
	}
	for i, answer := range p.OutcomesOf(c) {
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
	if p.unrecorded && (err == nil || !errors.Is(err, task.ErrUnknown)) {
		err = task.ErrUnrecorded
	}
	return err
}

// collect begins to cancel the tasks of a piece. First come those that were busy before,
// for which it waits.
func (p *Purge) collect(ctx context.Context, c *PendingWrite) error {
	sent := 0
	for ; len(p.busy) > 0 && sent < PurgeAtOnce; p.busy = p.busy[1:] {
		n, sl, err := p.lockTask(ctx, p.busy[0])
		switch {
		case errors.Is(err, task.ErrNotFound), errors.Is(err, task.ErrDead):
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
	for !p.walk.over && sent <= PurgeAtOnce-AtOnce && len(p.busy) < PurgeAtOnce {
		var err error
		ended := p.walk.step(func(n uint32, sl *store.Slot) (cost int) {
			before := sent
			if sent, err = p.visitLocked(n, sl, c, sent); err != nil {
				return AtOnce
			}
			return sent - before
		})
		if err = cmp.Or(err, ended); err != nil {
			return err
		}
	}
	return nil
}

// tryLocked notes a task that is about to be cancelled, at a place of the piece, if it has
// been delivered before.
func (p *Purge) tryLocked(sl *store.Slot, at int) {
	if len(p.retried)+len(p.tried) < p.keep && p.Store.Fields(sl).Attempt > 0 {
		p.tried[at] = string(p.Store.ID(sl))
	}
}

// belongsLocked reports whether a task is still to be cancelled after a wait: it may have passed to
// another topic or group.
func (p *Purge) belongsLocked(sl *store.Slot) bool {
	if p.group != "" && string(p.Store.Group(sl)) != p.group {
		return false
	}
	return p.has(p.TopicTable.ByNumber[sl.Topic].Name)
}

// visitLocked sends the cancellation of a task if it can be cancelled, and returns how
// many have been sent now.
func (p *Purge) visitLocked(n uint32, sl *store.Slot, c *PendingWrite, sent int) (int, error) {
	switch sl.State {
	case store.Pending, store.Ready:
		if p.kill {
			if err := p.writableLocked(int(sl.Shard)); err != nil {
				return sent, err
			}
			p.tryLocked(sl, len(c.errs))
			p.buryWaitingLocked(n, sl, record.TopicDeleted, killedReason, c)
			return sent + 1, nil
		}
		if err := p.cancellableLocked(sl); err != nil {
			return sent, err
		}
		p.DisarmLocked(sl)
		p.SetLocked(sl, store.Cancelling)
		if p.LedgerDown(int(sl.Shard)) {
			p.unrecorded = true
			sl.Flags |= store.Wanted
			p.writeLocked(p.newCancelLocked(n, sl))
		} else {
			p.tryLocked(sl, len(c.errs))
			w := p.newCancelLocked(n, sl)
			w.pending, w.index = c, c.extend(n)
			p.writeLocked(w)
		}
		return sent + 1, nil
	case store.Delivering, store.Parking: // until it is settled, here or where its shard goes
		p.delivering[sl.Shard]++
		if len(p.named) < p.keep {
			p.named = append(p.named, skipped{string(p.Store.ID(sl)), sl.Shard})
		}
	case store.Claiming, store.Moving, store.Replacing, store.Cancelling:
		// It was there when the purge began, and may be pending again soon; that
		// a caller cancels it does not say that it works out.
		p.busy = append(p.busy, string(p.Store.ID(sl)))
	case store.Vacant, store.Creating, store.Finishing, store.Burying, store.Requeuing, store.Checking:
		// Gone, going, or not there yet.
	}
	return sent, nil
}

// NewPurge returns a purge that has not begun.
func (s *Engine) NewPurge(q *query.Purge) *Purge {
	return &Purge{Engine: s, Pick: Pick{q.Topic, q.Patterns}, group: q.Group, kill: q.Kill, keep: q.Keep, delivering: make(map[uint16]int)}
}

const killedReason = "the topic was deleted"

// buryWaitingLocked makes a task dead that waits for an attempt.
func (s *Engine) buryWaitingLocked(n uint32, sl *store.Slot, state byte, reason string, c *PendingWrite) {
	s.DisarmLocked(sl)
	f := s.Store.Fields(sl)
	t := s.TopicTable.ByNumber[sl.Topic]
	t.Counts.Died++
	s.TopicTable.ended(t, n, f.Due).Dead++
	s.TopicTable.History.Now().Died++
	s.failures.Died(t.Name, reason)
	s.emitLocked(task.EventDied, sl, task.Event{Attempt: int(f.Attempt), Err: reason})
	died := s.Now()
	f.State, f.Next, f.LastError = state, died, []byte(reason)
	f.Flags &^= record.Claimed | record.HasLease
	f.Release()
	s.Writes.scratch = f.Append(s.Writes.scratch[:0])
	s.Store.Rewrite(n, s.Writes.scratch)
	s.SetLocked(sl, store.Burying)
	s.writeLocked(Write{slot: n, op: opBury, at: died, pending: c, index: c.extend(n)})
}

// Deletable tells what must be known before a topic is deleted: the revision of its
// settings, and whether it has tasks here. It waits for the end of replay.
func (s *Engine) Deletable(ctx context.Context, name string) (revision int64, inUse bool, err error) {
	ctx, cancel := s.Within(ctx)
	defer cancel()
	if err := s.waitReplayed(ctx); err != nil {
		return 0, false, err
	}
	s.mu.Lock()
	defer s.unlock()
	if s.Ended {
		return 0, false, task.ErrClosed
	}
	t := s.TopicTable.ByName[name]
	if t != nil {
		revision = t.stored.revision
	}
	return revision, t.isUsed(), nil
}

// Used reports whether a topic has tasks here that are not dead.
func (s *Engine) Used(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.TopicTable.ByName[name].isUsed()
}

func (t *Topic) isUsed() bool {
	return t != nil && t.Gauges[task.Pending]+t.Gauges[task.Ready]+t.Gauges[task.Delivering] > 0
}

// ForgetTopic lets the defaults hold for a topic again.
func (s *Engine) ForgetTopic(ctx context.Context, name string, revision int64) error {
	if _, err := s.putTopic(ctx, name, revision, nil); err != nil {
		if errors.Is(err, recovery.ErrConflict) {
			s.mu.Lock()
			t := s.keptTopicLocked([]byte(name))
			s.mu.Unlock()
			_ = s.reloadTopic(ctx, name, t, revision) // for the next call
			return task.ErrRevision
		}
		return fmt.Errorf("%w: %w", task.ErrUnknown, err)
	}
	s.mu.Lock()
	// Another caller may have set them anew.
	if have := s.keptTopicLocked([]byte(name)); have.stored.revision == revision {
		s.applyLocked(have, s.Config.Resolved[name], 0)
	}
	s.unlock()
	s.Cluster.TellSettings(ctx)
	return nil
}
