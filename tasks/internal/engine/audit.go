package engine

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

const (
	// AuditSlice is how many tasks of every shard are compared with the ledger at once.
	AuditSlice = 256
	// AuditBytes bounds the records of a slice together: the ledger answers no other call
	// of this node meanwhile.
	AuditBytes = 1 << 20
	// AuditRound bounds the records of all shards in one round. The next round begins with the
	// shards that it did not come to.
	AuditRound = 4 << 20
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
func (s *Engine) auditLoop() {
	tick := time.NewTicker(s.Config.SweepEvery)
	defer tick.Stop()
	slices := s.NewAuditee(false)
	for {
		select {
		case <-tick.C:
			if s.IsReplayed() {
				s.audit(slices)
			}
		case full := <-s.everything:
			s.auditAll(full)
		case <-s.Life.Closing:
			return
		}
	}
}

// auditAll compares all of memory with the ledger, slice by slice, and ends a full
// sweep. While writes queue up it waits; while the ledger cannot be read it tries
// again, once in a period.
func (s *Engine) auditAll(full fullSweep) {
	if s.waitReplayed(s.Life.Context) != nil {
		return // Close has begun
	}
	all := s.NewAuditee(true)
	checked, repaired := 0, 0
	for !all.Over() && s.Breathe() {
		asked := s.Elapsed()
		c, r, ok := s.audit(all)
		rest := max(auditRest*(s.Elapsed()-asked), time.Millisecond)
		if !ok {
			rest = s.Config.SweepEvery
		}
		checked, repaired = checked+c, repaired+r
		select {
		case <-time.After(rest):
		case <-s.Life.Closing:
		}
	}
	if s.IsClosing() {
		return
	}
	took := s.Elapsed() - full.since
	s.mu.Lock()
	s.Figures.FullSweeps++
	s.Figures.FullSweepAt, s.Figures.FullSweepTook = full.At, took
	s.mu.Unlock()
	s.Config.Log.Info("a full sweep is over", "node", s.Config.Node,
		"checked", checked, "repaired", repaired, "took", took.Round(time.Millisecond))
}

// audit compares a slice of memory with the ledger. It reports false when a shard could
// not be read; then the same slice of that shard comes again.
func (s *Engine) audit(a *Auditee) (checked, repaired int, ok bool) {
	shards := a.Begin()
	a.Repairs = NewPendingWrite(0)
	a.Repairs.Phase.Store(sent) // a repair is never taken back
	checked, missing, err := recovery.Audit(s.Life.Context, s.Ledger, a, shards, AuditSlice, auditWithin)
	s.mu.Lock()
	s.Figures.AuditChecked += int64(checked)
	was := s.Sweep.auditFailing
	s.Sweep.auditFailing = err != nil
	s.mu.Unlock()
	switch { // once an outage
	case err != nil && !was && s.Life.Context.Err() == nil:
		s.Config.Log.Warn("the audit could not read the ledger", "node", s.Config.Node, "error", err)
	case err == nil && was:
		s.Config.Log.Info("the audit can read the ledger again", "node", s.Config.Node)
	}
	ctx, cancel := context.WithTimeout(s.Life.Context, s.Config.AnswerWithin)
	defer cancel()
	if checked > 0 {
		s.Cluster.CompareEntries(ctx, a.sampled)
	}
	if missing > 0 {
		repaired = s.confirmedRepairs(ctx, a.Repairs)
		s.Config.Log.Error("the audit found tasks missing in the ledger", "node", s.Config.Node, "missing", missing, "repaired", repaired)
	}
	return checked, repaired, err == nil
}

// confirmedRepairs waits for the ledger and returns how many repairs it has confirmed. Those
// that it confirms later count later; those that it refuses never do.
func (s *Engine) confirmedRepairs(ctx context.Context, c *PendingWrite) (n int) {
	s.mu.Lock()
	c.complete()
	s.unlock()
	s.awaitSettled(ctx, c)
	for _, err := range s.OutcomesOf(c) {
		if err == nil {
			n++
		}
	}
	return n
}

// An Auditee is the side of an Engine that is compared with the ledger.
type Auditee struct {
	s       *Engine
	once    bool          // ends at the end of the store, instead of going round and round
	at      []uint32      // by shard: the slot where it goes on
	was     []uint32      // by shard: at, before the slice
	first   int           // the shard with which the next round begins
	left    int           // bytes of the round
	Repairs *PendingWrite // the writes of the slice's repairs
	// sampled are the first of the slice whose ids are registered.
	sampled []recovery.DirectoryUpdate
}

// NewAuditee returns the tasks that an audit compares. With once it ends at the end of the store.
func (s *Engine) NewAuditee(once bool) *Auditee {
	a := &Auditee{s: s, once: once}
	a.Begin()
	return a
}

// Begin begins a round. It returns the shards in the order in which they are to be read.
func (a *Auditee) Begin() []int {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	for len(a.at) < len(a.s.Shards.List) {
		a.at, a.was = append(a.at, 0), append(a.was, 0)
	}
	a.left, a.sampled = AuditRound, a.sampled[:0]
	shards := make([]int, len(a.at))
	for i := range shards {
		shards[i] = (a.first + i) % len(shards)
	}
	return shards
}

// Again implements recovery.Auditee.
func (a *Auditee) Again(shard int) { a.at[shard] = a.was[shard] }

// Over reports whether every shard has come to the end of the store.
func (a *Auditee) Over() bool {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	for shard, at := range a.at {
		if a.s.OwnedLocked(shard).takes() && at < a.s.Store.Slots() {
			return false
		}
	}
	return true
}

// Sample returns tasks with no write under way: what one that is busy says is on its
// way to the ledger.
func (a *Auditee) Sample(shard int, n int) []recovery.Ref {
	s := a.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.left <= 0 || !s.OwnedLocked(shard).takes() {
		return nil
	}
	total := s.Store.Slots()
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
		if sl := s.Store.Slot(at); int(sl.Shard) == shard && AtRest(sl) {
			refs = append(refs, recovery.Ref{ID: string(s.Store.ID(sl)), Next: sl.Stored})
			if len(a.sampled) < entriesSampled {
				if entry, ok := s.registeredLocked(sl); ok {
					a.sampled = append(a.sampled, entry)
				}
			}
			size += len(s.Store.Record(sl))
		}
		at++
		if len(refs) == n || size >= min(AuditBytes, a.left) {
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

// Repair begins to write tasks again that the ledger lacks, and returns how many.
func (a *Auditee) Repair(_ int, missing []recovery.Ref) int {
	s := a.s
	s.mu.Lock()
	defer s.unlock()
	begun := 0
	for _, ref := range missing {
		n, ok := s.Store.Find([]byte(ref.ID))
		if !ok {
			continue
		}
		if sl := s.Store.Slot(n); AtRest(sl) && sl.Stored == ref.Next && s.OwnedLocked(int(sl.Shard)).takes() {
			s.writeLocked(Write{slot: n, op: opRecord, audit: true, pending: a.Repairs, index: a.Repairs.extend(n)})
			begun++
		}
	}
	return begun
}
