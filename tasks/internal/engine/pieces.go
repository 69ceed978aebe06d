package engine

import (
	"runtime"
	"sync/atomic"

	"github.com/lapsehq/lapse/recovery"
)

// shardsAtOnce is of how many acquired shards the tasks are read at once.
const shardsAtOnce = 1

// PieceBytes bounds the records that one hold of the lock takes into memory. A single record may be
// larger.
const PieceBytes = 256 << 10

// pieces are the holds of Engine.Mu by work that grows with the tasks: a shard that is read, or
// that leaves memory. Tests look at them.
type pieces struct {
	tasks atomic.Int64 // that were dealt with
	most  atomic.Int64 // that one hold has dealt with
}

// note counts the tasks of one hold.
func (p *pieces) note(tasks int) {
	p.tasks.Add(int64(tasks))
	for most := p.most.Load(); int64(tasks) > most && !p.most.CompareAndSwap(most, int64(tasks)); most = p.most.Load() {
	}
}

// Pieces returns with how many tasks such work has dealt since Open, and with how many at most
// during one hold of the lock.
func (s *Engine) Pieces() (tasks, most int64) {
	return s.Life.pieces.tasks.Load(), s.Life.pieces.most.Load()
}

// InPieces calls do, under the lock, for one piece of a page after the other. In between, others
// get the lock, and the processor: the runtime would interrupt this goroutine only after 10 ms, and
// so late would be a task that is due then.
func (s *Engine) InPieces(page []recovery.Entry, do func(piece []recovery.Entry)) {
	for len(page) > 0 {
		n, bytes := 0, 0
		for n < min(AtOnce, len(page)) && (n == 0 || bytes+len(page[n].Data) <= PieceBytes) {
			bytes += len(page[n].Data)
			n++
		}
		s.hold(page[:n], do)
		runtime.Gosched()
		page = page[n:]
	}
}

func (s *Engine) hold(piece []recovery.Entry, do func(piece []recovery.Entry)) {
	s.Mu.Lock()
	defer s.Unlock()
	s.Life.pieces.note(len(piece))
	do(piece)
}
