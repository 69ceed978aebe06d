package tasks

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

const (
	// auditSlice is how many tasks of every shard are compared with the ledger at
	// once, and auditBytes how large their records may be together: the ledger answers
	// no other question of this node meanwhile. auditRound bounds the records of all
	// shards in one round; the next round begins with the shards that it did not come to.
	auditSlice, auditBytes, auditRound = 256, 1 << 20, 4 << 20
	// auditWithin is the time that the ledger has for the slice of one shard.
	auditWithin = 10 * time.Second
	// auditRest is for how long an audit of everything rests after a slice, in
	// multiples of the time that the ledger took to answer it: it has nine tenths of
	// its time for others.
	auditRest = 9
)

// auditLoop compares, once in every period of the sweep, a slice of memory with the
// ledger, and all of it when a full sweep asks for that. It has a goroutine of its
// own: when the ledger does not answer, the sweep goes on.
func (s *engine) auditLoop() {
	tick := time.NewTicker(s.cfg.SweepEvery)
	defer tick.Stop()
	slices := s.newAuditee(false)
	for {
		select {
		case <-tick.C:
			if s.isReplayed() {
				s.audit(slices)
			}
		case full := <-s.everything:
			s.auditAll(full)
		case <-s.closing:
			return
		}
	}
}

// auditAll compares all of memory with the ledger, slice by slice, and ends a full
// sweep. While writes queue up it waits; while the ledger cannot be read it tries
// again, once in a period.
func (s *engine) auditAll(full fullSweep) {
	if s.waitReplayed(s.ctx) != nil {
		return // Close has begun
	}
	all := s.newAuditee(true)
	checked, repaired := 0, 0
	for !all.over() && s.breathe() {
		asked := s.elapsed()
		c, r, ok := s.audit(all)
		rest := max(auditRest*(s.elapsed()-asked), time.Millisecond)
		if !ok {
			rest = s.cfg.SweepEvery
		}
		checked, repaired = checked+c, repaired+r
		select {
		case <-time.After(rest):
		case <-s.closing:
		}
	}
	if s.isClosing() {
		return
	}
	took := s.elapsed() - full.since
	s.mu.Lock()
	s.sweep.fulls++
	s.sweep.last, s.sweep.lastTook = full, took
	s.mu.Unlock()
	s.cfg.Log.Info("a full sweep is over", "node", s.cfg.Node,
		"checked", checked, "repaired", repaired, "took", took.Round(time.Millisecond))
}

// audit compares a slice of memory with the ledger. It reports false when a shard could
// not be read; then the same slice of that shard comes again.
func (s *engine) audit(a *auditee) (checked, repaired int, ok bool) {
	shards := a.begin()
	a.repairs = newPendingWrite(0)
	a.repairs.phase.Store(sent) // a repair is never taken back
	checked, missing, err := recovery.Audit(s.ctx, s.ledger, a, shards, auditSlice, auditWithin)
	s.mu.Lock()
	s.sweep.checked += int64(checked)
	was := s.sweep.deaf
	s.sweep.deaf = err != nil
	s.mu.Unlock()
	switch { // once an outage
	case err != nil && !was && s.ctx.Err() == nil:
		s.cfg.Log.Warn("the audit could not read the ledger", "node", s.cfg.Node, "error", err)
	case err == nil && was:
		s.cfg.Log.Info("the audit can read the ledger again", "node", s.cfg.Node)
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.AnswerWithin)
	defer cancel()
	if checked > 0 {
		s.cluster.compareEntries(ctx, a.sampled)
	}
	if missing > 0 {
		repaired = s.confirmedRepairs(ctx, a.repairs)
		s.cfg.Log.Error("the audit found tasks missing in the ledger", "node", s.cfg.Node, "missing", missing, "repaired", repaired)
	}
	return checked, repaired, err == nil
}

// confirmedRepairs waits for the ledger and returns how many repairs it has confirmed. Those
// that it confirms later count later; those that it refuses never do.
func (s *engine) confirmedRepairs(ctx context.Context, c *pendingWrite) (n int) {
	s.mu.Lock()
	c.complete()
	s.unlock()
	s.awaitSettled(ctx, c)
	for _, err := range s.outcomesOf(c) {
		if err == nil {
			n++
		}
	}
	return n
}

// An auditee is the side of a Scheduler that is compared with the ledger.
type auditee struct {
	s       *engine
	once    bool          // ends at the end of the store, instead of going round and round
	at      []uint32      // by shard: the slot where it goes on
	was     []uint32      // by shard: at, before the slice
	first   int           // the shard with which the next round begins
	left    int           // bytes of the round
	repairs *pendingWrite // the writes of the slice's repairs
	// sampled are the first of the slice whose ids are filed.
	sampled []recovery.Refiling
}

func (s *engine) newAuditee(once bool) *auditee {
	a := &auditee{s: s, once: once}
	a.begin()
	return a
}

// begin begins a round. It returns the shards in the order in which they are to be read.
func (a *auditee) begin() []int {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	for len(a.at) < len(a.s.shards) {
		a.at, a.was = append(a.at, 0), append(a.was, 0)
	}
	a.left, a.sampled = auditRound, a.sampled[:0]
	shards := make([]int, len(a.at))
	for i := range shards {
		shards[i] = (a.first + i) % len(shards)
	}
	return shards
}

// Again implements recovery.Auditee.
func (a *auditee) Again(shard int) { a.at[shard] = a.was[shard] }

// over tells that every shard has come to the end of the store.
func (a *auditee) over() bool {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	for shard, at := range a.at {
		if a.s.ownedLocked(shard).takes() && at < a.s.store.Slots() {
			return false
		}
	}
	return true
}

// Sample returns tasks with no write under way: what one that is busy says is on its
// way to the ledger.
func (a *auditee) Sample(shard int, n int) []recovery.Ref {
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.left <= 0 || !s.ownedLocked(shard).takes() {
		return nil
	}
	total := s.store.Slots()
	refs := make([]recovery.Ref, 0, n)
	at, size := a.at[shard], 0
	a.was[shard] = at
	for range min(total, store.ChunkSlots) {
		if at >= total {
			if a.once {
				break
			}
			at = 0
		}
		if sl := s.store.Slot(at); int(sl.Shard) == shard && atRest(sl) {
			refs = append(refs, recovery.Ref{ID: string(s.store.ID(sl)), Next: sl.Stored})
			if len(a.sampled) < entriesSampled {
				if entry, ok := s.cluster.entryLocked(sl); ok {
					a.sampled = append(a.sampled, entry)
				}
			}
			size += len(s.store.Record(sl))
		}
		at++
		if len(refs) == n || size >= min(auditBytes, a.left) {
			break
		}
	}
	a.at[shard] = at
	if a.left -= size; a.left <= 0 {
		a.first = (shard + 1) % len(a.at)
	}
	return refs
}

// entriesSampled is how many ids of a slice of the audit are compared with the directory.
const entriesSampled = 256

func atRest(sl *store.Slot) bool {
	return sl.State != store.Vacant && !sl.State.Busy() && sl.Flags&store.Writing == 0 && sl.Stored != store.NotStored
}

// Repair begins to write tasks again that the ledger lacks, and returns how many.
func (a *auditee) Repair(_ int, missing []recovery.Ref) int {
	s := a.s
	s.mu.Lock()
	defer s.unlock()
	begun := 0
	for _, ref := range missing {
		n, ok := s.store.Find([]byte(ref.ID))
		if !ok {
			continue
		}
		if sl := s.store.Slot(n); atRest(sl) && sl.Stored == ref.Next && s.ownedLocked(int(sl.Shard)).takes() {
			s.writeLocked(write{slot: n, op: opRecord, audit: true, pending: a.repairs, index: a.repairs.extend(n)})
			begun++
		}
	}
	return begun
}
