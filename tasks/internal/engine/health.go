package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/pulse"
)

// Memory alone decides on settlements of deliveries, and on cancellations of tasks that are known
// and not being delivered. They count at once, and the ledger only records them. While the server
// that keeps a shard is known not to answer, the caller gets at once the answer that the change is
// not recorded yet.

// PatienceShare is the part of Config.AnswerWithin for which a server may answer no write
// at all until it is known not to answer.
const PatienceShare = 20

// LedgerDown reports whether the ledger is known not to answer for a shard.
func (s *Engine) LedgerDown(shard int) bool {
	if shard == SpoolShard {
		return s.Spool.committer.Down(0)
	}
	return s.Committer.Down(shard)
}

// abandon ends the wait for writes if all that are open are for servers that are known not to
// answer, and reports whether it did.
func (s *Engine) abandon(c *PendingWrite) bool {
	s.mu.Lock()
	defer s.unlock()
	if c.left == 0 {
		return false
	}
	for i, n := range c.slots {
		if errors.Is(c.errs[i], ErrOpen) && !s.LedgerDown(int(s.Store.Slot(n).Shard)) {
			return false
		}
	}
	c.abandoned = true
	return true
}

// waitRecorded waits until a write of another caller is answered, and reports whether it was.
// It does not wait for a server that is known not to answer.
func (s *Engine) waitRecorded(ctx context.Context, ch <-chan struct{}, shard int) bool {
	for {
		next := s.Committer.NextDown()
		if s.anyDown() && s.LedgerDown(shard) {
			return false
		}
		select {
		case <-ch:
			return true
		case <-next:
		case <-s.Life.Done:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// conditionEvery is how often the ledger is asked whether it takes new records. What
// is accepted in between must fit into what it keeps in reserve.
const conditionEvery = 100 * time.Millisecond

// conditionLoop asks until Close begins, beside the sweep: a ledger may take its time.
func (s *Engine) conditionLoop() {
	s.Life.Every(conditionEvery, func() {
		s.Writes.condition.ask(s.Ledger)
		s.sendHeldBack()
	})
}

// A condition is why a ledger takes no new records, by its last answer.
type condition struct{ refusal atomic.Pointer[error] }

// ask asks a ledger.
func (c *condition) ask(l recovery.Ledger) {
	asked, ok := l.(recovery.Conditioner)
	if !ok {
		return
	}
	if err := asked.Condition(); err != nil {
		c.refusal.Store(&err)
	} else {
		c.refusal.Store(nil)
	}
}

// err returns why the ledger takes no new records; nil: it takes some.
func (c *condition) err() error {
	if err := c.refusal.Load(); err != nil {
		return *err
	}
	return nil
}

// CertaintyEvery is how often a node that paused asks whether it may go on.
const CertaintyEvery = 50 * time.Millisecond

// CertaintyLoop notices when this node begins to be unsure, and wakes all topics when
// it may deliver again.
func (s *Engine) CertaintyLoop() {
	was := false
	s.Life.Every(CertaintyEvery, func() { was = s.noteCertainty(was) })
}

func (s *Engine) noteCertainty(was bool) (is bool) {
	is = s.Unsure()
	s.mu.Lock()
	resumes := !is && s.Dispatch.Paused
	if resumes {
		s.Dispatch.Paused = false
	}
	s.mu.Unlock()
	switch {
	case is && !was:
		s.Config.Log.Error("shard ownership uncertain: no heartbeat answered in time", "node", s.Config.Node, "deliveries", s.Config.OnOutage)
	case was && !is:
		s.Config.Log.Info("shard ownership certain", "node", s.Config.Node)
	}
	if resumes {
		s.wakeAll()
	}
	return is
}

// Moving is tasks.Admin.Moving.
func (s *Engine) Moving(ctx context.Context) error {
	return s.Life.pulse.Moving(ctx, []pulse.Part{
		{Name: "its lock", Wait: func() { _ = s.Err() }},
		{Name: "its wheel", Wait: func() {
			select {
			case <-s.Runner.Pulse():
			case <-s.Life.Done:
			}
		}},
		{Name: "its sweep", Wait: func() { s.Life.pulse.Swept(s.Life.Done) }},
	})
}
