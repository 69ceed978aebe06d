package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/deadindex"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// A deadCheck compares memory's index of the dead of one shard with the ledger's. Where they
// differ, one of them is corrected:
//
//	memory   ledger                          what is done
//	dead     no record                       it is written again if memory has its record, see
//	                                         rebury.go; otherwise memory forgets it
//	dead     pending, or dead at another     it is written again
//	         time or in another topic
//	other    dead, and memory knows better   the ledger's record is deleted
//	none     dead                            memory learns it; deleted if the ledger lost writes
//	none     an index member, no record      the member is deleted
type deadCheck struct {
	Restoration
	checker recovery.DeadChecker
	reader  recovery.Rewinder
	scanner recovery.DeadScanner
	rewound bool // the ledger has lost writes: what memory does not know is finished

	*deadindex.Comparison
	page    []recovery.Entry // of the ledger's index, not looked at yet
	earlier []lostBurial     // of the page, which the ledger has as they were buried before

	open bool // it is not decided yet what has become of some

	forgotten         deadindex.Lost
	learned           int // by memory
	deleting, burying int // in the ledger, which confirms it later
}

// doubtDeadLocked has the index of the dead compared with the ledger's soon, in the background.
func (s *Engine) doubtDeadLocked() {
	if _, ok := s.Ledger.(recovery.DeadChecker); !ok || s.Ended {
		return
	}
	if s.Dead.Doubt() {
		s.Life.Background.Go(s.compareAllDead)
	}
}

// compareAllDead compares all shards for as long as there are doubts. Between two rounds it
// rests for nine times as long as one takes.
func (s *Engine) compareAllDead() {
	failing := false // the last round has
	for {
		if s.waitReplayed(s.Life.Context) != nil {
			return // Close has begun
		}
		s.mu.Lock()
		again := s.Dead.Next(!s.Ended)
		holdings := append([]*OwnedShard(nil), s.Shards.List...)
		s.mu.Unlock()
		if !again {
			return
		}
		began := s.Elapsed()
		var fault error
		for n, h := range holdings {
			if err := (&Restoration{s, n, h}).compareDead(false); err != nil {
				fault = fmt.Errorf("shard %d: %w", n, err)
			}
		}
		if fault != nil && !s.IsClosing() {
			s.mu.Lock()
			s.Dead.Doubt()
			s.mu.Unlock()
			if !failing {
				s.Config.Log.Warn("the index of the dead cannot be compared with the ledger; it is tried again", "node", s.Config.Node, "error", fault)
			}
		}
		failing = fault != nil
		if !s.Life.Rest(max(auditRest*(s.Elapsed()-began), time.Second)) {
			return
		}
	}
}

// compareDead compares the dead. With rewound the loss of writes of the shard is being made good,
// by the caller. A shard that is lost meanwhile is no error.
func (s *Restoration) compareDead(rewound bool) error {
	c := deadCheck{Restoration: *s, rewound: rewound, forgotten: make(deadindex.Lost)}
	var reads, scans bool
	c.checker, _ = s.Ledger.(recovery.DeadChecker)
	c.reader, reads = s.Ledger.(recovery.Rewinder)
	c.scanner, scans = s.Ledger.(recovery.DeadScanner)
	if c.checker == nil || !reads || !scans || !c.begin() {
		return nil
	}
	err := c.run(s.Life.Context)
	s.mu.Lock()
	s.Dead.End(c.Comparison)
	if len(c.forgotten) > 0 || c.open {
		s.doubtDeadLocked() // members of the ledger's index without a record are deleted then
	}
	s.mu.Unlock()
	if c.learned+c.deleting+c.burying > 0 {
		s.Config.Log.Error("dead index differs from the ledger; correcting", "node", s.Config.Node, "shard", s.Shard,
			"learned", c.learned, "deleting", c.deleting, "burying", c.burying)
	}
	c.forgotten.Tell(s.Config.Log, s.Config.Node)
	if errors.Is(err, recovery.ErrLost) || errors.Is(err, recovery.ErrClosed) || errors.Is(err, task.ErrClosed) {
		return nil
	}
	return err
}

// readyLocked reports whether the shard is memory's to correct.
func (c *deadCheck) readyLocked() bool {
	return !c.Ended && c.Term.takes() && c.OwnedLocked(c.Shard) == c.Term && (c.rewound || c.Term.reconciles == 0)
}

// begin begins the comparison: the ids that are dead by memory are missing so far.
func (c *deadCheck) begin() bool {
	c.mu.Lock()
	if !c.readyLocked() {
		c.mu.Unlock()
		return false
	}
	c.Comparison = c.Dead.Begin()
	dead := c.Term.dead
	c.mu.Unlock()
	eachIn(c.Engine, dead, func(hash uint64, _ uint32) { c.Missing[hash] = struct{}{} })
	return true
}

func (c *deadCheck) run(ctx context.Context) error {
	var fault error
	err := c.scanner.ScanDead(ctx, c.Shard, func(e recovery.Entry) {
		e.ID = bytes.Clone(e.ID)
		if c.page = append(c.page, e); len(c.page) == RedrivenAtOnce && fault == nil {
			fault = c.look(ctx)
			c.page = c.page[:0]
		}
	})
	if err = errors.Join(err, fault); err == nil {
		err = c.look(ctx)
	}
	if err != nil {
		return err
	}
	if err := c.restore(ctx); err != nil || c.left() == 0 {
		return err
	}
	if err := c.reader.ScanShard(ctx, c.Shard, c.buryPending); err != nil {
		return err
	}
	c.forget()
	return nil
}

// left returns how many of the dead the ledger has not shown so far.
func (c *deadCheck) left() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.Missing)
}

// restore writes those of the missing again whose records memory has.
func (c *deadCheck) restore(ctx context.Context) error {
	var all []uint64
	eachIn(c.Engine, c.Missing, func(hash uint64, _ struct{}) { all = append(all, hash) })
	for some := range slices.Chunk(all, AtOnce) {
		var lost []lostBurial
		c.mu.Lock()
		for _, hash := range some {
			_, missing := c.Missing[hash]
			if b, has := c.Dead.Burials.Find(hash); has && missing {
				lost = append(lost, lostBurial{id: string(b.ID)})
			}
		}
		c.mu.Unlock()
		if err := c.writeAgain(ctx, lost); err != nil {
			return err
		}
	}
	return nil
}

// writeAgain writes lost burials again, and waits until the ledger has confirmed them: what is read
// from the ledger afterwards has them.
func (c *deadCheck) writeAgain(ctx context.Context, lost []lostBurial) error {
	if len(lost) == 0 {
		return nil
	}
	if !c.Breathe() {
		return task.ErrClosed
	}
	done, err := c.reburyAndWait(ctx, c.lockDead(lost), lost)
	c.burying += done
	return err
}

// look compares a page of the ledger's index.
func (c *deadCheck) look(ctx context.Context) error {
	if len(c.page) == 0 {
		return nil
	}
	if !c.Breathe() {
		return task.ErrClosed
	}
	ids := make([]string, len(c.page))
	for i := range c.page {
		ids[i] = string(c.page[i].ID)
	}
	has, err := c.checker.HasDead(ctx, c.Shard, ids)
	if err != nil {
		return err
	}
	if !c.compare(has) {
		return recovery.ErrLost
	}
	earlier := c.earlier
	c.earlier = nil
	return c.writeAgain(ctx, earlier)
}

// compare compares a page of the ledger's index. It reports false if the shard is not memory's to
// correct any more.
func (c *deadCheck) compare(has []bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.readyLocked() {
		return false
	}
	for i, e := range c.page {
		c.compareLocked(e, has[i])
	}
	return true
}

// compareLocked compares one dead task of the ledger's index.
func (c *deadCheck) compareLocked(e recovery.Entry, recorded bool) {
	hash := c.Store.Hash(e.ID)
	n, known := c.Store.FindHashed(hash, e.ID)
	_, dead := c.Term.dead[hash]
	switch {
	case dead && c.isEarlierLocked(hash, e.Spot):
		c.earlier = append(c.earlier, lostBurial{id: string(e.ID), earlier: e.Spot})
	case dead:
		if recorded {
			delete(c.Missing, hash)
		}
	case known && c.Store.Slot(n).State.MaybeDead():
		c.open = true
	case recorded && !known && !c.rewound && c.Outcomes.FindSince(hash, c.Term.past).Kind == 0:
		c.addDeadLocked(c.labelledLocked(e.Spot.Label), c.Shard, e.ID, e.Spot.At)
		c.learned++
	default:
		c.Committer.Submit(c.Shard, recovery.Change{ID: e.ID, From: e.Spot}, Write{op: opUnspooled})
		c.deleting++
	}
}

// isEarlierLocked reports whether the ledger has another burial of a task than memory. The task was
// taken from among the dead since, and buried once more.
func (c *deadCheck) isEarlierLocked(hash uint64, at recovery.Spot) bool {
	b, has := c.Dead.Burials.Find(hash)
	return has && (record.Next(b.Record) != at.At || labelOf(b.Record) != at.Label)
}

// buryPending buries those of a page that are dead by memory, and of which the ledger has an
// older record.
func (c *deadCheck) buryPending(page []recovery.Entry) error {
	var lost []recovery.Ref
	c.mu.Lock()
	for i := range page {
		hash := c.Store.Hash(page[i].ID)
		if _, missing := c.Missing[hash]; missing {
			delete(c.Missing, hash)
			lost = append(lost, recovery.Ref{ID: string(page[i].ID), Next: page[i].Spot.At})
		}
	}
	c.mu.Unlock()
	if len(lost) == 0 {
		return nil
	}
	begun, err := c.BuryAgain(lost)
	c.burying += begun
	return err
}

// forget has memory forget those that cannot be written again.
func (c *deadCheck) forget() {
	eachIn(c.Engine, c.Missing, func(hash uint64, _ struct{}) {
		_, has := c.Dead.Burials.Find(hash)
		switch {
		case !c.readyLocked():
		case has: // it was busy a moment ago, so it is not decided
			c.open = true
		default:
			c.forgetDeadLocked(c.Term, hash, c.forgotten)
		}
	})
}
