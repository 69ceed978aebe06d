package tasks

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/lapsehq/lapse/recovery"
)

// A stranded task was on its way from the spool into a shard when another node took the
// shard over: the ledger has refused it, but may have taken an earlier copy, which the
// new holder delivers then. So memory forgets it, and asks the ledger for the shard's
// mark, which nobody else can change. Only if the task was not moved, it comes back.
type stranded struct {
	id     string
	at     int64 // where the spool has its record
	number int64
	over   bool // it was finished while it was being moved
}

// strandLocked takes a task to where it is no longer the spool's, and not yet known to be
// somebody else's. Its slot is then left as those of the shard are.
func (s *Scheduler) strandLocked(w *write, sl *slot) {
	sp := s.spool
	next, ok := s.deferred[w.slot]
	over := ok && (next.op == opFinish || next.op == opCancel)
	sp.limbo = append(sp.limbo, stranded{string(s.book.id(sl)), sl.stored, sp.numbers[w.slot], over})
	sp.stranded++
	sl.shard = w.shard
	s.leaveSpoolLocked(w.slot)
}

// settleLimbo decides what becomes of stranded tasks, as far as the ledger answers.
func (s *Scheduler) settleLimbo() {
	s.mu.Lock()
	limbo := slices.Clone(s.spool.limbo)
	s.unlock()
	if len(limbo) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.AnswerWithin)
	defer cancel()
	settled := 0
	for _, x := range limbo {
		if !s.settleStranded(ctx, x) {
			break
		}
		settled++
	}
	s.mu.Lock()
	s.spool.limbo = s.spool.limbo[settled:]
	s.unlock()
}

func (s *Scheduler) settleStranded(ctx context.Context, x stranded) bool {
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
