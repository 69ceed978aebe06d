package tasks

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// This file moves what is spooled to the ledger, once that answers again.

const (
	unspoolEvery  = 100 * time.Millisecond
	unspoolAtOnce = 500 // tasks of a piece: what is under way waits if the ledger is gone again
)

// unspoolLoop moves what is spooled to the ledger, until Close begins.
func (s *engine) unspoolLoop() {
	tick := time.NewTicker(unspoolEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.spool.askCondition()
			s.resolveInDoubt()
		case <-s.spool.more:
		case <-s.closing:
			return
		}
		s.unspool()
	}
}

// unspool sends the heads of all lines whose shards take them.
func (s *engine) unspool() {
	s.mu.Lock()
	lines := make([]*spoolLine, 0, len(s.spool.lines))
	for _, l := range s.spool.lines {
		lines = append(lines, l)
	}
	s.unlock()
	for _, l := range lines {
		s.mu.Lock()
		if !s.ended {
			s.advanceLocked(l)
		}
		s.unlock()
	}
}

// newPiece makes the pendingWrite of the tasks of a line that are sent together. No caller waits
// for it.
// The committer may write a piece in several batches. If the ledger refuses one of them, the
// piece is abandoned: what is sent later would raise the mark above those that are left behind.
func newPiece() *pendingWrite { return &pendingWrite{abandoned: true} }

// abandonPiece takes back what was not sent yet of a piece.
func (w *write) abandonPiece() { w.pending.phase.Store(withdrawn) }

// advanceLocked sends the head of a line, unless one is under way already.
func (s *engine) advanceLocked(l *spoolLine) {
	sp := s.spool
	gone := 0
	for gone < len(l.items) && sp.numbers[l.items[gone].slot] != l.items[gone].number {
		gone++
	}
	if l.items = l.items[gone:]; len(l.items) == 0 {
		l.items = nil
		return
	}
	if l.moving > 0 || l.blocked || len(sp.inDoubt) > 0 || s.refusal.Load() != nil {
		return
	}
	shard, ok := s.heirLocked(s.store.ID(s.store.Slot(l.items[0].slot)))
	if !ok {
		return
	}
	l.piece = newPiece()
	for _, it := range l.items[:min(len(l.items), unspoolAtOnce)] {
		if sp.numbers[it.slot] != it.number {
			continue // finished
		}
		if !movable(s.store.Slot(it.slot)) {
			return
		}
		s.writeLocked(write{slot: it.slot, op: opUnspool, shard: uint16(shard), pending: l.piece})
	}
}

// heirLocked returns the shard into which a task is to be moved; false if it takes
// nothing now. A shard must not get tasks of two lines.
func (s *engine) heirLocked(id []byte) (shard int, ok bool) {
	shard = s.terms.ShardOf(id)
	h := s.ownedLocked(shard)
	if !h.takes() || s.deaf(shard, unspoolEvery) || s.unsure() {
		return shard, false
	}
	shardID, _ := recovery.HomeOf(string(id))
	return shard, s.fleet == nil || h.shardID == shardID
}

// movable tells that the spool has all that is to be known about a task. One that has
// died waits for the ledger with its burial: the spool keeps no dead.
func movable(sl *store.Slot) bool {
	return sl.Flags&store.Writing == 0 && sl.Stored != store.NotStored && (!sl.State.Busy() || sl.State == store.Burying)
}

// unspoolChangeLocked is what moving a task means to the ledger. A dead one is moved as it
// was, to be buried right afterwards.
func (s *engine) unspoolChangeLocked(c *recovery.Change, w *write, sl *store.Slot) {
	c.Data = s.store.Record(sl)
	if sl.State == store.Burying {
		f := s.store.Fields(sl)
		f.State = record.Pending
		s.scratch = f.Append(s.scratch[:0])
		c.Data = s.scratch
	}
	w.at = record.Next(c.Data)
	c.From, c.To = recovery.Spot{}, recovery.Spot{Place: recovery.Pending, At: w.at}
	s.spool.targets[w.slot] = w.shard
	s.lineLocked(sl).moving++
	c.Mark = recovery.Mark{Spool: s.spool.id, Number: s.spool.numbers[w.slot]}
}

// unspooledLocked makes a task the ledger's, which has its record.
func (s *engine) unspooledLocked(w *write, sl *store.Slot) {
	s.spool.removeLocked(s.store.ID(sl), recovery.Spot{Place: recovery.Pending, At: sl.Stored})
	sl.Shard, sl.Stored = w.shard, w.at
	s.spool.moved++
	s.leaveSpoolLocked(w.slot)
	if s.lineLocked(sl).moving == 0 {
		select {
		case s.spool.more <- struct{}{}:
		default:
		}
	}
}

// repeatMoveLocked sends a task once more that the ledger has confirmed, and may have lost
// since. All that is repeated is a piece of its own: the rest of the former one would
// overtake it, and is taken back.
func (s *engine) repeatMoveLocked(w write, sl *store.Slot) {
	l := s.lineLocked(sl)
	if l.piece == w.pending {
		w.abandonPiece()
		l.piece = newPiece()
	}
	w.pending = l.piece
	s.writeLocked(w)
}

// landedLocked counts an answered opUnspool, before it is known what it means.
func (s *engine) landedLocked(n uint32, sl *store.Slot) {
	delete(s.spool.targets, n)
	s.lineLocked(sl).moving--
}

// movesInto tells whether anything is being moved into a shard.
func (s *engine) movesInto(shard int) bool {
	if s.spool == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, target := range s.spool.targets {
		if int(target) == shard {
			return true
		}
	}
	return false
}

// movingTo tells whether a task is being moved into a shard.
func (s *engine) movingTo(n uint32, sl *store.Slot, shard int) bool {
	if sl.Shard != spoolShard {
		return false
	}
	target, moving := s.spool.targets[n]
	return moving && int(target) == shard
}

// An inDoubtMove is the move of a task from the spool into a shard that another node took over
// meanwhile. The ledger has refused the task, but may have taken an earlier copy, which the
// new holder delivers then. So memory forgets it, and asks the ledger for the shard's
// mark, which no other node can change. Only if the task was not moved, it comes back.
type inDoubtMove struct {
	id     string
	at     int64 // where the spool has its record
	number int64
	over   bool // it was finished while it was being moved
}

// holdInDoubtLocked takes a task out of the spool of which it is not known yet whether another
// node has it. Its slot is then left as those of the shard are.
func (s *engine) holdInDoubtLocked(w *write, sl *store.Slot) {
	sp := s.spool
	next, ok := s.deferred[w.slot]
	over := ok && (next.op == opFinish || next.op == opCancel)
	sp.inDoubt = append(sp.inDoubt, inDoubtMove{string(s.store.ID(sl)), sl.Stored, sp.numbers[w.slot], over})
	sp.movesInDoubt++
	sl.Shard = w.shard
	s.leaveSpoolLocked(w.slot)
}

// resolveInDoubt decides what becomes of moves in doubt, as far as the ledger answers.
func (s *engine) resolveInDoubt() {
	s.mu.Lock()
	inDoubt := slices.Clone(s.spool.inDoubt)
	s.unlock()
	if len(inDoubt) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.AnswerWithin)
	defer cancel()
	settled := 0
	for _, x := range inDoubt {
		if !s.resolveMove(ctx, x) {
			break
		}
		settled++
	}
	s.mu.Lock()
	s.spool.inDoubt = s.spool.inDoubt[settled:]
	s.unlock()
}

func (s *engine) resolveMove(ctx context.Context, x inDoubtMove) bool {
	sp := s.spool
	mark, err := sp.heir.Inherited(ctx, sp.id, x.id)
	if err != nil {
		return false
	}
	spot := recovery.Spot{Place: recovery.Pending, At: x.at}
	s.mu.Lock()
	if x.number <= mark || x.over {
		sp.removeLocked([]byte(x.id), spot)
		if x.number <= mark {
			sp.moved++
		}
		s.unlock()
		return true
	}
	s.unlock()
	return sp.ledger.Get(ctx, 0, []recovery.Ref{{ID: x.id, Next: x.at}}, func(_ int, e recovery.Entry) {
		if len(e.Data) < numberLen || int64(binary.BigEndian.Uint64(e.Data)) != x.number {
			return
		}
		e.Data, e.Shard, e.Spot = e.Data[numberLen:], spoolShard, spot
		s.mu.Lock()
		defer s.unlock()
		s.readSpooledLocked(e, x.number)
		// It stands behind those that have come since, and must not be overtaken.
		sortLine(s.spool.lineLocked(s.lineOf(e.ID)))
	}) == nil
}
