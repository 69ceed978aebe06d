package tasks

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// A deadCheck compares memory's index of the dead of one shard with the ledger's. Where they
// differ, one of them is corrected:
//
//	memory   ledger                          what is done
//	dead     no record                       memory forgets it
//	dead     pending                         it is buried again
//	other    dead, and memory knows better   the ledger's record is deleted
//	none     dead                            memory learns it; deleted if the ledger had lost writes
//	none     an index member, no record      the member is deleted
type deadCheck struct {
	*engine
	checker recovery.DeadChecker
	reader  recovery.Rewinder
	scanner recovery.DeadScanner
	shard   int
	h       *ownedShard
	rewound bool // the ledger has lost writes: what memory does not know is finished

	missing map[uint64]struct{} // hashes of the dead that the ledger has not shown so far
	page    []recovery.Entry    // of the ledger's index, not looked at yet

	open bool // it is not decided yet what has become of some

	forgotten, learned int // by memory
	deleting, burying  int // in the ledger, which confirms it later
}

// doubtDeadLocked has the index of the dead compared with the ledger's soon, in the background.
func (s *engine) doubtDeadLocked() {
	if _, ok := s.ledger.(recovery.DeadChecker); !ok || s.ended {
		return
	}
	s.dead.doubted = true
	if !s.dead.running {
		s.dead.running = true
		s.background.Go(s.compareDead)
	}
}

// compareDead compares all shards for as long as there are doubts. Between two rounds it
// rests for nine times as long as one takes.
func (s *engine) compareDead() {
	for {
		if s.waitReplayed(s.ctx) != nil {
			return // Close has begun
		}
		s.mu.Lock()
		again := s.dead.doubted && !s.ended
		s.dead.doubted, s.dead.running = false, again
		holdings := append([]*ownedShard(nil), s.shards...)
		s.mu.Unlock()
		if !again {
			return
		}
		began := s.elapsed()
		for n, h := range holdings {
			if err := s.compareDeadOf(n, h, false); err != nil && !s.isClosing() {
				s.cfg.Log.Warn("the index of the dead could not be compared with the ledger", "node", s.cfg.Node, "shard", n, "error", err)
			}
		}
		if !s.rest(max(auditRest*(s.elapsed()-began), time.Second)) {
			return
		}
	}
}

// compareDeadOf compares one shard. With rewound its loss of writes is being made good, by
// the caller. A shard that is lost meanwhile is no error.
func (s *engine) compareDeadOf(n int, h *ownedShard, rewound bool) error {
	c := deadCheck{engine: s, shard: n, h: h, rewound: rewound, missing: make(map[uint64]struct{})}
	var reads, scans bool
	c.checker, _ = s.ledger.(recovery.DeadChecker)
	c.reader, reads = s.ledger.(recovery.Rewinder)
	c.scanner, scans = s.ledger.(recovery.DeadScanner)
	if c.checker == nil || !reads || !scans || !c.begin() {
		return nil
	}
	err := c.run(s.ctx)
	s.mu.Lock()
	delete(s.dead.checks, &c)
	if c.forgotten > 0 || c.open {
		s.doubtDeadLocked() // members of the ledger's index without a record are deleted then
	}
	s.mu.Unlock()
	if c.forgotten+c.learned+c.deleting+c.burying > 0 {
		s.cfg.Log.Error("memory and the ledger did not have the same dead tasks, and are being made equal", "node", s.cfg.Node, "shard", n,
			"forgotten", c.forgotten, "learned", c.learned, "deleting", c.deleting, "burying", c.burying)
	}
	if errors.Is(err, recovery.ErrLost) || errors.Is(err, recovery.ErrClosed) || errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// readyLocked reports whether the shard is memory's to correct.
func (c *deadCheck) readyLocked() bool {
	return !c.ended && c.h.takes() && c.ownedLocked(c.shard) == c.h && (c.rewound || c.h.reconciles == 0)
}

// begin takes note of who is dead by memory. From then on addDeadLocked takes those out
// of missing that die.
func (c *deadCheck) begin() bool {
	c.mu.Lock()
	defer func() { c.mu.Unlock() }()
	if !c.readyLocked() {
		return false
	}
	if c.dead.checks == nil {
		c.dead.checks = make(map[*deadCheck]struct{})
	}
	c.dead.checks[c] = struct{}{}
	count := 0
	for hash := range c.h.dead {
		if count++; count%atOnce == 0 {
			c.mu.Unlock()
			c.mu.Lock()
		}
		c.missing[hash] = struct{}{}
	}
	return true
}

func (c *deadCheck) run(ctx context.Context) error {
	var fault error
	err := c.scanner.ScanDead(ctx, c.shard, func(e recovery.Entry) {
		e.ID = bytes.Clone(e.ID)
		if c.page = append(c.page, e); len(c.page) == redrivenAtOnce && fault == nil {
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
	c.mu.Lock()
	left := len(c.missing)
	c.mu.Unlock()
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
	if !c.breathe() {
		return ErrClosed
	}
	ids := make([]string, len(c.page))
	for i := range c.page {
		ids[i] = string(c.page[i].ID)
	}
	has, err := c.checker.HasDead(ctx, c.shard, ids)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
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
	hash := c.store.Hash(e.ID)
	n, known := c.store.FindHashed(hash, e.ID)
	_, dead := c.h.dead[hash]
	switch {
	case dead:
		if recorded {
			delete(c.missing, hash)
		}
	case known && c.store.Slot(n).State.MaybeDead():
		c.open = true
	case recorded && !known && !c.rewound && c.outcomes.FindSince(hash, c.h.past).Kind == 0:
		c.addDeadLocked(c.keptTopic([]byte(e.Spot.Label)), c.shard, e.ID, e.Spot.At)
		c.learned++
	default:
		c.committer.Submit(c.shard, recovery.Change{ID: e.ID, From: e.Spot}, write{op: opUnspooled})
		c.deleting++
	}
}

// buryPending buries those of a page that are dead by memory, and of which the ledger has an
// older record.
func (c *deadCheck) buryPending(page []recovery.Entry) error {
	var lost []recovery.Ref
	c.mu.Lock()
	for i := range page {
		hash := c.store.Hash(page[i].ID)
		if _, missing := c.missing[hash]; missing {
			delete(c.missing, hash)
			lost = append(lost, recovery.Ref{ID: string(page[i].ID), Next: page[i].Spot.At})
		}
	}
	c.mu.Unlock()
	if len(lost) == 0 {
		return nil
	}
	begun, err := c.buryAgain(c.shard, c.h, lost)
	c.burying += begun
	return err
}

// forget corrects memory.
func (c *deadCheck) forget() {
	c.mu.Lock()
	defer func() { c.mu.Unlock() }()
	count := 0
	for hash := range c.missing {
		if count++; count%atOnce == 0 {
			c.mu.Unlock()
			c.mu.Lock()
		}
		if c.readyLocked() && c.forgetDeadLocked(c.h, hash) {
			c.forgotten++
		}
	}
}
