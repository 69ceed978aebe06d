package tasks

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

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
