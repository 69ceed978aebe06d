package engine

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// This file moves spooled tasks to the ledger, once the ledger answers again, and reads those of
// the last process into memory.

const (
	unspoolEvery  = 100 * time.Millisecond
	unspoolAtOnce = 500 // tasks of a piece; they wait if the ledger fails again
)

// unspoolLoop moves spooled tasks to the ledger, until Close begins.
func (s *Engine) unspoolLoop() {
	s.Life.EveryOr(unspoolEvery, s.Spool.more, func(woken bool) {
		if !woken {
			s.Spool.condition.ask(s.Spool.ledger)
			s.resolveInDoubt()
		}
		s.unspool()
	})
}

// unspool sends the heads of all lines whose shards take them.
func (s *Engine) unspool() {
	s.mu.Lock()
	lines := make([]*spoolLine, 0, len(s.Spool.Lines))
	for _, l := range s.Spool.Lines {
		lines = append(lines, l)
	}
	s.unlock()
	for _, l := range lines {
		s.mu.Lock()
		if !s.Ended {
			s.advanceLocked(l)
		}
		s.unlock()
	}
}

// newPiece makes the PendingWrite of the tasks of a line that are sent together. No caller waits
// for it.
// The committer may write a piece in several batches. If the ledger refuses one of them, the
// piece is abandoned: what is sent later would raise the mark above those that are left behind.
func newPiece() *PendingWrite { return &PendingWrite{abandoned: true} }

// abandonPiece takes back the writes of a piece that were not sent yet.
func (w *Write) abandonPiece() { w.pending.Phase.Store(withdrawn) }

// advanceLocked sends the head of a line, unless one is under way already.
func (s *Engine) advanceLocked(l *spoolLine) {
	sp := s.Spool
	gone := 0
	for gone < len(l.Items) && sp.numbers[l.Items[gone].slot] != l.Items[gone].number {
		gone++
	}
	if l.Items = l.Items[gone:]; len(l.Items) == 0 {
		l.Items = nil
		return
	}
	if l.Moving > 0 || l.Blocked || len(sp.InDoubt) > 0 || s.Writes.condition.err() != nil {
		return
	}
	shard, ok := s.targetShardLocked(s.Store.ID(s.Store.Slot(l.Items[0].slot)))
	if !ok {
		return
	}
	l.piece = newPiece()
	for _, it := range l.Items[:min(len(l.Items), unspoolAtOnce)] {
		if sp.numbers[it.slot] != it.number {
			continue // finished
		}
		if !movable(s.Store.Slot(it.slot)) {
			return
		}
		s.writeLocked(Write{slot: it.slot, op: opUnspool, shard: uint16(shard), pending: l.piece})
	}
}

// targetShardLocked returns the shard into which a task is to be moved; false if it takes
// nothing now. A shard must not get tasks of two lines.
func (s *Engine) targetShardLocked(id []byte) (shard int, ok bool) {
	shard = s.Terms.ShardOf(id)
	h := s.OwnedLocked(shard)
	if !h.takes() || s.ledgerSilent(shard, unspoolEvery) || s.Unsure() {
		return shard, false
	}
	shardID, _ := recovery.ShardIDOf(string(id))
	return shard, s.Fleet == nil || h.ShardID == shardID
}

// movable reports whether the spool has the last state of a task. A task that has died waits for
// the ledger with its burial: the spool keeps no dead.
func movable(sl *store.Slot) bool {
	return sl.Flags&store.Writing == 0 && sl.Stored != store.NotStored && (!sl.State.Busy() || sl.State == store.Burying)
}

// unspoolChangeLocked returns the change of the ledger that moves a task there. A dead one is moved
// as it was, to be buried right afterwards.
func (s *Engine) unspoolChangeLocked(c *recovery.Change, w *Write, sl *store.Slot) {
	c.Data = s.Store.Record(sl)
	if sl.State == store.Burying {
		f := s.Store.Fields(sl)
		f.State = record.Pending
		f.Next = max(f.Next, f.Due) // never early, if the process ends before the burial
		if sl.Next == record.HeldUntil {
			f.Hold(s.Now())
		}
		s.Writes.scratch = f.Append(s.Writes.scratch[:0])
		c.Data = s.Writes.scratch
	}
	w.at = record.Next(c.Data)
	c.From, c.To = recovery.Spot{}, recovery.Spot{Place: recovery.Pending, At: w.at}
	s.Spool.targets[w.slot] = w.shard
	s.lineLocked(sl).Moving++
	c.Mark = recovery.Mark{Spool: s.Spool.id, Number: s.Spool.numbers[w.slot]}
}

// unspooledLocked makes a task the ledger's, which has its record.
func (s *Engine) unspooledLocked(w *Write, sl *store.Slot) {
	s.Spool.removeLocked(s.Store.ID(sl), recovery.Spot{Place: recovery.Pending, At: sl.Stored})
	sl.Shard, sl.Stored = w.shard, w.at
	s.Figures.Spool.Moved++
	s.leaveSpoolLocked(w.slot)
	if s.lineLocked(sl).Moving == 0 {
		request(s.Spool.more)
	}
}

// repeatMoveLocked sends a task once more that the ledger has confirmed, and may have lost
// since. All that is repeated is a piece of its own: the rest of the former one would
// overtake it, and is taken back.
func (s *Engine) repeatMoveLocked(w Write, sl *store.Slot) {
	l := s.lineLocked(sl)
	if l.piece == w.pending {
		w.abandonPiece()
		l.piece = newPiece()
	}
	w.pending = l.piece
	s.writeLocked(w)
}

// movesInto reports whether any task is being moved into a shard.
func (s *Engine) movesInto(shard int) bool {
	if s.Spool == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, target := range s.Spool.targets {
		if int(target) == shard {
			return true
		}
	}
	return false
}

// movingTo reports whether a task is being moved into a shard.
func (s *Engine) movingTo(n uint32, sl *store.Slot, shard int) bool {
	if sl.Shard != SpoolShard {
		return false
	}
	target, moving := s.Spool.targets[n]
	return moving && int(target) == shard
}

// An inDoubtMove is the move of a task from the spool into a shard that another node took over
// meanwhile. The ledger has refused the task, but may have taken an earlier copy, which the
// new holder delivers then. So memory forgets it, and asks the ledger for the shard's
// mark, which no other node can change. Only if the task was not moved, it comes back.
type inDoubtMove struct {
	ID     string
	at     int64 // where the spool has its record
	number int64
	over   bool // it was finished while it was being moved
}

// holdInDoubtLocked takes a task out of the spool of which it is not known yet whether another
// node has it. Its slot is then left as those of the shard are.
func (s *Engine) holdInDoubtLocked(w *Write, sl *store.Slot) {
	sp := s.Spool
	next, ok := s.Writes.Deferred[w.slot]
	over := ok && (next.op == opFinish || next.op == opCancel)
	sp.InDoubt = append(sp.InDoubt, inDoubtMove{string(s.Store.ID(sl)), sl.Stored, sp.numbers[w.slot], over})
	sp.MovesInDoubt++
	sl.Shard = w.shard
	s.leaveSpoolLocked(w.slot)
}

// resolveInDoubt decides what becomes of moves in doubt, as far as the ledger answers.
func (s *Engine) resolveInDoubt() {
	s.mu.Lock()
	inDoubt := slices.Clone(s.Spool.InDoubt)
	s.unlock()
	if len(inDoubt) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.Life.Context, s.Config.AnswerWithin)
	defer cancel()
	settled := 0
	for _, x := range inDoubt {
		if !s.resolveMove(ctx, x) {
			break
		}
		settled++
	}
	s.mu.Lock()
	s.Spool.InDoubt = s.Spool.InDoubt[settled:]
	s.unlock()
}

func (s *Engine) resolveMove(ctx context.Context, x inDoubtMove) bool {
	sp := s.Spool
	mark, err := sp.successor.SpoolMark(ctx, sp.id, x.ID)
	if err != nil {
		return false
	}
	spot := recovery.Spot{Place: recovery.Pending, At: x.at}
	s.mu.Lock()
	if x.number <= mark || x.over {
		sp.removeLocked([]byte(x.ID), spot)
		if x.number <= mark {
			s.Figures.Spool.Moved++
		}
		s.unlock()
		return true
	}
	s.unlock()
	return sp.ledger.Get(ctx, 0, []recovery.Ref{{ID: x.ID, Next: x.at}}, func(_ int, e recovery.Entry) {
		if len(e.Data) < numberLen || int64(binary.BigEndian.Uint64(e.Data)) != x.number {
			return
		}
		e.Data, e.Shard, e.Spot = e.Data[numberLen:], SpoolShard, spot
		s.mu.Lock()
		defer s.unlock()
		s.readSpooledLocked(e, x.number)
		// It stands behind those that have come since, and must not be overtaken.
		sortLine(s.Spool.LineLocked(s.LineOf(e.ID)))
	}) == nil
}

// loadSpool reads the tasks of the spool into memory. It deletes the records of tasks that the last
// process moved to the ledger: the ledger knows better what has become of these tasks.
func (s *Engine) loadSpool(ctx context.Context) error {
	loading := spoolLoading{Engine: s, ctx: ctx, marks: make(map[uint64]int64)}
	if err := s.Spool.ledger.Scan(ctx, loading.page); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.unlock()
	for _, l := range s.Spool.Lines {
		sortLine(l)
	}
	if loading.moved > 0 {
		s.Config.Log.Info("the spool had tasks that the ledger got before", "node", s.Config.Node, "tasks", loading.moved)
	}
	return nil
}

type spoolLoading struct {
	*Engine
	ctx   context.Context
	marks map[uint64]int64 // by line
	moved int
}

func (x *spoolLoading) page(page []recovery.Entry) error {
	for _, e := range page {
		if e.Data != nil {
			if err := x.entry(e); err != nil {
				return err
			}
			continue
		}
		var inner error
		err := x.Spool.ledger.Get(x.ctx, e.Shard, []recovery.Ref{{ID: string(e.ID), Next: e.Spot.At}}, func(_ int, e recovery.Entry) {
			inner = x.entry(e)
		})
		if err = cmp.Or(err, inner); err != nil {
			return err
		}
	}
	return nil
}

func (x *spoolLoading) entry(e recovery.Entry) error {
	if len(e.Data) < numberLen {
		return fmt.Errorf("the record of %d bytes in the spool cannot be read", len(e.Data))
	}
	number := int64(binary.BigEndian.Uint64(e.Data))
	e.Data = e.Data[numberLen:]
	key := x.LineOf(e.ID)
	mark, known := x.marks[key]
	if !known {
		var err error
		if mark, err = x.Spool.successor.SpoolMark(x.ctx, x.Spool.id, string(e.ID)); err != nil {
			return fmt.Errorf("what the ledger got from the spool: %w", err)
		}
		x.marks[key] = mark
	}
	if number > mark && !x.learnTopicsOf(x.ctx, []recovery.Entry{e}) {
		return errSettingsUnread
	}
	x.mu.Lock()
	defer x.unlock()
	if number <= mark {
		x.moved++
		x.Spool.removeLocked(e.ID, e.Spot)
		return nil
	}
	x.readSpooledLocked(e, number)
	return nil
}

// readSpooledLocked takes a task up that the spool has, and the ledger has not.
func (s *Engine) readSpooledLocked(e recovery.Entry, number int64) {
	e.Shard = SpoolShard
	f, readable := s.readableLocked(&e)
	if !readable {
		s.Spool.LineLocked(s.LineOf(e.ID)).Blocked = true
		return
	}
	if _, conflicting := s.Store.Find(e.ID); conflicting {
		return // a scan that was begun anew
	}
	n, sl := s.Store.Enter(e.ID, e.Data)
	s.Spool.numbers[n] = number
	s.restoreLocked(n, sl, e, &f, s.Now())
	s.enterSpoolLocked(n, sl)
}

func sortLine(l *spoolLine) {
	slices.SortFunc(l.Items, func(a, b spooled) int { return cmp.Compare(a.number, b.number) })
}
