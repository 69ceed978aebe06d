package engine

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// A deadCheck compares memory's index of the dead of one shard with the ledger's. Where they
// differ, one of them is corrected:
//
//	memory   ledger                          what is done
//	dead     no record                       memory forgets it
//	dead     pending                         it is buried again
//	other    dead, and memory knows better   the ledger's record is deleted
//	none     dead                            memory learns it; deleted if the ledger lost writes
//	none     an index member, no record      the member is deleted
type deadCheck struct {
	*Engine
	checker recovery.DeadChecker
	reader  recovery.Rewinder
	scanner recovery.DeadScanner
	shard   int
	h       *OwnedShard
	rewound bool // the ledger has lost writes: what memory does not know is finished

	missing map[uint64]struct{} // hashes of the dead that the ledger has not shown so far
	page    []recovery.Entry    // of the ledger's index, not looked at yet

	open bool // it is not decided yet what has become of some

	forgotten, learned int // by memory
	deleting, burying  int // in the ledger, which confirms it later
}

// doubtDeadLocked has the index of the dead compared with the ledger's soon, in the background.
func (s *Engine) doubtDeadLocked() {
	if _, ok := s.Ledger.(recovery.DeadChecker); !ok || s.Ended {
		return
	}
	s.Dead.doubted = true
	if !s.Dead.running {
		s.Dead.running = true
		s.Life.Background.Go(s.compareDead)
	}
}

// compareDead compares all shards for as long as there are doubts. Between two rounds it
// rests for nine times as long as one takes.
func (s *Engine) compareDead() {
	for {
		if s.waitReplayed(s.Life.Context) != nil {
			return // Close has begun
		}
		s.Mu.Lock()
		again := s.Dead.doubted && !s.Ended
		s.Dead.doubted, s.Dead.running = false, again
		holdings := append([]*OwnedShard(nil), s.Shards.List...)
		s.Mu.Unlock()
		if !again {
			return
		}
		began := s.Elapsed()
		for n, h := range holdings {
			if err := s.compareDeadOf(n, h, false); err != nil && !s.IsClosing() {
				s.Config.Log.Warn("the index of the dead could not be compared with the ledger", "node", s.Config.Node, "shard", n, "error", err)
			}
		}
		if !s.Rest(max(auditRest*(s.Elapsed()-began), time.Second)) {
			return
		}
	}
}

// compareDeadOf compares one shard. With rewound its loss of writes is being made good, by
// the caller. A shard that is lost meanwhile is no error.
func (s *Engine) compareDeadOf(n int, h *OwnedShard, rewound bool) error {
	c := deadCheck{Engine: s, shard: n, h: h, rewound: rewound, missing: make(map[uint64]struct{})}
	var reads, scans bool
	c.checker, _ = s.Ledger.(recovery.DeadChecker)
	c.reader, reads = s.Ledger.(recovery.Rewinder)
	c.scanner, scans = s.Ledger.(recovery.DeadScanner)
	if c.checker == nil || !reads || !scans || !c.begin() {
		return nil
	}
	err := c.run(s.Life.Context)
	s.Mu.Lock()
	delete(s.Dead.checks, &c)
	if c.forgotten > 0 || c.open {
		s.doubtDeadLocked() // members of the ledger's index without a record are deleted then
	}
	s.Mu.Unlock()
	if c.forgotten+c.learned+c.deleting+c.burying > 0 {
		s.Config.Log.Error("dead index differs from the ledger; correcting", "node", s.Config.Node, "shard", n,
			"forgotten", c.forgotten, "learned", c.learned, "deleting", c.deleting, "burying", c.burying)
	}
	if errors.Is(err, recovery.ErrLost) || errors.Is(err, recovery.ErrClosed) || errors.Is(err, task.ErrClosed) {
		return nil
	}
	return err
}

// readyLocked reports whether the shard is memory's to correct.
func (c *deadCheck) readyLocked() bool {
	return !c.Ended && c.h.Takes() && c.OwnedLocked(c.shard) == c.h && (c.rewound || c.h.reconciles == 0)
}

// begin collects the ids that are dead by memory in missing. From then on addDeadLocked removes the
// ids of tasks that die from it.
func (c *deadCheck) begin() bool {
	c.Mu.Lock()
	defer func() { c.Mu.Unlock() }()
	if !c.readyLocked() {
		return false
	}
	if c.Dead.checks == nil {
		c.Dead.checks = make(map[*deadCheck]struct{})
	}
	c.Dead.checks[c] = struct{}{}
	count := 0
	for hash := range c.h.dead {
		if count++; count%AtOnce == 0 {
			c.Mu.Unlock()
			c.Mu.Lock()
		}
		c.missing[hash] = struct{}{}
	}
	return true
}

func (c *deadCheck) run(ctx context.Context) error {
	var fault error
	err := c.scanner.ScanDead(ctx, c.shard, func(e recovery.Entry) {
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
	c.Mu.Lock()
	left := len(c.missing)
	c.Mu.Unlock()
	if left == 0 {
		return nil
	}
	if err := c.reader.ScanShard(ctx, c.shard, c.buryPending); err != nil {
		return err
	}
	c.forget()
	return nil
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
	has, err := c.checker.HasDead(ctx, c.shard, ids)
	if err != nil {
		return err
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if !c.readyLocked() {
		return recovery.ErrLost
	}
	for i, e := range c.page {
		c.compareLocked(e, has[i])
	}
	return nil
}

// compareLocked compares one dead task of the ledger's index.
func (c *deadCheck) compareLocked(e recovery.Entry, recorded bool) {
	hash := c.Store.Hash(e.ID)
	n, known := c.Store.FindHashed(hash, e.ID)
	_, dead := c.h.dead[hash]
	switch {
	case dead:
		if recorded {
			delete(c.missing, hash)
		}
	case known && c.Store.Slot(n).State.MaybeDead():
		c.open = true
	case recorded && !known && !c.rewound && c.Outcomes.FindSince(hash, c.h.past).Kind == 0:
		c.addDeadLocked(c.labelledLocked(e.Spot.Label), c.shard, e.ID, e.Spot.At)
		c.learned++
	default:
		c.Committer.Submit(c.shard, recovery.Change{ID: e.ID, From: e.Spot}, Write{op: opUnspooled})
		c.deleting++
	}
}

// buryPending buries those of a page that are dead by memory, and of which the ledger has an
// older record.
func (c *deadCheck) buryPending(page []recovery.Entry) error {
	var lost []recovery.Ref
	c.Mu.Lock()
	for i := range page {
		hash := c.Store.Hash(page[i].ID)
		if _, missing := c.missing[hash]; missing {
			delete(c.missing, hash)
			lost = append(lost, recovery.Ref{ID: string(page[i].ID), Next: page[i].Spot.At})
		}
	}
	c.Mu.Unlock()
	if len(lost) == 0 {
		return nil
	}
	begun, err := c.BuryAgain(c.shard, c.h, lost)
	c.burying += begun
	return err
}

// forget corrects memory.
func (c *deadCheck) forget() {
	c.Mu.Lock()
	defer func() { c.Mu.Unlock() }()
	count := 0
	for hash := range c.missing {
		if count++; count%AtOnce == 0 {
			c.Mu.Unlock()
			c.Mu.Lock()
		}
		if c.readyLocked() && c.forgetDeadLocked(c.h, hash) {
			c.forgotten++
		}
	}
}
